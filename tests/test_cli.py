"""The command line: help, exit codes, sentences instead of tracebacks."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from fcam import __version__
from fcam.cli import VERBS, main
from fcam.data.ids import leads_out
from fcam.data.wsol import LISTS
from fcam.errors import FcamError
from fcam.evaluate_command import EvaluateConfig, differences, file_name
from fcam.map_files import evaluate_map_files, write_maps
from fcam.predict.ways import Ways
from launched import in_two_processes


def test_help_version_and_no_verb(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in VERBS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__
    assert main([]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], "no verb 'trian'"),
        (["train", "cub10-lite-cam"], "cub10-lite0-cam"),
        (["train", "cub10-lite0-cam", "--out", "x"], "needs --data"),
        (["train", "cub10-lite0-cam", "--data", "nowhere"], "needs --out"),
        (["train", "cub10-lite0-cam", "--data", "nowhere", "--out", "never"], "nowhere"),
        (["list", "cats"], "recipes, backbones, methods"),
        (["data", "clean"], "clean"),
        (["data", "check", "nowhere"], "nowhere"),
        (["evaluate"], "--maps"),
        (["evaluate", "nowhere"], "nowhere"),
        (["train", "cub10-lite0-cam", "--data", "nowhere", "--out", ""], "after --out is empty"),
        (["train", "cub10-lite0-cam", "--data=", "--out", "x"], "after --data is empty"),
        (["predict", ""], "after predict is empty"),
    ],
)
def test_mistakes_end_in_one_sentence_and_status_two(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    err = capsys.readouterr().err.strip()
    assert words in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_has_help_with_an_example(verb, capsys):
    try:
        code = main([verb, "--help"])
    except SystemExit as stop:
        code = stop.code
    assert code == 0
    assert "fcam" in "".join(capsys.readouterr())


@pytest.mark.parametrize("kind", ["recipes", "backbones", "methods"])
def test_lists(kind, capsys):
    assert main(["list", kind]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 4


def test_list_has_help_too(capsys):
    assert main(["list", "--help"]) == 0
    assert "recipes|backbones|methods" in capsys.readouterr().out


def test_data_check_of_a_drawn_set(drawn_set, capsys):
    assert main(["data", "check", str(drawn_set)]) == 0
    assert "no problems" in capsys.readouterr().out


def test_evaluate_a_run_then_its_saved_maps(tiny_run, drawn_set, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    maps, out = tmp_path / "maps", tmp_path / "direct.json"
    arguments = ["evaluate", str(tiny_run), "--out", str(out), "--save-maps", str(maps)]
    arguments += ["--map-type", "float32", "--workers", "0"]
    assert main(arguments) == 0
    direct = json.loads(out.read_text())
    assert direct["maps"] == json.loads((tiny_run / "metrics.json").read_text())["maps"]
    again = ["evaluate", "--maps", str(maps / "fcam"), "--metadata", str(drawn_set / "metadata")]
    assert main(again) == 0
    stored = json.loads((tmp_path / "metrics.json").read_text())
    assert stored["images"] == direct["images"]
    for name in ("max_box_acc", "max_box_acc_v2"):
        assert stored["maps"]["cam"][name] == direct["maps"]["fcam"][name]


@pytest.mark.parametrize(
    ("ids", "below"),
    [
        ({"test": "test/a.jpg", "val": "val/a.jpg"}, {"test": "", "val": ""}),  # a plain folder's
        ({"test": "val/a.jpg", "val": "val2/a.jpeg"}, {"test": ""}),  # ILSVRC's: test is its val
        ({"test": "val/a.jpg", "val": "val2/a.jpeg"}, {"test": "", "val": ""}),
        (
            {"test": "test/a.jpg", "val": "val/a.jpg"},
            {"test": "test", "val": "val"},
        ),  # a folder for each split
        ({"test": "a.jpg", "val": "b.jpg"}, {"test": "test"}),
    ],
)
def test_maps_are_found_whatever_the_ids_begin_with(tmp_path, ids, below):
    for split, image_id in ids.items():
        rows = (image_id, f"{image_id},0", f"{image_id},20,20", f"{image_id},0,0,10,10")
        for name, row in zip(LISTS, rows, strict=True):
            (tmp_path / "metadata" / split).mkdir(parents=True, exist_ok=True)
            (tmp_path / "metadata" / split / f"{name}.txt").write_text(row + "\n")
    square = torch.zeros(1, 224, 224)
    square[:, :112, :112] = 1.0
    for split, folder in below.items():
        write_maps(tmp_path / "maps" / folder, {"": square}, [ids[split]])
    report = evaluate_map_files(tmp_path / "maps", tmp_path / "metadata", "test")
    assert report["maps"]["cam"]["max_box_acc"]["0.5"] == 100
    assert bool(report["maps"]["cam"].get("transferred")) == ("val" in below)


@pytest.mark.parametrize("start", ["../photos/", "{photos}/", "a/../../photos/", "..\\photos\\"])
def test_maps_are_neither_saved_nor_scored_outside_their_folder(
    start, tiny_run, drawn_set, tmp_path, monkeypatch, capsys
):
    root, photos, maps = tmp_path / "lists", tmp_path / "photos", tmp_path / "maps"
    shutil.copytree(drawn_set, photos)
    shutil.copytree(drawn_set / "metadata", root / "metadata")
    (root / "a").mkdir()
    for path in root.rglob("*/*/*.txt"):
        lines = path.read_text().splitlines()
        path.write_text("".join(f"{start.format(photos=photos)}{line}\n" for line in lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fcam.evaluate.evaluate_split", lambda *_, **__: pytest.fail("hours would be lost"))
    before = set(tmp_path.rglob("*"))
    assert main(["evaluate", str(tiny_run), "--data", str(root), "--save-maps", str(maps)]) == 2
    words = "images/test/00/0000.jpg would lie outside the folder of maps; write the lists' ids relative"
    assert words in capsys.readouterr().err
    assert set(tmp_path.rglob("*")) == before
    (maps / "a").mkdir(parents=True)
    # Maps that an earlier version left there.
    for line in (root / "metadata/test/image_ids.txt").read_text().splitlines():
        np.save(maps / f"{line}.npy".replace("\\", "/"), np.zeros((64, 64), np.float32))
    assert main(["evaluate", "--maps", str(maps), "--metadata", str(root / "metadata")]) == 2
    assert words in capsys.readouterr().err


def test_which_ids_lead_out_of_their_folder(tmp_path):
    windows = ("C:/a.jpg", r"C:\a.jpg", r"\\host\share\a.jpg", r"a\..\..\b.jpg")
    for image_id in ("/a.jpg", "..", "../a.jpg", "a/../../a.jpg", *windows):
        assert leads_out(image_id)
        with pytest.raises(FcamError, match=r"outside the folder of maps; write the lists' ids relative"):
            write_maps(tmp_path, {"cam": torch.zeros(1, 4, 4)}, [image_id])
    assert not list(tmp_path.iterdir())
    for image_id in (
        "a.jpg",
        "test/a.jpg",
        "..a.jpg",
        "a/../b.jpg",
        "./a.jpg",
        "1:2.jpg",
        "a..",
        ".../a.jpg",
    ):
        assert not leads_out(image_id)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "metrics.json"),
        ({"data": "own/birds"}, "metrics.json"),
        ({"data": "now/birds"}, "metrics-test-birds.json"),
        ({"data": "now/plants"}, "metrics-test-plants.json"),
        ({"split": "val"}, "metrics-val.json"),
        ({"split": "val", "method": "layercam"}, "metrics-val-layercam.json"),
        ({"size": 64, "method": "cam"}, "metrics.json"),
        ({"size": 32, "precision": "bf16"}, "metrics-test-32-bf16.json"),
        ({"ways": Ways(zoom=True, product=True)}, "metrics-test-product-zoom.json"),
        ({"ways": Ways(flip=True), "split": "val", "size": 32}, "metrics-val-32-flip.json"),
    ],
)
def test_other_numbers_are_kept_apart_from_the_runs_own(tmp_path, monkeypatch, changed, name):
    monkeypatch.chdir(tmp_path)
    for place in ("own/birds", "now/birds", "now/plants"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "config.yaml").write_text("data: own/birds\n")
    metadata = {"method": "cam", "training": {"crop": 64}}
    config = EvaluateConfig(**changed)
    assert file_name(config, differences(config, metadata, tmp_path)) == name
    (tmp_path / "own/birds").rmdir()  # a set that has moved is still the run's
    moved = EvaluateConfig(data="now/birds")
    assert file_name(moved, differences(moved, metadata, tmp_path)) == "metrics.json"


def test_classes_of_other_names_are_doubted(tiny_run, drawn_set, tmp_path, capsys):
    root = tmp_path / "set"
    shutil.copytree(drawn_set, root)
    names = next(root.rglob("classes.txt"))
    names.write_text("".join(f"{line}s\n" for line in names.read_text().splitlines()))
    arguments = ["--out", str(tmp_path / "numbers.json"), "--workers", "0"]
    assert main(["evaluate", str(tiny_run), "--data", str(root), *arguments]) == 0
    assert "have other names than the model's: 0 is" in capsys.readouterr().err
    assert main(["evaluate", str(tiny_run), *arguments]) == 0
    assert "other names" not in capsys.readouterr().err


def test_the_home_folder_is_found_behind_an_equals_sign(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["evaluate", str(tiny_run), "--out=~/numbers.json", "--workers=0"]) == 0
    assert (tmp_path / "numbers.json").is_file()


def test_mistakes_of_an_evaluation_are_named(tiny_run, tmp_path, capsys):
    assert main(["evaluate", str(tiny_run), "--workers", "-1"]) == 2
    assert "--workers is -1; take 0 or more" in capsys.readouterr().err
    shutil.copytree(tiny_run, tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text("data: gone/away\n")
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    assert "was trained on gone/away, which is not there; say where" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert (
        main(["evaluate", str(tiny_run), "--workers", "0", "--out", str(tmp_path / "file" / "a.json")]) == 2
    )
    assert "a file stands where a folder belongs" in capsys.readouterr().err


def test_a_model_of_other_classes_is_not_evaluated(tiny_run, shared, capsys):
    assert main(["evaluate", str(tiny_run), "--data", str(shared / "data/cub10")]) == 2
    assert "has 10, so its labels mean other classes" in capsys.readouterr().err


def test_two_processes_give_the_numbers_of_one(tiny_run, tmp_path):
    probe, out = tmp_path / "probe.py", tmp_path / "two.json"
    probe.write_text("from fcam.processes import process_state; print(process_state().num_processes)")
    assert "".join(in_two_processes(str(probe)).split()) == "22"  # lines of two processes may run together
    run = shutil.copytree(tiny_run, tmp_path / "run")
    arguments = ["evaluate", str(run), "--product", "--zoom", "--workers", "0", "--out"]
    in_two_processes("-m", "fcam", *arguments, str(out))
    assert main([*arguments, str(tmp_path / "one.json")]) == 0
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "two.json"))
    assert list(one["maps"]) == ["cam", "fcam", "product", "product+zoom", "center"]
    assert one["maps"]["fcam"] == json.loads((tiny_run / "metrics.json").read_text())["maps"]["fcam"]
    assert two["images"] == one["images"]
    for kind, row in one["maps"].items():
        assert two["maps"][kind]["max_box_acc"] == row["max_box_acc"]
        assert two["maps"][kind]["pxap"] == pytest.approx(row["pxap"], abs=1e-3)
    assert two["classification"] == pytest.approx(one["classification"])
