from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from fcam.data import open_dataset
from fcam.data.check import check
from fcam.data.synthetic import draw_image, draw_set
from fcam.errors import FcamError


def fingerprint(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_same_arguments_same_bytes_other_seed_other_pictures(tmp_path: Path) -> None:
    roots = [
        draw_set(tmp_path / name, images_per_class=(2, 1, 1), classes=2, seed=seed, size=64)
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    ]
    a, b, c = (fingerprint(root) for root in roots)
    assert a == b
    assert a.keys() == c.keys()
    images = [name for name in a if name.startswith("images/")]
    assert len(images) == 8
    assert all(a[name] != c[name] for name in images)


def test_the_body_and_the_ground_are_silent_about_the_class() -> None:
    drawings = [draw_image(label, 96, np.random.default_rng(5)) for label in range(12)]
    first = drawings[0]
    touched = draw_part_neighbourhood(first.part)
    for other in drawings[1:]:
        assert (other.mask == first.mask).all()
        assert (other.image[~touched] == first.image[~touched]).all()
        inside = np.abs(other.image[first.part].astype(int) - first.image[first.part]).mean()
        assert inside > 15


def draw_part_neighbourhood(part: np.ndarray) -> np.ndarray:
    """The head and one more pixel around it, where its edge is blended in."""
    grown = part.copy()
    for axis in (0, 1):
        for step in (-1, 1):
            grown |= np.roll(part, step, axis)
            grown |= np.roll(np.roll(part, step, axis), step, 1 - axis)
            grown |= np.roll(np.roll(part, step, axis), -step, 1 - axis)
    return grown


def test_objects_are_of_the_promised_sizes_and_inside_the_picture() -> None:
    drawings = [draw_image(k % 6, 128, np.random.default_rng(k)) for k in range(60)]
    shares = np.array([d.mask.mean() for d in drawings])
    assert shares.min() > 0.10
    assert shares.max() < 0.50
    assert shares.std() > 0.06
    parts = np.array([d.part.sum() / d.mask.sum() for d in drawings])
    assert parts.min() > 0.07
    assert parts.max() < 0.20
    for drawing in drawings:
        x0, y0, x1, y1 = drawing.box
        assert x0 > 0
        assert y0 > 0
        assert x1 < 128
        assert y1 < 128
        assert not (drawing.part & ~drawing.mask).any()
    centres = np.array([[(d.box[0] + d.box[2]) / 2, (d.box[1] + d.box[3]) / 2] for d in drawings])
    assert (centres.std(0) > 10).all()


def test_bodies_stand_off_from_the_ground_around_them() -> None:
    distances = []
    for k in range(30):
        drawing = draw_image(0, 128, np.random.default_rng(k))
        body = drawing.image[drawing.mask & ~drawing.part].astype(float).mean(0)
        distances.append(np.linalg.norm(body - drawing.image[~drawing.mask].astype(float).mean(0)))
    assert np.median(distances) > 70


def test_masks_and_boxes_in_the_lists_are_those_of_the_drawing(drawn: Path) -> None:
    dataset = open_dataset(drawn, "test", localization=True)
    assert dataset.classes == ["ring", "stripe", "checker"]
    for index in range(len(dataset)):
        item = dataset[index]
        rows, columns = np.nonzero(item["mask"].numpy() == 1)
        assert item["boxes"].tolist() == [[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]]
    again = draw_image(0, 72, np.random.default_rng((3, 7, 2, 0, 0)))
    assert (dataset[0]["mask"].numpy() == again.mask).all()
    assert np.abs(dataset[0]["image"].numpy().transpose(1, 2, 0).astype(int) - again.image).mean() < 6


def test_train_has_no_localization_at_all(drawn: Path) -> None:
    assert not (drawn / "masks" / "train").exists()
    for metadata in ("metadata", "metadata_masks"):
        assert (drawn / metadata / "train" / "localization.txt").read_text() == ""


def test_check_finds_nothing_wrong(drawn: Path) -> None:
    report = check(drawn)
    assert report.problems == []
    assert report.notes == []
    assert [(row.split, row.images, row.boxes, row.masks) for row in report.rows] == [
        ("train", 12, 0, 0),
        ("val", 6, 6, 6),
        ("test", 6, 6, 6),
    ]


def test_a_finished_set_is_kept_and_another_one_refused(drawn: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in drawn.rglob("*.jpg")}
    draw_set(drawn, images_per_class=(4, 2, 2), classes=3, seed=7, size=72)
    assert before == {path: path.stat().st_mtime_ns for path in drawn.rglob("*.jpg")}
    with pytest.raises(FcamError, match="other arguments"):
        draw_set(drawn, images_per_class=(4, 2, 2), classes=3, seed=8, size=72)
    (tmp_path / "metadata").mkdir()
    with pytest.raises(FcamError, match="another data set"):
        draw_set(tmp_path)


def test_an_interrupted_set_is_finished(wsol_set: Path) -> None:
    expected = fingerprint(wsol_set)
    (wsol_set / "metadata" / "test" / "image_ids.txt").unlink()
    (wsol_set / "images" / "test" / "00" / "0000.jpg").unlink()
    draw_set(wsol_set, images_per_class=(4, 2, 2), classes=3, seed=7, size=72)
    assert fingerprint(wsol_set) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"classes": 13}, "2 to 12 classes, got 13"),
        ({"images_per_class": (5, 0, 5)}, "at least 1"),
        ({"size": 32}, "at least 64"),
        ({"seed": -1}, "negative"),
    ],
)
def test_impossible_arguments(tmp_path: Path, arguments: dict, words: str) -> None:
    with pytest.raises(FcamError, match=words):
        draw_set(tmp_path / "x", **arguments)
    assert not (tmp_path / "x").exists()
