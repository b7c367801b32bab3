"""MaxBoxAcc and MaxBoxAccV2: official values, thresholds, states, mistakes."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from opencv_oracle import as_scores, best_iou_at, iou, largest_at, make_map

from fcam.errors import FcamError
from fcam.metrics import (
    MaxBoxAcc,
    MaxBoxAccV2,
    PxAP,
    best_iou,
    box_iou,
    largest_boxes,
    scale_boxes,
    threshold_grid,
)
from fcam.metrics.box_acc import plateau
from fcam.scores import BoxScores


def _split(count: int = 12, size: int = 20, seed: int = 0) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Maps and boxes of a small split, every kind of map."""
    rng = np.random.default_rng(seed)
    kinds = ("smooth", "rings", "noise", "plateaus")
    maps = np.stack([as_scores(make_map(kinds[i % 4], size, size, i)) for i in range(count)])
    corners = [np.sort(rng.integers(0, size, (rng.integers(1, 4), 2, 2)), axis=1) for _ in range(count)]
    return torch.from_numpy(maps).float(), [torch.from_numpy(c.reshape(-1, 4)) for c in corners]


def _golden_split(shared: Path) -> tuple[dict[str, np.ndarray], torch.Tensor, list[torch.Tensor]]:
    with np.load(shared / "golden" / "eval.npz") as file:
        golden = {
            key: file[key] for key in file.files if key not in ("inst_masks", "ignore_region", "gt_mask")
        }
    boxes = [
        torch.from_numpy(b[:n]) for b, n in zip(golden["gt_boxes_224"], golden["n_gt_boxes"], strict=True)
    ]
    return golden, torch.from_numpy(golden["score_maps"]), boxes


@pytest.mark.parametrize(("contours", "suffix"), [("largest", "_single"), ("all", "_multi")])
@pytest.mark.parametrize("images", [None, 64])
def test_equals_the_official_evaluator(shared: Path, contours, suffix: str, images: int | None) -> None:
    golden, maps, boxes = _golden_split(shared)
    metric = MaxBoxAcc(contours=contours, images=images)
    for i in range(0, 64, 24):
        ids = None if images is None else torch.arange(64)[i : i + 24]
        metric.update(maps[i : i + 24], boxes[i : i + 24], ids=ids)
    np.testing.assert_array_equal(metric.curve().numpy(), golden["box_acc" + suffix])
    np.testing.assert_array_equal(metric.compute().numpy(), golden["maxboxacc" + suffix])
    np.testing.assert_array_equal(metric._totals()[0], golden["box_num_correct" + suffix])
    np.testing.assert_array_equal(
        best_iou(maps, boxes, threshold_grid(1000), contours), golden["best_iou" + suffix]
    )


def test_headline_values_of_the_official_evaluator(shared: Path) -> None:
    golden, maps, boxes = _golden_split(shared)
    v1, v2 = MaxBoxAcc(iou=(0.5,)), MaxBoxAccV2()
    v1.update(maps, boxes)
    v2.update(maps, boxes)
    assert v1.compute().item() == golden["maxboxacc"].item() == 40.625
    assert v2.compute().item() == pytest.approx(golden["maxboxacc_v2"].item(), abs=1e-12)
    assert v2.at_best_threshold().tolist() == golden["maxboxacc_multi"].tolist()


def _cub_boxes(shared: Path, split: str) -> torch.Tensor:
    """The true box of every image of a CUB list, scaled to 224x224, (N, 4)."""
    with zipfile.ZipFile(shared / "golden" / "wsol_metadata.zip") as archive:
        name = next(n for n in archive.namelist() if n.endswith(f"CUB/{split}/image_sizes.txt"))
        read = lambda file: io.TextIOWrapper(archive.open(name.replace("image_sizes", file))).read().split()  # noqa: E731
        sizes = {i: (int(w), int(h)) for i, w, h in (line.split(",") for line in read("image_sizes"))}
        lines = [line.split(",") for line in read("localization")]
    assert len({line[0] for line in lines}) == len(lines) == len(sizes)
    return torch.cat(
        [scale_boxes(torch.tensor([[int(v) for v in b]]), sizes[i], (224, 224)) for i, *b in lines]
    )


@pytest.mark.parametrize(
    ("split", "centre", "sigma", "expected"),
    [
        ("test", 112.0, 60.0, [93.86, 59.72, 17.33]),
        ("test", 111.5, 50.0, [93.91, 59.60, 17.00]),
        ("val", 111.5, 50.0, [87.7, 45.2, 9.4]),
    ],
)
def test_centre_gaussian_on_the_cub_list(
    shared: Path, split: str, centre: float, sigma: float, expected: list[float]
) -> None:
    y, x = np.mgrid[:224, :224]
    blob = np.exp(-((x - centre) ** 2 + (y - centre) ** 2) / (2 * sigma**2))
    blob = (blob - blob.min()) / (blob.max() - blob.min())
    levels = (blob * 255).astype(np.uint8)
    # The same map for every image, so its boxes are found once.
    predicted = torch.from_numpy(largest_boxes(levels[None])[0])[
        (threshold_grid(1000) * levels.max()).astype(int)
    ]
    overlap = box_iou(_cub_boxes(shared, split), predicted)
    best = [100 * (overlap >= delta).double().mean(0).max().item() for delta in (0.3, 0.5, 0.7)]
    assert best == pytest.approx(expected, abs=0.006 if split == "test" else 0.05)


def test_full_image_box_on_the_cub_list(shared: Path) -> None:
    overlap = box_iou(_cub_boxes(shared, "test"), torch.tensor([[0, 0, 223, 223]]))[:, 0]
    found = [100 * (overlap >= delta).double().mean().item() for delta in (0.3, 0.5, 0.7)]
    assert found == pytest.approx([53.95, 18.95, 4.56], abs=0.006)


@pytest.mark.parametrize("contours", ["largest", "all"])
def test_equals_a_plain_loop_without_stored_values(contours) -> None:
    maps, boxes = _split()
    grid = threshold_grid(50)
    found = best_iou(maps, boxes, grid, contours)
    for i, levels in enumerate((maps.double().numpy() * 255).astype(np.uint8)):
        truth = [tuple(box) for box in boxes[i].tolist()]
        for k, tau in enumerate(grid):
            t = int(tau * int(levels.max()))
            if contours == "all":
                expected = best_iou_at(levels, t, truth)[0]
            else:
                expected = max(iou(largest_at(levels, t), box) for box in truth)
            assert found[i, k] == expected


def test_states_add_up() -> None:
    maps, boxes = _split()
    one, first, second = (MaxBoxAccV2(thresholds=100) for _ in range(3))
    one.update(maps, boxes)
    first.update(maps[:5], boxes[:5])
    second.update(maps[5:], boxes[5:])
    assert not torch.equal(first.total, one.total)
    assert torch.equal(first.total + second.total, one.total)
    first.merge_state(second)
    assert torch.equal(first.curve(), one.curve())
    assert first.counted() == 12
    assert one.total.shape == (3, 100)  # whatever the number of images


def test_forward_returns_the_batch_and_keeps_the_sum() -> None:
    maps, boxes = _split()
    metric, alone, whole = (MaxBoxAcc(thresholds=20) for _ in range(3))
    metric(maps[:5], boxes[:5])
    batch = metric(maps[5:], boxes[5:])
    alone.update(maps[5:], boxes[5:])
    whole.update(maps, boxes)
    assert torch.equal(batch, alone.compute())
    assert torch.equal(metric.compute(), whole.compute())
    metric.reset()
    with pytest.raises(FcamError, match="seen no image"):
        metric.curve()


def test_thresholds_oracle_and_carried_over() -> None:
    maps, boxes = _split()
    val, test = MaxBoxAcc(thresholds=100), MaxBoxAcc(thresholds=100)
    val.update(maps[:6], boxes[:6])
    test.update(maps[6:], boxes[6:])
    tau = val.best_threshold()
    curve = val.curve()
    for i in range(3):
        k = curve[i].tolist().index(curve[i].max().item())  # the first best
        assert tau[i] == val.thresholds()[k]
    assert torch.equal(val.at_threshold(tau), val.compute())
    carried = test.at_threshold(tau)
    assert (carried <= test.compute()).all()
    assert torch.equal(carried, torch.stack([test.curve()[i, round(tau[i].item() * 100)] for i in range(3)]))
    assert torch.equal(test.at_threshold(0.29), test.curve()[:, 29])
    assert torch.equal(test.at_threshold(tau.float()), carried)
    with pytest.raises(
        FcamError, match=r"0\.123 is not among this metric's 100 thresholds, the nearest is 0\.12"
    ):
        test.at_threshold(0.123)
    with pytest.raises(FcamError, match=r"shape \(3,\), got \(2,\)"):
        test.at_threshold(torch.tensor([0.1, 0.2]))
    with pytest.raises(FcamError, match="tau is 'low', but a threshold is a number"):
        test.at_threshold("low")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("curve", "place"),
    [
        ([3, 3, 3, 3, 3], 2),
        ([3, 3, 1, 1, 1], 0),
        ([3, 1, 3, 3, 3], 3),
        ([3, 3, 1, 3, 3], 0),
        ([1, 1, 1, 1, 3], 4),
        ([[0, 2, 2, 2], [5, 5, 5, 1]], [2, 1]),
    ],
)
def test_the_middle_of_the_longest_plateau(curve: list, place: int | list[int]) -> None:
    assert plateau(torch.tensor(curve)).tolist() == place


def test_a_tie_on_a_tiny_split_does_not_make_the_whole_map_the_box() -> None:
    map = torch.full((1, 20, 20), 0.2)
    map[0, 2:18, 2:18] = 0.9
    metric = MaxBoxAcc(iou=(0.5,))
    metric.update(map, [torch.tensor([[1, 1, 18, 18]])])
    assert metric.best_threshold().tolist() == [0.0]
    assert metric.plateau_threshold().tolist() == [0.499]
    assert torch.equal(metric.at_threshold(metric.plateau_threshold())[0], metric.compute())
    scores = BoxScores(torch.device("cpu"), classes=False)
    scores.update(map, None, None, [torch.tensor([[1, 1, 18, 18]])])
    assert scores.thresholds()["max_box_acc"]["0.5"] == 0.499


@pytest.mark.parametrize(("count", "distinct"), [(1000, 255), (250, 250), (100, 100)])
def test_grid_and_distinct_integer_thresholds(count: int, distinct: int) -> None:
    grid = threshold_grid(count)
    np.testing.assert_array_equal(grid, np.arange(0, 1, 1 / count))
    assert len(grid) == count
    assert len(np.unique((grid * 255).astype(int))) == distinct


@pytest.mark.parametrize("count", [1, 3, 7, 49, 77, 93, 999])
def test_grid_never_reaches_one(count: int) -> None:
    grid = threshold_grid(count)
    assert len(grid) == count
    assert grid.max() < 1


def test_map_without_signal_is_wrong_not_an_error() -> None:
    metric, exact = MaxBoxAcc(), MaxBoxAcc(convention="exact")
    for one in (metric, exact):
        one.update(torch.zeros(1, 8, 8), [torch.tensor([[1, 1, 6, 6]])])
        assert one.compute().tolist() == [0.0, 0.0, 0.0]
    corner = MaxBoxAcc()
    corner.update(
        torch.zeros(1, 8, 8), [torch.tensor([[0, 0, 1, 0]])]
    )  # the box 0, 0, 0, 0 covers half of it
    assert corner.compute().tolist() == [100.0, 100.0, 0.0]


@pytest.mark.parametrize(
    "turn",
    [
        lambda a: np.flip(np.flip(a, 1).copy(), 1),
        lambda a: a.astype(a.dtype.newbyteorder()),
        lambda a: a.astype(np.longdouble) if a.dtype.kind == "f" else a.astype(np.uint16),
        lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(
            a.shape
        ),  # as np.load(mmap_mode="r"), read-only
        list,
    ],
    ids=["flipped", "byte order", "long", "read-only", "list"],
)
def test_arrays_of_any_make_count_like_tensors(turn) -> None:
    maps, boxes = _split(4)
    masks = maps > 0.5
    box, other, pixels, same = MaxBoxAcc(iou=np.array([0.5])), MaxBoxAcc(iou=(0.5,)), PxAP(), PxAP()
    box.update(turn(maps.numpy()), [turn(own.numpy()) for own in boxes])
    other.update(maps, boxes)
    pixels.update(turn(maps.numpy()), turn(masks.numpy().astype(np.uint8)), turn(~masks.numpy()))
    same.update(maps, masks, ~masks)
    assert torch.equal(box.curve(), other.curve())
    assert torch.equal(pixels.compute(), same.compute())


def test_conventions_differ_by_one_pixel() -> None:
    square = torch.zeros(1, 10, 10)
    square[:, 2:5, 2:5] = 1
    truth = [torch.tensor([[2, 2, 4, 4]])]
    reference, exact = (MaxBoxAcc(iou=(0.6,), convention=c) for c in ("reference", "exact"))
    reference.update(square, truth)
    exact.update(square, truth)
    assert reference.compute().item() == 0  # 9 / 16
    assert exact.compute().item() == 100


@pytest.mark.parametrize(
    ("maps", "boxes", "message"),
    [
        (torch.zeros(2, 4, 4), [torch.zeros(1, 4, dtype=torch.int64)], "2 maps but 1 sets of boxes"),
        (torch.zeros(2, 4, 4), None, "boxes is None; pass a list"),
        (torch.zeros(1, 4, 4), [torch.zeros(0, 4, dtype=torch.int64)], "map 0 of the batch has no true box"),
        (torch.zeros(1, 4, 4), [torch.zeros(4, dtype=torch.int64)], r"got shape \(4,\)"),
        (torch.zeros(1, 4, 4), [[]], "map 0 of the batch has no true box"),
        (torch.zeros(1, 4, 4), [None], r"got shape \(\)"),
        (torch.zeros(1, 4, 4), [[[1, 2], [1]]], "boxes of map 0 must be one tensor or array"),
        (torch.zeros(1, 4, 4), [torch.zeros(1, 4)], "integer pixels, got float32"),
        ([torch.zeros(4, 4), torch.zeros(4, 5)], [], "maps must be one tensor or array, got several shapes"),
        (
            torch.zeros(1, 4, 4).bool(),
            [torch.zeros(1, 4, dtype=torch.int64)],
            "got bool.*make floats of masks",
        ),
        (torch.zeros(1, 1, 4, 4), [torch.zeros(1, 4, dtype=torch.int64)], r"\(1, 1, 4, 4\)"),
        (torch.full((1, 4, 4), float("nan")), [torch.zeros(1, 4, dtype=torch.int64)], "map 0 .* nan"),
        (torch.full((1, 4, 4), 2.0), [torch.zeros(1, 4, dtype=torch.int64)], "map 0 .* 2.0"),
    ],
)
def test_mistakes_are_named(maps: torch.Tensor, boxes: list[torch.Tensor], message: str) -> None:
    metric = MaxBoxAcc()
    with pytest.raises(FcamError, match=message):
        metric.update(maps, boxes)
    assert metric.counted() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contours": "some"}, "contours"),
        ({"convention": "mine"}, "convention"),
        ({"thresholds": 0}, "thresholds"),
        ({"thresholds": 10.5}, "thresholds"),
        ({"iou": ()}, "iou"),
        ({"iou": 0.5}, "iou"),
        ({"iou": torch.tensor([0.5, 1.5])}, "iou"),
        ({"iou": (50,)}, "iou"),
        ({"images": 0}, "images"),
        ({"images": [1, 2]}, "images"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(FcamError, match=message):
        MaxBoxAcc(**options)
