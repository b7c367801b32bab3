"""Whatever a file holds, its reader returns something good or refuses it in one sentence that names it.

A few hundred damaged files per run, the same every time; `benchmarks/fuzz.py` goes through thousands.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
import specimens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_targets import FEW_PIXELS
from judge import Violation, judge
from PIL import Image
from targets import TARGETS, run_case

from fcam.data import open_dataset
from fcam.data.images import image_size, open_image, open_mask
from fcam.errors import FcamError
from fcam.origin import Origin
from fcam.run import load_config

EXAMPLES = {"image": 250, "model folder": 5, "convert": 25}
"""Cases per target; 50 for the others."""

quickly = settings(
    max_examples=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=12,
)


@pytest.mark.parametrize("name", list(TARGETS))
def test_damaged_files(name: str, tmp_path: Path) -> None:
    outcomes = set()
    for number in range(EXAMPLES.get(name, 50)):
        try:
            outcomes.add(run_case(TARGETS[name][0], tmp_path, Random(f"test/{name}/{number}")))
        except Violation as violation:
            pytest.fail(f"case test/{name}/{number}: {violation}")
    assert "refused" in outcomes


@pytest.mark.parametrize(("name", "data"), specimens.images(), ids=[name for name, _ in specimens.images()])
def test_undamaged_images_are_opened(name: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(data)
    if name.startswith("EPS"):  # a program for an interpreter, not a picture
        assert judge(lambda: open_image(path), str(path)) == "refused"
        return
    opened = open_image(path)
    assert opened.mode == "RGB"
    assert opened.size == image_size(path, exif=True)


@pytest.mark.parametrize(("name", "data"), specimens.bombs())
@pytest.mark.parametrize("read", [open_image, open_mask, image_size])
def test_bombs_are_refused_by_their_header(name: str, data: bytes, read, tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(data)
    with pytest.raises(FcamError, match="above the limit"):
        read(path)


@quickly
@given(
    data=st.binary(max_size=200), magic=st.sampled_from([data[:12] for _, data in specimens.images()] + [b""])
)
def test_arbitrary_bytes_are_no_image(data: bytes, magic: bytes, tmp_path_factory) -> None:
    path = tmp_path_factory.getbasetemp() / "photo.jpg"
    path.write_bytes(magic + data)
    judge(lambda: open_image(path, max_pixels=FEW_PIXELS), str(path))


@quickly
@given(
    images=json_values | st.lists(st.fixed_dictionaries({"id": json_values, "file_name": json_values})),
    annotations=json_values
    | st.lists(st.fixed_dictionaries({"image_id": json_values, "bbox": json_values | st.lists(st.floats())})),
)
def test_arbitrary_coco_files(images: object, annotations: object, tmp_path_factory) -> None:
    root = tmp_path_factory.getbasetemp() / "coco"
    (root / "train" / "a").mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (9, 9)).save(root / "train" / "a" / "1.png")
    path = root / "boxes.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    judge(lambda: open_dataset(root, "train", localization=True)[0], str(path))


@quickly
@given(
    rows=st.lists(st.tuples(*[st.text(max_size=6) | st.integers().map(str)] * 5).map(",".join), max_size=4)
)
def test_arbitrary_rows_in_lists(rows: list[str], tmp_path_factory) -> None:
    root = tmp_path_factory.getbasetemp() / "lists"
    lists = root / "metadata" / "val"
    lists.mkdir(parents=True, exist_ok=True)
    for name in ("image_ids", "class_labels", "image_sizes", "localization"):
        (lists / f"{name}.txt").write_bytes("\n".join(rows).encode("utf-8", "surrogatepass"))
    judge(lambda: open_dataset(root, "val", localization=True), str(lists))


@quickly
@given(values=json_values)
def test_arbitrary_configurations(values: object, tmp_path_factory) -> None:
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    path.write_text(json.dumps(values))
    judge(lambda: load_config(path), str(path))


@quickly
@given(values=json_values | st.fixed_dictionaries({"classes": json_values, "classifier": json_values}))
def test_arbitrary_origins(values: object, tmp_path_factory) -> None:
    path = tmp_path_factory.getbasetemp() / "origin.json"
    path.write_text(json.dumps(values))
    judge(lambda: Origin.read(path.parent).other_class(Origin(("a", "b"))), str(path))


def test_the_judge_sees_what_it_should() -> None:
    def spam() -> None:
        import os

        os.write(2, b"TIFFReadDirectory: oops\n")

    def fail(error: Exception) -> None:
        raise error

    assert judge(lambda: None, "a.png") == "good"
    assert judge(lambda: fail(FcamError("a.png is bad")), "a.png") == "refused"
    for broken in (
        spam,
        lambda: fail(KeyError("x")),
        lambda: fail(FcamError("bad")),
        lambda: fail(FcamError("a.png" * 999)),
    ):
        with pytest.raises(Violation):
            judge(broken, "a.png")
