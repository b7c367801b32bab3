"""Folder runs: bad files, names, interruption and resumption, bounded memory, exit codes."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import struct
import zlib
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image, ImageDraw

from fcam.errors import FcamError
from fcam.model import FCAM
from fcam.predict import command as predict_command
from fcam.predict import folder as predict_folder
from fcam.predict import output as predict_output
from fcam.predict.command import PredictConfig, run_predict, settings_of
from fcam.predict.folder import FolderResult, predict_files
from fcam.predict.localizer import Localizer
from fcam.predict.output import Journal, Outputs, load_predictions, name_outputs
from planted import Planted

RED = (255, 20, 20)


def localizer(**options: Any) -> Localizer:
    options = {"size": 64, "batch_size": 3, **options}
    return Localizer(cast(FCAM, Planted(classes=["red", "green", "blue"])), **options)


def photo(path: Path, size: tuple[int, int] = (120, 80), mode: str = "RGB", **save: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, (60, 60, 60))
    ImageDraw.Draw(image).rectangle((size[0] // 4, size[1] // 4, size[0] // 2, size[1] // 2), fill=RED)
    image.convert(mode).save(path, **save)
    return path


def photos(folder: Path, count: int) -> list[Path]:
    return [photo(folder / f"{i:03}.jpg") for i in range(count)]


def bomb(path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")))


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder with every kind of good and bad file."""
    root = tmp_path / "photos"
    photo(root / "plain.jpg")
    photo(root / "ünï 日本 (1).JPG")
    photo(root / "grey.png", mode="L")
    photo(root / "cmyk.jpg", mode="CMYK")
    photo(root / "palette.gif", mode="P")
    Image.new("RGBA", (30, 40), (255, 20, 20, 90)).save(root / "alpha.png")
    Image.fromarray(np.full((40, 50), 40000, np.uint16)).save(root / "deep.png")
    Image.new("RGB", (1, 1), RED).save(root / "one.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    photo(root / "turned.jpg", exif=exif)
    photo(root / "folder.jpg" / "inside.jpg")
    whole = photo(root / "whole.jpg", (300, 300)).read_bytes()
    (root / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "text.jpg").write_text("not a photo")
    (root / "empty.jpg").touch()
    bomb(root / "bomb.png")
    (root / "dangling.jpg").symlink_to(root / "nowhere")
    os.mkfifo(root / "pipe.jpg")
    return root


BAD = {
    "truncated.jpg": "truncated",
    "text.jpg": "not an image",
    "empty.jpg": "empty",
    "bomb.png": "60000x60000",
    "dangling.jpg": "does not exist",
    "pipe.jpg": "not a regular file",
}


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a model that `run_predict` loads: the planted one."""
    monkeypatch.setattr(
        FCAM, "from_pretrained", lambda source, classifier=None: Planted(classes=["red", "green", "blue"])
    )
    return str(tmp_path / "run")


def config(saved: str, root: Path, out: Path, *more: str, **options: Any) -> PredictConfig:
    return PredictConfig((str(root), *more), saved, out, size=64, **options)


def test_good_photos_are_done_and_bad_ones_listed(mixed: Path, tmp_path: Path, saved: str) -> None:
    out = tmp_path / "out"
    code = run_predict(config(saved, mixed, out, str(tmp_path / "missing.jpg"), npy=True, with_cam=True))
    assert code == 1
    whole = load_predictions(out)
    reasons = {Path(row["path"]).name: row["reason"] for row in whole["failed"]}
    assert set(reasons) == {*BAD, "missing.jpg"}
    for name, words in BAD.items():
        assert words in reasons[name]
    assert len(whole["predictions"]) == 11
    for row in whole["predictions"]:
        size = (row["width"], row["height"])
        for kind in ("overlays", "masks", "heatmaps"):
            assert Image.open(out / row["files"][kind]).size == size
        assert np.load(out / row["files"]["maps"]).shape == size[::-1]
        assert Image.open(out / row["files"]["panels"]).format == "JPEG"
        assert 0 <= row["score"] <= 1
    sizes = {row["file"]: (row["width"], row["height"]) for row in whole["predictions"]}
    assert sizes["turned.jpg"] == (80, 120)
    assert sizes["one.png"] == (1, 1)
    assert sizes["folder.jpg/inside.jpg"] == (120, 80)
    assert not list(out.rglob(".*")), "temporary files are left behind"
    assert not (out / "predictions.jsonl").exists()


def test_the_mask_can_be_cut_again_from_the_heat_map(tmp_path: Path) -> None:
    path = photo(tmp_path / "a.jpg", (400, 300))
    row = predict_files(localizer(threshold=0.3), [path], tmp_path / "out").rows[0]
    level = np.asarray(Image.open(tmp_path / "out" / row["files"]["heatmaps"]))
    mask = np.asarray(Image.open(tmp_path / "out" / row["files"]["masks"]))
    np.testing.assert_array_equal(mask == 255, level > int(0.3 * int(level.max())))
    x0, y0, x1, y1 = row["boxes"][0]
    np.testing.assert_allclose((x0, y0, x1, y1), (100, 75, 200, 150), atol=6)
    assert mask[y0:y1, x0:x1].any(1).all()
    deep = predict_files(localizer(), [path], tmp_path / "deep", Outputs(heatmaps=16)).rows[0]
    assert np.asarray(Image.open(tmp_path / "deep" / deep["files"]["heatmaps"])).max() > 60000


def test_names_never_collide(tmp_path: Path) -> None:
    relative = ("a/x.jpg", "b/x.jpg", "a/x.png", "a/X.webp", "a/x_png.jpg")
    files = [photo(tmp_path / name, (40, 40)) for name in relative]
    result = predict_files(localizer(), files, tmp_path / "out")
    names = [row["name"] for row in result.rows]
    assert names[:3] == ["a/x", "b/x", "a/x_png"]
    assert len({name.casefold() for name in names}) == 5
    assert [row["file"] for row in result.rows] == [str(f.relative_to(tmp_path)) for f in files]
    assert len(list((tmp_path / "out" / "masks").rglob("*.png"))) == 5


def test_a_folder_named_like_an_output_is_no_obstacle(tmp_path: Path) -> None:
    relative = ("a.jpg", "a.PNG/q.jpg", "b.png", "b.jpg/c/q.jpg", "c.png", "c.txt/q.jpg")
    files = [photo(tmp_path / name, (40, 40)) for name in relative]
    result = predict_files(localizer(), files, tmp_path / "out", Outputs(panels=True, maps=True))
    assert [row["name"] for row in result.rows] == [
        "a_jpg",
        "a.PNG/q",
        "b_png",
        "b.jpg/c/q",
        "c_png",
        "c.txt/q",
    ]
    assert all((tmp_path / "out" / file).is_file() for row in result.rows for file in row["files"].values())


def test_a_photo_named_twice_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo(tmp_path / "x.jpg")
    monkeypatch.chdir(tmp_path)
    assert len(predict_files(localizer(), ["x.jpg", tmp_path / "x.jpg", "./x.jpg"], "out").rows) == 1


def test_outputs_of_a_run_before_are_not_taken_for_photos(tmp_path: Path, saved: str) -> None:
    photos(tmp_path, 2)
    for _ in range(2):
        assert run_predict(config(saved, tmp_path, tmp_path / "out")) == 0
        assert len(load_predictions(tmp_path / "out")["predictions"]) == 2


def test_folders_of_others_are_not_written_into(tmp_path: Path, saved: str) -> None:
    photos(tmp_path, 1)
    truth = tmp_path / "masks" / "000.png"
    photo(truth)
    before = truth.read_bytes()
    with pytest.raises(FcamError, match="masks exists"):
        run_predict(config(saved, tmp_path, tmp_path))
    assert truth.read_bytes() == before


def test_nothing_to_do_is_a_sentence(tmp_path: Path, saved: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FcamError, match="no image"):
        run_predict(config(saved, tmp_path / "empty", tmp_path / "out"))
    with pytest.raises(FcamError, match="does not exist"):
        run_predict(config(saved, tmp_path / "nowhere", tmp_path / "out"))
    several = dataclasses.replace(
        config(saved, tmp_path, tmp_path / "out"), photos=(str(tmp_path / "one"), str(tmp_path / "two"))
    )
    with pytest.raises(FcamError, match="one: it does not exist; .*two: it does not exist"):
        run_predict(several)
    assert not (tmp_path / "out").exists()


def test_out_that_cannot_be_written_to_is_a_sentence(tmp_path: Path, saved: str) -> None:
    photos(tmp_path / "in", 1)
    (tmp_path / "file").touch()
    with pytest.raises(FcamError, match="is a file"):
        run_predict(config(saved, tmp_path / "in", tmp_path / "file"))
    with pytest.raises(FcamError, match="cannot make the folder"):
        run_predict(config(saved, tmp_path / "in", tmp_path / "file" / "below"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_valid_list_and_resume_does_the_rest(tmp_path: Path, number: int) -> None:
    files = photos(tmp_path / "in", 40)
    before = signal.getsignal(number)

    def interrupt(done: int) -> None:
        if done == 5:
            os.kill(os.getpid(), number)

    result = predict_files(localizer(), files, tmp_path / "out", on_photo=interrupt)
    assert signal.getsignal(number) is before
    assert result.interrupted == number
    assert 5 <= len(result.rows) < 40
    whole = load_predictions(tmp_path / "out")
    assert whole["interrupted"] is True
    assert len(whole["predictions"]) == len(list((tmp_path / "out" / "masks").iterdir()))
    kept = {row["name"]: (tmp_path / "out" / row["files"]["masks"]).stat().st_mtime_ns for row in result.rows}

    again = predict_files(localizer(), files, tmp_path / "out", resume=True)
    assert again.resumed == len(kept)
    assert [row["path"] for row in again.rows] == [str(file) for file in files]
    for name, time in kept.items():
        assert (tmp_path / "out" / "masks" / f"{name}.png").stat().st_mtime_ns == time
    assert load_predictions(tmp_path / "out")["interrupted"] is False


def killed(out: Path, rows: list[dict[str, Any]], torn: str) -> None:
    """Put `out` into the state that a kill leaves: a journal whose last line is cut short, no final list."""
    whole = json.loads((out / "predictions.json").read_text())
    lines = [json.dumps(line) + "\n" for line in ({"settings": whole["settings"]}, *rows)]
    (out / "predictions.jsonl").write_text("".join(lines) + torn)
    (out / "predictions.json").unlink()


def test_resume_after_a_kill(tmp_path: Path) -> None:
    files, out = photos(tmp_path / "in", 8), tmp_path / "out"
    rows = predict_files(localizer(), files, out, settings={"threshold": 0.5}).rows
    killed(out, rows[:5], json.dumps(rows[5])[:-30])
    (out / rows[2]["files"]["masks"]).unlink()
    (out / "masks" / ".0123456789ab.png").write_bytes(b"half a fi")
    result = predict_files(localizer(), files, out, settings={"threshold": 0.5}, resume=True)
    assert result.resumed == 4, "of five rows one lacks a file"
    assert result.rows == rows
    assert not list((out / "masks").glob(".*"))


def test_resume_knows_photos_by_any_spelling(tmp_path: Path, monkeypatch) -> None:
    files, out = photos(tmp_path / "in", 3), tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    predict_files(localizer(), [os.path.relpath(path) for path in files[:2]], out)
    again = predict_files(localizer(), files, out, resume=True)
    assert again.resumed == 2
    assert [os.path.abspath(row["path"]) for row in again.rows] == [str(path) for path in files]
    assert len(list((out / "masks").iterdir())) == 3


def test_resume_knows_photos_from_another_folder_and_through_links(tmp_path: Path, monkeypatch) -> None:
    files, out = photos(tmp_path / "in" / "b", 3), tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    predict_files(localizer(), [Path("in", "b", file.name) for file in files], out)
    monkeypatch.chdir(tmp_path / "in")
    again = predict_files(localizer(), [Path("b", file.name) for file in files], out, resume=True)
    (tmp_path / "link").symlink_to(tmp_path / "in" / "b")
    through = [tmp_path / "link" / file.name for file in files]
    linked = predict_files(localizer(), through, out, resume=True)
    for result, paths in ((again, files), (linked, through)):
        assert (result.resumed, result.others) == (3, 0)
        assert [row["path"] for row in result.rows] == [str(path) for path in paths]
    assert len(list((out / "masks").iterdir())) == 3


def test_resume_with_more_photos_keeps_one_common_folder(tmp_path: Path) -> None:
    first, second = photos(tmp_path / "in" / "a", 2), photos(tmp_path / "in" / "b", 2)
    out = tmp_path / "out"
    predict_files(localizer(), second, out)
    both = predict_files(localizer(), [*first, *second], out, resume=True)
    expected = [path.relative_to(tmp_path / "in").as_posix() for path in [*first, *second]]
    assert [row["file"] for row in both.rows] == expected
    part = predict_files(localizer(), first, out, resume=True)
    assert (part.resumed, part.others) == (4, 2)
    assert [row["file"] for row in part.rows] == expected


def test_resume_knows_a_model_by_its_weights(tmp_path: Path) -> None:
    files, out = photos(tmp_path / "in", 2), tmp_path / "out"
    before = {"model": "runs/birds", "weights": "ab12"}
    predict_files(localizer(), files[:1], out, settings=before)
    moved = before | {"model": "/data/runs/birds"}
    assert predict_files(localizer(), files, out, settings=moved, resume=True).resumed == 1
    with pytest.raises(FcamError, match="weights = 'ab12', now it is 'cd34'"):
        predict_files(localizer(), files, out, settings=moved | {"weights": "cd34"}, resume=True)
    whole = json.loads((out / "predictions.json").read_text())
    del whole["settings"]["weights"]  # as lists were written before weights stood in them
    (out / "predictions.json").write_text(json.dumps(whole))
    assert predict_files(localizer(), files, out, settings=moved, resume=True).resumed == 2
    del whole["settings"]["model"]
    (out / "predictions.json").write_text(json.dumps(whole))
    with pytest.raises(FcamError, match="model"):
        predict_files(localizer(), files, out, settings=before, resume=True)


def test_settings_tell_a_model_that_was_trained_again(tmp_path: Path) -> None:
    first, second = localizer(), localizer()
    config = PredictConfig((str(tmp_path),))
    assert settings_of(config, first) == settings_of(config, second)
    cast(Planted, second.model).fc.weight.data[0, 0] += 1
    told = {
        key for key, value in settings_of(config, first).items() if settings_of(config, second)[key] != value
    }
    assert told == {"weights"}


def test_settings_tell_where_a_closer_look_was_taken(tmp_path: Path) -> None:
    model = localizer().model
    model.metadata = {
        "thresholds": {
            kind: {"max_box_acc": {"0.5": cut}} for kind, cut in {"fcam": 0.3, "fcam+zoom": 0.6}.items()
        }
    }
    config = PredictConfig((str(tmp_path),))
    own, asked = (settings_of(config, Localizer(model, cut, size=64, zoom=True)) for cut in (None, 0.6))
    assert own["threshold"] == asked["threshold"] == 0.6
    assert {key for key, value in own.items() if asked[key] != value} == {"first_cut"}


def test_settings_name_the_cam_where_it_shows() -> None:
    model = localizer().model
    config = PredictConfig(("photo.jpg",), model="a")
    plain, product = (
        settings_of(config, Localizer(model, size=64, cam_method="gradcam", product=on))
        for on in (False, True)
    )
    panels = settings_of(dataclasses.replace(config, with_cam=True), Localizer(model, size=64))
    assert "cam_method" not in plain
    assert (product["cam_method"], panels["cam_method"]) == ("gradcam", "cam")


def test_resume_with_other_settings_is_refused(tmp_path: Path) -> None:
    files, out = photos(tmp_path / "in", 1), tmp_path / "out"
    predict_files(localizer(), files, out, settings={"threshold": 0.5})
    with pytest.raises(FcamError, match=r"threshold = 0\.5, now it is 0\.6"):
        predict_files(localizer(), files, out, settings={"threshold": 0.6}, resume=True)
    assert len(load_predictions(out)["predictions"]) == 1


def test_a_full_disk_ends_the_run_and_keeps_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, out = photos(tmp_path / "in", 20), tmp_path / "out"
    real = predict_output.save

    def full(prediction: Any, named: Any, *rest: Any) -> dict[str, Any]:
        if named.file == "007.jpg":
            raise FcamError("cannot write 007.png: No space left on device")
        return real(prediction, named, *rest)

    monkeypatch.setattr(predict_folder, "save", full)
    with pytest.raises(FcamError, match="No space left on device; resume keeps what is done"):
        predict_files(localizer(), files, out)
    rows = load_predictions(out)["predictions"]
    assert 0 < len(rows) < 20
    assert all((out / file).is_file() for row in rows for file in row["files"].values())


def test_a_list_that_cannot_grow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        """A stream on a full disk: nothing that was written can be flushed, not even when it is closed."""

        def write(self, text: str) -> None: ...

        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        close = flush

    files, out = photos(tmp_path / "in", 2), tmp_path / "out"
    real = Journal.__init__

    def full(self: Journal, *arguments: Any) -> None:
        real(self, *arguments)
        self._stream.close()
        self._stream = Full()  # type: ignore[assignment]

    monkeypatch.setattr(Journal, "__init__", full)
    with pytest.raises(FcamError, match=r"predictions\.jsonl: No space left on device; resume"):
        predict_files(localizer(), files, out)


def test_a_photo_that_breaks_finish_is_one_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = photos(tmp_path / "in", 6)
    real = Localizer.finish

    def fragile(self: Localizer, image: Any, output: Any, source: str | None = None) -> Any:
        if source is not None and source.endswith("003.jpg"):
            raise MemoryError("too large")
        return real(self, image, output, source)

    monkeypatch.setattr(Localizer, "finish", fragile)
    result = predict_files(localizer(), files, tmp_path / "out")
    assert [row["reason"] for row in result.failed] == ["MemoryError: too large"]
    assert len(result.rows) == 5


@pytest.mark.parametrize("budget", [1, 20_000, 10**9])
def test_pixels_in_flight_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    files = photos(tmp_path / "in", 30)
    monkeypatch.setattr(predict_folder, "PIXELS_IN_FLIGHT", budget)
    monkeypatch.setattr(predict_folder, "LARGE", 100)
    seen: list[int] = []
    run_class = predict_folder._Run
    real = run_class._weight

    def watched(self: Any, path: Path) -> int:
        seen.append(self.in_flight)
        return real(self, path)

    monkeypatch.setattr(run_class, "_weight", watched)
    assert len(predict_files(localizer(batch_size=8), files, tmp_path / "out", workers=2).rows) == 30
    assert max(seen) < max(budget, 1)
    assert max(seen) <= 20 * 120 * 80, "and so is the number of photos"


def test_shapes_that_differ_go_in_batches_of_their_own(tmp_path: Path) -> None:
    files = [photo(tmp_path / f"{i}.jpg", (200, 100) if i % 3 else (100, 200)) for i in range(9)]
    result = predict_files(localizer(keep_aspect=True), files, tmp_path / "out")
    assert [(row["width"], row["height"]) for row in result.rows] == [
        (200, 100) if i % 3 else (100, 200) for i in range(9)
    ]


def test_only_what_is_asked_for_is_written(tmp_path: Path) -> None:
    outputs = Outputs(overlays=False, masks=False, heatmaps=0, maps=True)
    row = predict_files(localizer(), photos(tmp_path / "in", 1), tmp_path / "out", outputs).rows[0]
    assert list(row["files"]) == ["maps"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["maps", "predictions.json"]


def test_names_stay_short_enough_for_files():
    long = "é" * 125  # 250 bytes
    paths = [Path(f"/photos/a/{long}.jpg"), Path(f"/photos/a/{long}.png"), Path("/photos/b") / ("x" * 255)]
    names = [named.name for named in name_outputs(paths)]
    assert names == [f"a/{long}", f"a/{'é' * 123}_png", f"b/{'x' * 251}"]
    assert all(len(f"{name}.png".rpartition("/")[2].encode()) <= 255 for name in names)


def test_naming_without_a_common_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def apart(paths: Any) -> str:
        raise ValueError("Paths don't have the same drive")

    monkeypatch.setattr(os.path, "commonpath", apart)
    named = name_outputs([Path("/c/x.jpg"), Path("/d/x.jpg"), Path("/e/x.jpg"), Path("/f/x.jpg")])
    assert [n.name for n in named] == ["x", "x_jpg", "x_jpg_2", "x_jpg_3"]


def test_export_and_exit_code_zero(tmp_path: Path, saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    photos(tmp_path / "in", 2)
    out = tmp_path / "out"
    assert run_predict(config(saved, tmp_path / "in", out, export=("coco", "yolo", "voc"))) == 0
    assert len(json.loads((out / "coco.json").read_text())["annotations"]) == 2
    assert (out / "labels" / "000.txt").read_text().startswith("0 ")
    assert (out / "Annotations" / "001.xml").is_file()
    assert "2 of 2 done" in capsys.readouterr().err


def test_an_interrupted_command_says_how_to_go_on(
    tmp_path: Path, saved: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photos(tmp_path / "in", 1)
    stopped = FolderResult([], [], interrupted=signal.SIGINT)
    monkeypatch.setattr(predict_command, "predict_files", lambda *args, **kwargs: stopped)
    assert run_predict(config(saved, tmp_path / "in", tmp_path / "out")) == 130
    assert "--resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [({"threshold": 1.5}, "1.5"), ({"min_score": 2.0}, "2.0"), ({"workers": 0}, "0")],
)
def test_bad_options_are_refused_first(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(FcamError, match=words):
        run_predict(PredictConfig((str(tmp_path),), "no model", tmp_path / "out", **options))


def test_a_broken_list_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "predictions.json").write_text("{")
    with pytest.raises(FcamError, match="cannot read"):
        load_predictions(tmp_path)
    with pytest.raises(FcamError, match="cannot read"):
        predict_files(localizer(), photos(tmp_path / "in", 1), tmp_path, resume=True)
    (tmp_path / "predictions.json").write_text('["other"]')
    with pytest.raises(FcamError, match="is not a list that fcam predict wrote"):
        load_predictions(tmp_path)


def test_photos_with_odd_bytes_in_names(
    tmp_path: Path, saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    photo(folder / "a.jpg")
    odd = os.fsencode(folder) + b"/odd\xff.jpg"
    shutil.copy(os.fsencode(folder / "a.jpg"), odd)
    (folder / "b\udcff.png").write_text("bad")
    (folder / "c\x1b[31m\n.png").write_text("bad")
    assert run_predict(config(saved, folder, tmp_path / "out")) == 1
    assert len(load_predictions(tmp_path / "out")["predictions"]) == 2
    said = capsys.readouterr().err
    assert "skipped" in said
    assert "\x1b" not in said
    assert "c\\x1b[31m .png: it is not" in said
