from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fcam.data import EvalTransform, classes, open_dataset
from fcam.data import wsol as wsol_layout
from fcam.data.wsol import read_class_names
from fcam.errors import FcamError


def write_set(
    root: Path, rows: str, sizes: str = "a.png,20,10\nb.png,20,10\n", labels: str = "a.png,0\nb.png,1\n"
):
    lists = root / "metadata" / "val"
    lists.mkdir(parents=True)
    (lists / "image_ids.txt").write_text("a.png\nb.png")  # the last line may lack its end
    (lists / "class_labels.txt").write_text(labels)
    (lists / "image_sizes.txt").write_text(sizes)
    (lists / "localization.txt").write_text(rows)
    for name in ("a", "b"):
        Image.new("RGB", (20, 10)).save(root / f"{name}.png")
    return root


def test_several_boxes_in_an_image_and_none_in_another(tmp_path: Path) -> None:
    dataset = open_dataset(write_set(tmp_path, "a.png,1,2,5,6\na.png,0,0,19,9\n"), "val", localization=True)
    assert dataset[0]["boxes"].tolist() == [[1, 2, 5, 6], [0, 0, 19, 9]]
    assert dataset[1]["boxes"].shape == (0, 4)
    assert not dataset.has_masks
    assert dataset.classes == ["0", "1"]


def test_boxes_are_scaled_from_the_listed_size_or_else_the_real_one(tmp_path: Path) -> None:
    root = write_set(tmp_path, "a.png,10,10,40,20\nb.png,5,5,10,10\n", sizes="a.png,40,20\n")
    dataset = open_dataset(root, "val", EvalTransform(100), localization=True)
    assert dataset[0]["boxes"].tolist() == [[25, 50, 100, 100]]
    assert dataset[1]["boxes"].tolist() == [[25, 50, 50, 100]]


def test_union_of_masks_and_ignored_pixels_outside_them(tmp_path: Path) -> None:
    rows = "a.png,m1.png,i.png\na.png,m2.png,\nb.png,m1.png,\n"
    root = write_set(tmp_path, rows, sizes="")
    one, two, ignore = np.zeros((3, 10, 20), dtype=np.uint8)
    one[2:5, 2:5], two[4:8, 4:9], ignore[0:6, 0:12] = 255, 255, 255
    for name, mask in (("m1", one), ("m2", two), ("i", ignore)):
        Image.fromarray(mask).save(root / f"{name}.png")
    dataset = open_dataset(root, "val", localization=True)
    assert not dataset.has_boxes
    objects = (one > 0) | (two > 0)
    assert (dataset[0]["mask"].numpy() == np.where(objects, 1, np.where(ignore > 0, 255, 0))).all()
    assert (dataset[1]["mask"].numpy() == (one > 0)).all()


def test_an_image_without_mask_is_ignored_whole(tmp_path: Path) -> None:
    root = write_set(tmp_path, "a.png,m.png,\n")
    Image.new("L", (20, 10), 255).save(root / "m.png")
    dataset = open_dataset(root, "val", localization=True)
    assert (dataset[1]["mask"] == 255).all()


def test_official_masks(shared: Path, tmp_path: Path) -> None:
    """Pixel counts of the three public OpenImages masks at 224x224."""
    masks = shared / "golden" / "masks"
    rows = []
    names = ("1cd9ac0169ec7df0", "3a29f0b33894d4a6", "3b3b9931325d65c9")
    lists = tmp_path / "metadata" / "val"
    lists.mkdir(parents=True)
    for name in names:
        for number, mask in enumerate(sorted(masks.glob(f"{name}_m*.png"))):
            rows.append(f"{name}.png,{mask.name},{'' if number else f'{name}_ignore.png'}\n")
            Image.new("RGB", Image.open(mask).size).save(tmp_path / f"{name}.png")
    for mask in masks.glob("*.png"):
        shutil.copy(mask, tmp_path / mask.name)
    (lists / "image_ids.txt").write_text("".join(f"{name}.png\n" for name in names))
    (lists / "class_labels.txt").write_text("".join(f"{name}.png,0\n" for name in names))
    (lists / "image_sizes.txt").touch()
    (lists / "localization.txt").write_text("".join(rows))
    dataset = open_dataset(tmp_path, "val", EvalTransform(), localization=True)
    counts = {
        tuple(torch.bincount(dataset[i]["mask"].flatten(), minlength=256)[[1, 0, 255]].tolist())
        for i in range(3)
    }
    assert counts == {(43031, 7145, 0), (833, 49343, 0), (347, 13910, 35919)}


def test_official_lists(shared: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(shared / "golden" / "wsol_metadata.zip") as archive:
        archive.extractall(tmp_path)
    expected = {
        ("CUB", "train"): (5994, 5994, 0, 200),
        ("CUB", "val"): (1000, 1000, 0, 200),
        ("OpenImages", "val"): (2500, 0, 3854, 100),
        ("OpenImages", "train"): (29819, 0, 0, 100),
        ("ILSVRC", "val"): (10000, 18532, 0, 1000),
    }
    for (name, split), counts in expected.items():
        found = wsol_layout.read(tmp_path, split, tmp_path / name, localization=True, own_lists=True)
        boxes = sum(map(len, (found.boxes or {}).values()))
        masks = [files for rows in (found.masks or {}).values() for files in rows]
        assert (len(found.image_ids), boxes, len(masks), len(found.classes)) == counts
        assert sum(files.ignore is not None for files in masks) in (0, len(found.masks or {}))


def test_lists_may_lie_elsewhere(wsol_set: Path, tmp_path: Path) -> None:
    lists = shutil.move(wsol_set / "metadata", tmp_path / "lists")
    shutil.rmtree(wsol_set / "metadata_masks")
    dataset = open_dataset(wsol_set, "val", localization=True, metadata=lists)
    assert dataset.has_boxes
    assert dataset.path(0).is_file()
    assert classes(wsol_set, metadata=lists) == ["ring", "stripe", "checker"]
    with pytest.raises(FcamError, match="holds no lists"):
        open_dataset(wsol_set, "val", metadata=tmp_path)


def test_masks_alone_are_enough(wsol_set: Path) -> None:
    shutil.rmtree(wsol_set / "metadata")
    dataset = open_dataset(wsol_set, "test", localization=True)
    assert dataset.has_masks
    assert not dataset.has_boxes


def test_benchmark_images_are_not_turned(tmp_path: Path) -> None:
    root = write_set(tmp_path, "")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (20, 10)).save(root / "a.png", exif=exif)
    assert open_dataset(root, "val")[0]["image"].shape == (3, 10, 20)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "localization.txt",
            "a.png,1,2,3,4\n\na.png,1,2,x,4\n",
            "line 3: expected .*<y1>, got 'a.png,1,2,x,4'",
        ),
        ("localization.txt", "a.png,1,2,3,nan\n", "line 1: expected .*nan"),
        (
            "localization.txt",
            "a.png,m.png,\na.png,1,2,3,4,5\nb.png\n",
            "line 3: expected <image>,<mask file>",
        ),
        ("localization.txt", "z.png,1,2,3,4\n", "a row for z.png, which image_ids.txt does not list"),
        ("image_sizes.txt", "a.png,20\n", "line 1: expected <image>,<width>,<height>, got 'a.png,20'"),
        ("image_sizes.txt", "a.png,20,0\n", "line 1"),
        (
            "class_labels.txt",
            "a.png,0\nb.png,-1\n",
            "line 2: expected <image>,<label from 0>, got 'b.png,-1'",
        ),
        ("class_labels.txt", "a.png,0\n", "no label for b.png"),
        ("class_labels.txt", "a.png,0\nb.png,0\na.png,1\n", "has both 0 and 1 for a.png; keep one row"),
        ("image_sizes.txt", "a.png,20,10\na.png,10,20\n", "has both .20, 10. and .10, 20. for a.png"),
        ("image_ids.txt", "a.png\nb.png\na.png\n", "line 3: 'a.png' is listed again .first on line 1"),
        ("image_ids.txt", "\n", "lists no image"),
    ],
)
def test_malformed_lists_name_file_and_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    root = write_set(tmp_path, "a.png,1,2,3,4\n")
    (root / "metadata" / "val" / name).write_text(text)
    with pytest.raises(FcamError, match=words) as caught:
        open_dataset(root, "val", localization=True)
    assert name in str(caught.value)


def test_missing_list(tmp_path: Path) -> None:
    root = write_set(tmp_path, "")
    (root / "metadata" / "val" / "class_labels.txt").unlink()
    with pytest.raises(FcamError, match=r"cannot read .*class_labels\.txt: no such file"):
        open_dataset(root, "val")


def test_label_beyond_the_named_classes(tmp_path: Path) -> None:
    root = write_set(tmp_path, "", labels="a.png,0\nb.png,2\n")
    (root / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(FcamError, match=r"label 2 of b\.png is beyond the 2 classes"):
        open_dataset(root, "val")


def test_windows_line_ends_byte_order_mark_and_commas_in_names(tmp_path: Path) -> None:
    root = write_set(tmp_path, "a,1.png,1,2,3,4\r\n", sizes="a,1.png,20,10\r\n", labels="a,1.png,0\r\n")
    (root / "metadata" / "val" / "image_ids.txt").write_bytes("\ufeffa,1.png\r\n".encode())
    (root / "a.png").rename(root / "a,1.png")
    item = open_dataset(root, "val", localization=True)[0]
    assert item["image_id"] == "a,1.png"
    assert item["boxes"].tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("0 ant\n1 bee fly\n", ["ant", "bee fly"]),
        ("2 bee\n1 ant\n", ["ant", "bee"]),
        ("001.Ant\n002.Bee\n", ["001.Ant", "002.Bee"]),
        ("7 seas\nbee\n", ["7 seas", "bee"]),
        ("5 ant\n9 bee\n", ["5 ant", "9 bee"]),
    ],
)
def test_class_names(tmp_path: Path, text: str, names: list[str]) -> None:
    (tmp_path / "classes.txt").write_text(text)
    assert read_class_names(tmp_path / "classes.txt") == names


def test_a_pipe_among_the_lists_is_not_waited_for(wsol_set: Path) -> None:
    path = wsol_set / "metadata" / "val" / "class_labels.txt"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FcamError, match=r"class_labels\.txt: it is not a regular file"):
        open_dataset(wsol_set, "val")


@pytest.mark.parametrize("label", ["99999999", "9" * 5000])
def test_a_label_beyond_all_measure_makes_no_list_of_classes(wsol_set: Path, label: str) -> None:
    for name in ("metadata/classes.txt", "classes.txt"):
        (wsol_set / name).unlink(missing_ok=True)
    path = wsol_set / "metadata" / "val" / "class_labels.txt"
    path.write_text(path.read_text().replace(",0", f",{label}", 1))
    with pytest.raises(FcamError, match=r"class_labels\.txt, line 1: expected <image>,<label from 0>"):
        open_dataset(wsol_set, "val")


def test_space_before_a_comma_is_no_part_of_a_name(tmp_path: Path) -> None:
    write_set(tmp_path, "a.png , 1, 2, 5, 6\n", labels="a.png , 0\nb.png , 1\n", sizes="a.png , 20 , 10\n")
    dataset = open_dataset(tmp_path, "val", localization=True)
    assert dataset[0]["boxes"].tolist() == [[1, 2, 5, 6]]
    assert dataset.split.sizes == {"a.png": (20, 10)}


def test_lists_with_the_slashes_of_windows(tmp_path: Path) -> None:
    root = write_set(tmp_path, r"photos\a.png,masks\a.png," + "\n", sizes="", labels="")
    for folder, name in (("photos", "a"), ("photos", "b"), ("masks", "a")):
        (root / folder).mkdir(exist_ok=True)
        Image.new("L", (20, 10), 255).save(root / folder / f"{name}.png")
    lists = root / "metadata" / "val"
    (lists / "image_ids.txt").write_text("photos\\a.png\r\nphotos/b.png\r\n", newline="")
    (lists / "class_labels.txt").write_text("photos/a.png,0\r\nphotos\\b.png,1\r\n", newline="")
    dataset = open_dataset(root, "val", localization=True)
    assert dataset.image_ids == ["photos/a.png", "photos/b.png"]
    assert (dataset[0]["mask"] == 1).all()
    with (lists / "image_ids.txt").open("a") as file:
        file.write("photos/a.png\n")
    with pytest.raises(FcamError, match="line 3: 'photos/a.png' is listed again"):
        open_dataset(root, "val")


def test_boxes_in_shares_of_the_image_are_refused(tmp_path: Path) -> None:
    write_set(tmp_path, "a.png,0,0,1,1\nb.png,0.25,0.1,0.75,1\n")
    with pytest.raises(
        FcamError, match=r"localization.txt gives boxes as shares.*0.25, 0.1, 0.75, 1; multiply"
    ):
        open_dataset(tmp_path, "val", localization=True)
    # A corner of one pixel is a box, and so is one with a fraction beside those of other sizes.
    for number, rows in enumerate(("a.png,0,0,1,1\n", "a.png,0.5,0,1,1\nb.png,0,0,9.5,3\n")):
        assert len(open_dataset(write_set(tmp_path / str(number), rows), "val", localization=True)) == 2
