"""Lists built from the archives' annotation equal those of the benchmark; archives are rebuilt from its lists."""

from __future__ import annotations

import re
import struct
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from fcam.cli import main
from fcam.data import open_dataset, splits
from fcam.data.check import check
from fcam.data.prepare import ARCHIVES, KINDS, prepare
from fcam.data.prepare.ilsvrc import read_annotation
from fcam.errors import FcamError

LISTS = ("image_ids", "class_labels", "image_sizes", "localization")

REAL_XML = """<annotation>
	<folder>val</folder>
	<filename>{name}</filename>
	<source>
		<database>ILSVRC_2012</database>
	</source>
	<size>
		<width>{width}</width>
		<height>{height}</height>
		<depth>3</depth>
	</size>
	<segmented>0</segmented>{objects}
</annotation>
"""
REAL_OBJECT = """
	<object>
		<name>{wnid}</name>
		<pose>Unspecified</pose>
		<truncated>0</truncated>
		<difficult>0</difficult>
		<bndbox>
			<xmin>{0}</xmin>
			<ymin>{1}</ymin>
			<xmax>{2}</xmax>
			<ymax>{3}</ymax>
		</bndbox>
	</object>"""


@pytest.fixture(scope="module")
def official(shared):
    """Rows of a list of the benchmark: official("CUB/test/image_ids")."""
    with zipfile.ZipFile(shared / "golden" / "wsol_metadata.zip") as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".txt")}
    return lambda name: texts[f"{name}.txt"].splitlines()


def header(width: int, height: int) -> bytes:
    """A PNG file that has a size and no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    ihdr = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", ihdr) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def touch(path, content=b""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def of_classes(rows, first, last):
    """Rows whose image is of the classes with these numbers (CUB: 001.Black_...)."""
    return [row for row in rows if first <= int(row[:3]) <= last]


def written(root, split, name):
    return (root / "metadata" / split / f"{name}.txt").read_text().splitlines()


def rebuild_cub(official, root, classes=25, images="images"):
    """The official archive, as far as its first classes go, with the splits' images in turn."""
    rows = []
    for split in ("train", "test"):
        lists = [of_classes(official(f"CUB/{split}/{name}"), 1, classes) for name in LISTS]
        rows.append([(split, *each) for each in zip(*lists, strict=True)])
    order = [row for pair in zip(*rows, strict=False) for row in pair]
    order += [row for part in rows for row in part[min(map(len, rows)) :]]
    order.sort(key=lambda row: row[1][:3])  # stable: by class, as the official numbers go
    tables = {name: [] for name in ("images", "image_class_labels", "train_test_split", "bounding_boxes")}
    for number, (split, image, label, size, box) in enumerate(order, start=1):
        x0, y0, x1, y1 = map(float, box.rsplit(",", 4)[1:])
        width, height = map(int, size.rsplit(",", 2)[1:])
        touch(root / images / image, header(width, height))
        tables["images"].append(f"{number} {image}")
        tables["image_class_labels"].append(f"{number} {int(label.rsplit(',', 1)[1]) + 1}")
        tables["train_test_split"].append(f"{number} {int(split == 'train')}")
        tables["bounding_boxes"].append(f"{number} {x0} {y0} {x1 - x0} {y1 - y0}")
    names = dict.fromkeys(row[1].split("/")[0] for row in order)
    tables["classes"] = [f"{number} {name}" for number, name in enumerate(names, start=1)]
    for name, lines in tables.items():
        (root / f"{name}.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("images", ["images", ""])
def test_cub_from_its_archive_equals_the_benchmark(official, tmp_path, images):
    rebuild_cub(official, tmp_path, 25 if images else 3, images)
    result = prepare("cub", tmp_path)
    prefix = f"{images}/" if images else ""
    assert set(result.images) == {"train", "test"}
    for split in ("train", "test"):
        for name in LISTS:
            wanted = of_classes(official(f"CUB/{split}/{name}"), 1, 25 if images else 3)
            assert written(tmp_path, split, name) == [prefix + row for row in wanted]
    assert open_dataset(tmp_path, "test").classes[0] == "Black footed Albatross"
    assert any("val is left out" in note for note in result.notes)
    assert sum("the benchmark" in problem for problem in result.problems) == 2  # a part is not the whole
    prepare("cub", tmp_path)  # again: nothing to say against it


def test_lists_that_differ_are_not_overwritten(official, tmp_path):
    rebuild_cub(official, tmp_path, 1)
    prepare("cub", tmp_path)
    path = tmp_path / "metadata" / "test" / "localization.txt"
    path.write_text("mine\n")
    with pytest.raises(FcamError, match="localization.txt is there already and differs"):
        prepare("cub", tmp_path)
    assert path.read_text() == "mine\n"


def test_metadata_is_taken_as_it_is_and_images_are_found(official, tmp_path):
    root, lists = tmp_path / "CUB_200_2011", tmp_path / "metadata"
    rebuild_cub(official, root, 2)
    for split in ("train", "val", "test"):
        for name in LISTS:
            rows = of_classes(official(f"CUB/{split}/{name}"), 1, 2)
            touch(lists / "CUB" / split / f"{name}.txt", "\n".join(rows).encode())  # no newline at the end
    for row in of_classes(official("CUB/val/image_ids"), 1, 2)[1:]:
        touch(root / "CUBV2" / row)
    result = prepare("cub", root, lists)
    assert splits(root) == ["train", "val", "test"]
    for name in LISTS:
        wanted = of_classes(official(f"CUB/val/{name}"), 1, 2)
        assert written(root, "val", name) == [f"CUBV2/{row}" for row in wanted]
    assert open_dataset(root, "test").classes[0] == "Black footed Albatross"
    assert any(re.match(r"1 of \d+ images of val are missing", problem) for problem in result.problems)
    assert main(["data", "prepare", "cub", str(root), "--metadata", str(lists)]) == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("class_labels", "a.jpg 0\n", r"class_labels.txt, line 1: expected <image>,<label from 0>"),
        ("class_labels", "b.jpg,0\n", "'a.jpg' has no label"),
        ("image_sizes", "a.jpg,64\n", r"image_sizes.txt, line 1"),
        ("image_sizes", "b.jpg,64,64\n", "'a.jpg' has no size"),
    ],
)
def test_a_damaged_row_of_given_lists_is_named(tmp_path, name, text, message):
    for own, row in (
        ("image_ids", "a.jpg\n"),
        ("class_labels", "a.jpg,0\n"),
        ("image_sizes", "a.jpg,64,64\n"),
    ):
        touch(tmp_path / "lists" / "test" / f"{own}.txt", (text if own == name else row).encode())
    touch(tmp_path / "root" / "a.jpg")
    with pytest.raises(FcamError, match=message):
        prepare("cub", tmp_path / "root", tmp_path / "lists")


def test_damaged_annotation_is_named(official, tmp_path):
    rebuild_cub(official, tmp_path, 1)
    image = of_classes(official("CUB/test/image_ids"), 1, 1)[0]
    (tmp_path / "images" / image).unlink()
    assert any("1 images are missing" in problem for problem in prepare("cub", tmp_path).problems)
    for name, text, words in (
        ("image_class_labels", "1 0", r"no usable row for image 1 .class 0"),
        ("train_test_split", "1 7", r"no usable row for image 1"),
        ("bounding_boxes", "1 inf 2 3 4", r"no usable row for image 1"),
        ("images", "1 a.jpg\n1 b.jpg", "given twice"),
        ("images", "x a.jpg", "or is none"),
    ):
        path = tmp_path / f"{name}.txt"
        before = path.read_text()
        path.write_text(text if name == "images" else before.replace(before.splitlines()[0], text, 1))
        with pytest.raises(FcamError, match=words):
            prepare("cub", tmp_path)
        path.write_text(before)
    (tmp_path / "bounding_boxes.txt").write_text("1 60 27\n")
    with pytest.raises(FcamError, match="no usable row"):
        prepare("cub", tmp_path)
    (tmp_path / "bounding_boxes.txt").unlink()
    with pytest.raises(FcamError, match="bounding_boxes.txt"):
        prepare("cub", tmp_path)


def test_openimages_from_its_folders_equals_the_benchmark(official, tmp_path):
    classes = range(4)
    for split in ("train", "val", "test"):
        labels = dict(row.rsplit(",", 1) for row in official(f"OpenImages/{split}/class_labels"))
        for image in labels:
            if int(labels[image]) in classes:
                touch(tmp_path / image)
        for row in official(f"OpenImages/{split}/localization"):
            image, mask, ignore = row.split(",")
            if int(labels[image]) in classes:
                touch(tmp_path / mask)
                if ignore:
                    touch(tmp_path / ignore)
    result = prepare("openimages", tmp_path)
    assert not any("mask" in problem for problem in result.problems)
    for split in ("train", "val", "test"):
        labels = official(f"OpenImages/{split}/class_labels")
        assert sorted(written(tmp_path, split, "class_labels")) == sorted(
            row for row in labels if int(row.rsplit(",", 1)[1]) in classes
        )
        kept = set(written(tmp_path, split, "image_ids"))
        wanted = [row.split(",") for row in official(f"OpenImages/{split}/localization")]
        built = [row.split(",") for row in written(tmp_path, split, "localization")]
        assert {tuple(row[:2]) for row in built} == {tuple(row[:2]) for row in wanted if row[0] in kept}
        # Which of several masks comes first is arbitrary; each image has its ignore file once, with the first.
        for rows in (built, wanted):
            first = {}
            for image, _, ignore in rows:
                assert bool(ignore) == (image not in first)
                first.setdefault(image, ignore)
        assert {(row[0], row[2]) for row in built if row[2]} == {
            (row[0], row[2]) for row in wanted if row[2] and row[0] in kept
        }


def test_openimages_says_what_does_not_fit(tmp_path):
    touch(tmp_path / "train" / "0a" / "11.jpg")
    for name in ("11.jpg", "11_m0b_00000000.png", "12_m0a_00000000.png", "13_ignore.png"):
        touch(tmp_path / "test" / "0a" / name)
    problems = " / ".join(prepare("openimages", tmp_path).problems)
    for words in (
        "11_m0b_00000000.png is a mask of another class",
        "12.jpg is missing",
        "13.jpg is missing",
        "1 of 1 images of test have no mask, first test/0a/11.jpg",
    ):
        assert words in problems
    assert "of train have no mask" not in problems


def rebuild_ilsvrc(official, root, images=300, xml="bbox_val", val="val"):
    """The XML files and images of the first validation images, and the list of classes."""
    labels = dict(row.rsplit(",", 1) for row in official("ILSVRC/test/class_labels"))
    sizes = {row.rsplit(",", 2)[0]: row.rsplit(",", 2)[1:] for row in official("ILSVRC/test/image_sizes")}
    boxes = {}
    for row in official("ILSVRC/test/localization"):
        image, *box = row.rsplit(",", 4)
        boxes.setdefault(image, []).append(box)
    wnids = [f"n{number:08d}" for number in range(100, 1100)]
    (root / "LOC_synset_mapping.txt").write_text(
        "".join(f"{w} thing {i}, other\n" for i, w in enumerate(wnids))
    )
    for image in official("ILSVRC/test/image_ids")[:images]:
        name, wnid = image.split("/")[1].removesuffix(".JPEG"), wnids[int(labels[image])]
        objects = "".join(REAL_OBJECT.format(*box, wnid=wnid) for box in boxes[image])
        width, height = sizes[image]
        text = REAL_XML.format(name=name, width=width, height=height, objects=objects)
        touch(root / xml / f"{name}.xml", text.encode())
        touch(root / val / f"{name}.JPEG")
    return wnids


@pytest.mark.parametrize(
    ("xml", "prefix"),
    [("bbox_val", ""), ("val", ""), ("ILSVRC/Annotations/CLS-LOC/val", "ILSVRC/Data/CLS-LOC/")],
)
def test_ilsvrc_from_its_xml_files_equals_the_benchmark(official, tmp_path, xml, prefix):
    wnids = rebuild_ilsvrc(official, tmp_path, 300, xml, f"{prefix}val")
    for name in ("b.JPEG", "a.JPEG"):
        touch(tmp_path / prefix / "train" / wnids[7] / name)
    result = prepare("ilsvrc", tmp_path)
    assert result.images == {"train": 2, "test": 300}
    kept = set(official("ILSVRC/test/image_ids")[:300])
    for name in LISTS:
        wanted = [row for row in official(f"ILSVRC/test/{name}") if row.partition(",")[0] in kept]
        assert written(tmp_path, "test", name) == [prefix + row for row in wanted]
    assert written(tmp_path, "train", "class_labels") == [
        f"{prefix}train/{wnids[7]}/a.JPEG,7", f"{prefix}train/{wnids[7]}/b.JPEG,7",
    ]  # fmt: skip
    assert open_dataset(tmp_path, "test").classes[7] == "thing 7"


def test_an_annotation_as_imagenet_writes_it(tmp_path):
    path = tmp_path / "ILSVRC2012_val_00000001.xml"
    objects = REAL_OBJECT.format(111, 108, 441, 193, wnid="n01751748")
    path.write_text(REAL_XML.format(name=path.stem, width=500, height=375, objects=objects))
    assert read_annotation(path) == (path.stem, "n01751748", (500, 375), [(111, 108, 441, 193)])
    path.write_text("<annotation><size/></annotation>")
    with pytest.raises(FcamError, match="no annotation of one class"):
        read_annotation(path)


def test_classes_without_a_name_and_missing_annotations_are_told(official, tmp_path):
    wnids = rebuild_ilsvrc(official, tmp_path, 3)
    (tmp_path / "bbox_val" / "ILSVRC2012_val_00000001.xml").unlink()
    touch(tmp_path / "train" / "n09999999" / "a.JPEG")
    result = prepare("ilsvrc", tmp_path)
    assert result.images == {"test": 2}
    assert any(p.startswith(f"1 classes are not among the {len(wnids)}") for p in result.problems)
    (tmp_path / "LOC_synset_mapping.txt").write_bytes(b"n01440764 t\xe9nch\n")
    with pytest.raises(FcamError, match=r"LOC_synset_mapping.txt as class names .*fetch it again"):
        prepare("ilsvrc", tmp_path)


def test_labels_are_not_guessed_from_a_part_of_the_classes(tmp_path):
    touch(tmp_path / "train" / "n00000001" / "a.JPEG")
    with pytest.raises(FcamError, match="1 of 1000 classes"):
        prepare("ilsvrc", tmp_path)
    lists = tmp_path / "lists"
    for name, row in zip(
        LISTS, ("val/a.JPEG", "val/a.JPEG,3", "val/a.JPEG,9,9", "val/a.JPEG,0,0,5,5"), strict=True
    ):
        touch(lists / "ILSVRC" / "test" / f"{name}.txt", row.encode())
    touch(tmp_path / "val" / "a.JPEG")
    result = prepare("ilsvrc", tmp_path, lists)
    assert result.images == {"test": 1}, "lists that are given stand without those of train"
    assert any("1 of 1000 classes" in problem for problem in result.problems)


def test_a_prepared_set_passes_the_check(tmp_path):
    rng = np.random.default_rng(0)
    rows = {
        name: [] for name in ("images", "image_class_labels", "train_test_split", "bounding_boxes", "classes")
    }
    for number in range(1, 9):
        name = f"00{1 + number % 2}.Bird_{number % 2}/Bird_{number}.jpg"
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)).save(path)
        rows["images"].append(f"{number} {name}")
        rows["image_class_labels"].append(f"{number} {1 + number % 2}")
        rows["train_test_split"].append(f"{number} {int(number > 4)}")
        rows["bounding_boxes"].append(f"{number} 3.0 4.0 20.0 21.0")
    rows["classes"] = ["1 001.Bird_0", "2 002.Bird_1"]
    for name, lines in rows.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    prepare("cub", tmp_path)
    report = check(tmp_path)
    assert not report.problems
    assert open_dataset(tmp_path, "test", localization=True)[0]["boxes"].tolist() == [[3, 4, 23, 25]]


@pytest.mark.parametrize("kind", list(KINDS))
def test_where_tells_of_every_archive(kind, capsys):
    assert main(["data", "prepare", kind, "--where"]) == 0
    text = capsys.readouterr().out
    for archive in ARCHIVES[kind]:
        assert archive.name in text
        assert archive.url in text
        assert not archive.checksum or archive.source
    assert "no checksum is published" in text
    for digest in re.findall(r"(?:MD5|SHA-256) (\w+)", text):
        assert re.fullmatch(r"[0-9a-f]{32}|[0-9a-f]{64}", digest)


def test_mistakes_are_named(tmp_path, capsys):
    for arguments, words in (
        (["cub"], "ROOT"),
        (["cub", str(tmp_path / "nowhere")], "--where"),
        (["ilsvrc", str(tmp_path)], "holds nothing of ILSVRC"),
        (["cub", str(tmp_path), "--metadata", str(tmp_path)], "holds no lists"),
    ):
        assert main(["data", "prepare", *arguments]) == 2
        assert words in capsys.readouterr().err
