"""The simulation of low resolution: values known for three public masks, and what it refuses."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image

from fcam.cli import main
from fcam.errors import FcamError
from fcam.simulate import command
from fcam.simulate.command import as_markdown, draw
from fcam.simulate.simulation import Truth, _boxes, low_resolution, simulate, truths_of_folder

SAMPLED = {1: 100, 2: 100, 4: 99.95, 8: 99.90, 16: 96.15, 32: 84.50}
AVERAGED = {1: 100, 2: 100, 4: 100, 8: 99.98, 16: 99.54, 32: 97.84}


def test_known_values_of_three_public_masks(shared):
    truths, total = truths_of_folder(shared / "golden" / "masks", 224)
    result = simulate(truths, tuple(SAMPLED))
    assert (total, result["images"], result["side"]) == (3, 3, 224)
    for row in result["curve"]:
        assert row["pxap"]["sampled"] == pytest.approx(SAMPLED[row["z"]], abs=0.01)
        assert row["pxap"]["averaged"] == pytest.approx(AVERAGED[row["z"]], abs=0.01)
    assert result["curve"][0]["max_box_acc"] == {"sampled": 100, "averaged": 100}


def test_masks_of_one_image_are_joined_and_ignored_pixels_kept_out(shared):
    truths = list(truths_of_folder(shared / "golden" / "masks", 224)[0])
    counts = [tuple(int((truth.mask == value).sum()) for value in (1, 0, 255)) for truth in truths]
    assert counts == [(43031, 7145, 0), (833, 49343, 0), (347, 13910, 35919)]


def test_averaging_keeps_what_sampling_loses():
    masks = torch.zeros(1, 64, 64)
    masks[:, 10:12, 10:12] = 1  # between the pixels that sampling by 16 reads
    assert low_resolution(masks, 16, "sampled").max() == 0
    assert low_resolution(masks, 16, "averaged").max() > 0
    assert torch.equal(low_resolution(masks, 1, "sampled"), masks)
    assert low_resolution(masks, 1000, "averaged").unique().numel() == 1


def test_boxes_of_the_data_set_are_used_where_it_has_them():
    mask = torch.zeros(64, 64, dtype=torch.uint8)
    mask[8:24, 8:24] = 1
    right, wrong = torch.tensor([[8, 8, 23, 23]]), torch.tensor([[40, 40, 60, 60]])
    scores = [
        simulate([Truth(mask, boxes)], (1,))["curve"][0]["max_box_acc"]["sampled"]
        for boxes in (None, right, wrong)
    ]
    assert scores == [100, 100, 0]


def test_images_without_a_mask_are_left_out():
    mask = torch.zeros(64, 64, dtype=torch.uint8)
    mask[8:24, 8:24] = 1
    boxes = torch.tensor([[8, 8, 23, 23]])
    unknown = Truth(torch.full_like(mask, 255), boxes)
    result = simulate([unknown, Truth(mask, boxes), unknown], (1,))
    assert (result["images"], result["without_mask"], result["images_with_boxes"]) == (1, 2, 1)
    assert result["curve"][0]["max_box_acc"] == {"sampled": 100, "averaged": 100}
    assert "of 1 images" in as_markdown({**result, "masks": "m", "runs": []})
    assert "2 more without a mask are left out" in as_markdown({**result, "masks": "m", "runs": []})
    with pytest.raises(FcamError, match="0 masks"):
        simulate([unknown], (1,))


def test_names_that_only_look_like_parts_of_one_image_are_images_of_their_own(tmp_path):
    part = np.zeros((16, 16), np.uint8)
    names = ["cat_mask_20230101", "cat_mask_20230102", "dog_m_00000001", "0" * 16 + "_m_night_20230101"]
    objects = ["0123456789abcdef_m0bt_c3_6932e993", "0123456789abcdef_m0bt_c3_3581e3ae"]
    for row, name in enumerate([*names, *objects]):
        part[:] = 0
        part[row] = 255
        Image.fromarray(part).save(tmp_path / f"{name}.png")
    truths, total = truths_of_folder(tmp_path, 16)
    assert total == 5
    assert sorted(int((truth.mask == 1).sum()) for truth in truths) == [16, 16, 16, 16, 32]


@pytest.mark.parametrize("factors", [(), (0.5,)])
def test_factors_below_one_are_refused(factors):
    with pytest.raises(FcamError, match="at least 1"):
        simulate([], factors)


def test_masks_without_objects_are_refused(tmp_path):
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(FcamError, match="no object"):
        simulate(truths_of_folder(tmp_path, 16)[0])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FcamError, match="holds no masks"):
        truths_of_folder(tmp_path / "empty", 16)


def test_the_command_leaves_numbers_table_and_figure(drawn_set, tiny_run, tmp_path, capsys):
    out = tmp_path / "simulation"
    arguments = [
        "simulate",
        "--data",
        str(drawn_set),
        "--out",
        str(out),
        "--size",
        "64",
        "--z",
        "1",
        "4",
        "16",
    ]
    assert main([*arguments, "--runs", str(tiny_run)]) == 0
    result = json.loads((out / "simulation.json").read_text())
    assert [row["z"] for row in result["curve"]] == [1, 4, 16]
    assert result["boxes"] == "the data set"
    assert result["runs"][0]["maps"]["cam"]["z"] == 16
    assert result["runs"][0]["maps"]["fcam"]["z"] == 1
    values = [row["pxap"]["averaged"] for row in result["curve"]]
    assert values == sorted(values, reverse=True)
    assert "| 16 | 4x4 |" in (out / "simulation.md").read_text()
    with Image.open(out / "simulation.png") as picture:
        assert picture.width > 1000
    assert main(["simulate", "--data", str(drawn_set), "--runs", str(tiny_run)]) == 2
    assert "was scored at 64 pixels a side, the masks would be at 224" in capsys.readouterr().err
    assert main([*arguments, "--split", "val", "--runs", str(tiny_run)]) == 2
    assert "separate figures" in capsys.readouterr().err


def test_where_nothing_can_be_written_is_said_before_the_work(drawn_set, tmp_path, capsys, monkeypatch):
    (tmp_path / "taken").write_text("mine")
    monkeypatch.setattr(command, "simulate", lambda *_: pytest.fail("worked in vain"))
    assert main(["simulate", "--data", str(drawn_set), "--out", str(tmp_path / "taken")]) == 2
    assert "taken" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "mine"


def test_names_are_drawn_as_they_are(tmp_path):
    names = ["m$x_{a$", os.fsdecode(b"m\xff")]  # no formula, and no UTF-8
    score = {"pxap": 50.0, "max_box_acc": 50.0}
    for place, name in enumerate(names):
        (tmp_path / name).mkdir()
        Image.fromarray(np.eye(16, dtype=np.uint8) * 255).save(tmp_path / name / "a.png")
        out = tmp_path / str(place)
        given = ["--masks", str(tmp_path / name), "--size", "16", "--z", "1", "2"]
        assert main(["simulate", *given, "--out", str(out)]) == 0
        result = json.loads((out / "simulation.json").read_text())
        assert result["masks"] == name
        runs = [{"run": run, "maps": {"cam": {"z": 2, **score}}} for run in names]
        draw({**result, "runs": runs}, out / "runs.png")
        for picture in ("simulation.png", "runs.png"):
            with Image.open(out / picture) as drawn:
                assert drawn.width > 1000


def test_mistakes_are_named(shared, tmp_path, capsys):
    assert main(["simulate"]) == 2
    assert "--masks" in capsys.readouterr().err
    assert main(["simulate", "--masks", str(tmp_path), "--runs", str(tmp_path)]) == 2
    assert "not the folder of a run" in capsys.readouterr().err
    if (shared / "data" / "cub10").is_dir():
        assert main(["simulate", "--data", str(shared / "data" / "cub10")]) == 2
        assert "no masks" in capsys.readouterr().err


def test_a_hole_of_a_mask_is_no_object():
    ring = torch.zeros(64, 64, dtype=torch.uint8)
    ring[8:56, 8:56] = 1
    ring[20:40, 20:40] = 0
    torch.testing.assert_close(_boxes(Truth(ring, None)), torch.tensor([[8, 8, 56, 56]]))
    torch.testing.assert_close(_boxes(Truth(torch.ones_like(ring), None)), torch.tensor([[0, 0, 63, 63]]))
    assert len(_boxes(Truth(torch.zeros_like(ring), None))) == 0
