"""Localizer and Prediction: sizes, places, kinds of input, thresholds."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import nn

import fcam
from fcam.boxes import from_map, quantize
from fcam.errors import FcamError
from fcam.model import FCAM
from fcam.predict.localizer import Localizer, as_image, fast_dtype
from fcam.predict.prediction import to_size
from fcam.registry import create_model
from planted import Planted

BOX = (120, 40, 200, 90)
RED, GREY, BLUE = (255, 20, 20), (120, 120, 120), (20, 20, 160)


def photo(size: tuple[int, int] = (400, 220), *boxes: tuple[int, int, int, int]) -> Image.Image:
    image = Image.new("RGB", size, GREY)
    for x0, y0, x1, y1 in boxes or (BOX,):
        ImageDraw.Draw(image).rectangle((x0, y0, x1 - 1, y1 - 1), fill=RED)
    return image


def localizer(*args: Any, metadata: dict[str, Any] | None = None, **options: Any) -> Localizer:
    return Localizer(cast(FCAM, Planted(metadata, options.pop("classes", None))), *args, **options)


def test_box_mask_and_map_are_in_pixels_of_a_photo_that_is_not_square() -> None:
    result = localizer(classes=["red", "green", "blue"])(photo())
    assert result.size == (400, 220)
    assert result.cam.shape == result.mask.shape == (220, 400)
    assert result.cam.dtype == np.float32
    assert result.mask.dtype == np.bool_
    assert result.boxes.shape == (1, 4)
    np.testing.assert_allclose(result.boxes[0], BOX, atol=3)
    assert result.mask[45:85, 126:194].all()
    assert not result.mask[:, :110].any()
    assert not result.mask[100:].any()
    assert result.label == "red"
    assert result.class_idx == 0
    assert result.score == pytest.approx(float(torch.tensor(logits(photo())).softmax(0)[0]), abs=1e-4)
    assert result.overlay().size == (400, 220)


def logits(image: Image.Image) -> list[float]:
    mean = np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR)).mean((0, 1)) / 255
    return [8 * float(value) for value in mean]


def test_a_path_is_turned_upright_by_exif(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held so that showing it needs a quarter turn clockwise
    photo().transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    result = localizer()(tmp_path / "turned.png")
    assert result.size == (400, 220)
    np.testing.assert_allclose(result.boxes[0], BOX, atol=3)
    assert result.source == str(tmp_path / "turned.png")


def test_every_kind_of_photo_gives_the_same_map(tmp_path: Path) -> None:
    image = photo()
    image.save(tmp_path / "a.png")
    array = np.array(image)
    kinds = [
        str(tmp_path / "a.png"),
        tmp_path / "a.png",
        image,
        array,
        torch.from_numpy(array).permute(2, 0, 1),
    ]
    results = localizer()(kinds)
    assert [type(r.source) for r in results] == [str, str, type(None), type(None), type(None)]
    for result in results[1:]:
        np.testing.assert_array_equal(result.cam, results[0].cam)


def test_batches_of_arrays_and_tensors_are_several_photos() -> None:
    array = np.array(photo())
    call: Any = localizer()
    assert len(call(np.stack([array, array]))) == 2
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    assert len(call(tensor.expand(3, -1, -1, -1))) == 3


def test_alpha_goes_over_white_and_grey_becomes_rgb() -> None:
    clear = Image.new("RGBA", (40, 40), (255, 0, 0, 0))
    assert as_image(clear).getpixel((5, 5)) == (255, 255, 255)
    assert as_image(np.full((40, 50), 7, np.uint8)).getpixel((49, 39)) == (7, 7, 7)
    assert as_image(np.zeros((40, 50, 4), np.uint8)).getpixel((0, 0)) == (255, 255, 255)
    assert as_image(torch.full((1, 40, 50), 7, dtype=torch.uint8)).size == (50, 40)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (np.zeros((40, 40, 3), np.float32), "float32"),
        (np.zeros((3, 40, 41), np.uint8), r"\(3, 40, 41\)"),
        (torch.zeros(40, 41, 3, dtype=torch.uint8), r"\(40, 41, 3\)"),
        (torch.zeros(3, 40, 40), "float32"),
        (np.zeros((0, 40, 3), np.uint8), r"\(0, 40, 3\)"),
        (Image.new("RGB", (0, 4)), r"no pixels, its size is \(0, 4\)"),
    ],
)
def test_wrong_arrays_are_refused_with_their_shape_or_type(bad: Any, words: str) -> None:
    with pytest.raises(FcamError, match=words):
        localizer()(bad)


def test_missing_file_is_one_sentence() -> None:
    with pytest.raises(FcamError, match="does not exist"):
        localizer()("/no/such/photo.jpg")


def test_batching_keeps_order_and_changes_nothing() -> None:
    photos = [photo((64 + 16 * i, 90), (8, 8, 24 + 8 * i, 60)) for i in range(5)]
    single = [localizer(batch_size=1)(p) for p in photos]
    together = localizer(batch_size=3)(photos)
    for one, other in zip(single, together, strict=True):
        assert one.size == other.size
        np.testing.assert_allclose(one.cam, other.cam, atol=1e-6)


def test_stream_reads_no_further_than_a_batch_ahead() -> None:
    taken: list[int] = []

    def source() -> Iterator[Image.Image]:
        for i in range(100):
            taken.append(i)
            yield photo((64, 64), (8, 8, 30, 30))

    results = localizer(batch_size=4).stream(source())
    next(results)
    assert len(taken) <= 5
    assert sum(1 for _ in results) == 99


def test_no_photos_give_no_results() -> None:
    assert localizer()([]) == []


def test_empty_map_gives_no_box_and_an_empty_mask() -> None:
    result = localizer()(Image.new("RGB", (50, 40), (0, 255, 255)))
    assert result.boxes.shape == (0, 4)
    assert not result.mask.any()
    assert result.overlay().size == (50, 40)


@pytest.mark.parametrize("size", [(1, 1), (3000, 2), (2, 900), (33, 31)])
def test_extreme_sizes(size: tuple[int, int]) -> None:
    for keep_aspect in (False, True):
        result = localizer(keep_aspect=keep_aspect)(Image.new("RGB", size, RED))
        assert result.cam.shape == result.mask.shape == size[::-1]
        assert result.boxes.tolist() == [[0, 0, *size]]
        assert result.overlay().size == size


def test_largest_and_all_boxes() -> None:
    image = photo((300, 200), (10, 10, 60, 60), (150, 50, 280, 180))
    largest, every = localizer()(image), localizer(boxes="all")(image)
    np.testing.assert_allclose(largest.boxes, [(150, 50, 280, 180)], atol=3)
    np.testing.assert_allclose(every.boxes, [(150, 50, 280, 180), (10, 10, 60, 60)], atol=3)
    assert np.any(largest.mask[:, :70]), "the mask holds all of the foreground"


def test_mask_is_the_very_foreground_that_boxes_come_from() -> None:
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)).resize((333, 217))
    for threshold in (0.0, 0.1, 0.37, 0.8, 0.999):
        result = localizer(threshold, boxes="all")(noise)
        level = quantize(result.cam[None])[0]
        np.testing.assert_array_equal(result.mask, level > int(threshold * int(level.max())))
        rows, columns = np.nonzero(result.mask)
        corners = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert [*result.boxes[:, :2].min(0), *result.boxes[:, 2:].max(0)] == corners
        inclusive = from_map(result.cam, threshold, "all", "exact").numpy()
        np.testing.assert_array_equal(result.boxes - [0, 0, 1, 1], inclusive)


def test_threshold_comes_from_the_card_and_can_be_moved() -> None:
    ramp = np.tile(np.linspace(110, 255, 256), (64, 1))
    soft = Image.fromarray(np.dstack([ramp, np.zeros((64, 256, 2))]).astype(np.uint8))
    assert localizer()(soft).threshold == 0.5
    assert localizer(metadata={"threshold": 0.2})(soft).threshold == 0.2
    for number in (np.float32(0.25), torch.tensor(0.25)):  # such as a metric's best threshold
        assert type(localizer(number).threshold) is float, "a list of results is JSON"
        assert type(localizer()(soft).at(number).threshold) is float
    boxes = {"thresholds": {"fcam": {"max_box_acc": {"0.3": 0.1, "0.5": 0.35, "0.7": 0.6}, "piou": 0.4}}}
    assert localizer(metadata=boxes).threshold == 0.35
    assert localizer(metadata={"thresholds": {"fcam": {"piou": 0.4}}}).threshold == 0.4
    assert localizer(metadata={"thresholds": {"cam": {"max_box_acc": {"0.5": 0.1}}}}).threshold == 0.5
    assert localizer(0.7, metadata={"threshold": 0.2})(soft).threshold == 0.7
    low, high = localizer(0.2)(soft), localizer(0.8)(soft)
    assert low.mask.sum() > high.mask.sum()
    moved = low.at(0.8)
    np.testing.assert_array_equal(moved.mask, high.mask)
    np.testing.assert_array_equal(moved.boxes, high.boxes)
    assert low.threshold == 0.2


def test_network_sees_the_square_unless_aspect_is_kept() -> None:
    square = localizer(size=64)
    square(photo((400, 100), (8, 8, 50, 50)))
    assert cast(Planted, square.model).shapes == [(1, 3, 64, 64)]
    kept = localizer(size=128, keep_aspect=True)
    kept([photo((400, 100), (8, 8, 50, 50)), photo((100, 400), (8, 8, 50, 50))])
    assert cast(Planted, kept.model).shapes == [(1, 3, 64, 256), (1, 3, 256, 64)]


def test_size_comes_from_the_training_crop() -> None:
    assert localizer(metadata={"training": {"crop": 96}}).size == 96


def test_baseline_is_the_cam_of_the_predicted_class_at_the_photos_size() -> None:
    image = photo((300, 200), (30, 30, 270, 180))
    result = localizer(with_cam=True)(image)
    assert result.baseline is not None
    assert result.baseline.shape == (200, 300)
    assert result.baseline[60:150, 60:240].min() > 0.9 > 0.1 > result.baseline[:10, :10].max()
    assert result.panel(100).width > localizer()(image).panel(100).width
    with pytest.raises(FcamError, match=r"height is 0\.5"):
        result.panel(0.5)  # type: ignore[arg-type]


def test_the_baseline_is_made_by_the_formula_of_training() -> None:
    model = fcam.create_model("timm:test_resnet", 3, pretrained=False, output_stride=32)
    image = Image.effect_noise((64, 64), 90).convert("RGB")
    maps = {}
    for variant in ("published", "reference"):
        model.metadata = {"method": "gradcampp", "variant": variant}
        seen = Localizer(model, size=64, with_cam=True)(image)
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float() / 255
        (want,) = fcam.cam(model.classifier, pixels, seen.class_idx, "gradcampp", variant=variant)
        maps[variant] = seen.baseline
        np.testing.assert_allclose(seen.baseline, to_size(want, (64, 64)), atol=1e-5)
    assert np.abs(maps["published"] - maps["reference"]).max() > 0.01


def test_flip_takes_the_mean_with_the_mirrored_photo() -> None:
    model = fcam.create_model("timm:test_resnet", 3, pretrained=False, output_stride=32)
    image = Image.effect_noise((64, 64), 90).convert("RGB")
    mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    plain, other = (Localizer(model, size=64)(one) for one in (image, mirrored))
    both = Localizer(model, size=64, flip=True)
    seen = both(image)
    np.testing.assert_allclose(seen.cam, (plain.cam + other.cam[:, ::-1]) / 2, atol=1e-5)
    np.testing.assert_allclose(both(mirrored).cam[:, ::-1], seen.cam, atol=1e-5)
    assert np.abs(seen.cam - plain.cam).max() > 1e-3


def test_a_network_with_one_output_says_yes_or_no() -> None:
    model = fcam.create_model("timm:test_resnet", 1, pretrained=False, output_stride=32).eval()
    image = Image.effect_noise((64, 64), 90).convert("RGB")
    with torch.inference_mode():
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255
        wanted = model(pixels).logits.sigmoid().item()
    assert 0 < wanted < 1
    assert Localizer(model, size=64)(image).score == pytest.approx(wanted, abs=1e-4)


def test_a_network_for_one_size_says_so() -> None:
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU()]
    model = fcam.attach(nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 16 * 16, 3)), image_size=64)
    assert Localizer(model, size=64)(photo()).cam.shape == photo().size[::-1]
    with pytest.raises(
        FcamError, match=r"cannot be run on 1 images of 96x96 \(.*take the size it was trained on"
    ):
        Localizer(model, size=96)(photo())


@pytest.mark.parametrize("head", ["wgap", "maxpool"])
def test_the_baseline_of_any_head_in_bfloat16(head: str) -> None:
    model = fcam.create_model("timm:test_resnet", 3, pretrained=False, output_stride=32, head=head)
    result = Localizer(model, size=64, dtype=torch.bfloat16, with_cam=True)(photo())
    assert result.baseline is not None
    assert result.baseline.dtype == np.float32


def test_bfloat16_still_gives_float32_maps_near_the_float32_ones() -> None:
    full, fast = localizer(dtype=torch.float32)(photo()), localizer(dtype=torch.bfloat16)(photo())
    assert fast.cam.dtype == np.float32
    assert np.abs(full.cam - fast.cam).mean() < 0.01
    assert fast_dtype(torch.device("cpu")) in (torch.float32, torch.bfloat16)


def test_output_that_is_not_finite_is_refused() -> None:
    broken = localizer()
    with torch.no_grad():
        cast(Planted, broken.model).fc.weight.fill_(float("nan"))
    with pytest.raises(FcamError, match="not finite"):
        broken(photo())


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 1.0},
        {"threshold": "-0.1"},
        {"size": 16},
        {"size": "224x224"},
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"max_pixels": "10M"},
        {"max_pixels": -1},
        {"boxes": "some"},
        {"dtype": "float32"},
        {"cam_method": "GradCAM", "with_cam": True},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(FcamError, match=str(next(iter(options.values())))):
        localizer(**options)


def test_untrained_decoder_is_pointed_out() -> None:
    with pytest.warns(UserWarning, match="never trained"):
        localizer(metadata={"decoder_trained": False})


def test_a_saved_model_predicts_as_the_one_in_memory(tmp_path: Path) -> None:
    model = create_model("timm:test_resnet", 3, pretrained=False, classes=["a", "b", "c"])
    model.metadata["threshold"] = 0.3
    model.save_pretrained(tmp_path / "run" / "model")
    image = photo((90, 70), (8, 8, 40, 40))
    options: dict[str, Any] = {"size": 96, "with_cam": True, "dtype": torch.float32}
    there, here = Localizer(tmp_path / "run", **options)(image), Localizer(model, **options)(image)
    assert (there.label, there.threshold) == (here.label, 0.3)
    np.testing.assert_allclose(there.cam, here.cam, atol=1e-6)
    assert there.baseline is not None
    assert there.baseline.shape == (70, 90)


@pytest.mark.parametrize(
    ("photo", "kind"),
    [
        (None, "NoneType"),
        (3, "int"),
        (b"\xff\xd8", "bytes"),
        (b"", "bytes"),
        (io.BytesIO(b"\xff"), "BytesIO"),
        ({"a.jpg": 1}, "dict"),
        ([["a.jpg"]], "list"),
    ],
)
def test_what_is_no_photo_is_named(photo: object, kind: str) -> None:
    with pytest.raises(FcamError, match=f"a photo is a path, a PIL image.*got {kind};"):
        localizer()(photo)  # type: ignore[call-overload]


def test_a_column_of_paths_is_several_photos(tmp_path: Path) -> None:
    paths = [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    for path in paths:
        photo().save(path)
    call: Any = localizer()
    for dtype in (object, str):
        assert [r.source for r in call(np.array(paths, dtype))] == paths


def test_stream_takes_several_photos() -> None:
    with pytest.raises(FcamError, match="takes several photos, got one str"):
        list(localizer().stream("photo.jpg"))


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (None, {}, "got NoneType"),
        (torch.nn.Linear(1, 1), {}, "got Linear; fcam.attach"),
        ("lite0", {"device": "gpu"}, "device gpu cannot be used"),
    ],
)
def test_a_model_or_device_that_is_none_is_refused(model: object, options: dict, words: str) -> None:
    with pytest.raises(FcamError, match=words):
        Localizer(model, **options)  # type: ignore[arg-type]
