"""PxAP and PIoU: official values, a plain NumPy computation, thresholds, mistakes."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from fcam.errors import FcamError
from fcam.metrics import PIoU, PxAP, score_histograms
from fcam.metrics.histogram import score_edges

EDGES = np.concatenate([np.arange(0, 1, 0.001), [1.0, 2.0, 3.0]])


def test_equals_the_official_evaluator(shared: Path) -> None:
    with np.load(shared / "golden" / "eval.npz") as file:
        golden = {
            k: file[k] for k in file.files if k.startswith("mask_") or k in ("pxap", "score_maps", "gt_mask")
        }
    metric = PxAP()
    maps, masks = torch.from_numpy(golden["score_maps"]), torch.from_numpy(golden["gt_mask"])
    for i in range(0, 64, 24):
        metric.update(maps[i : i + 24], masks[i : i + 24])
    (false, true), _ = metric._totals()
    np.testing.assert_array_equal(true, golden["mask_hist_true"])
    np.testing.assert_array_equal(false, golden["mask_hist_false"])
    precision, recall = metric._fractions()
    np.testing.assert_array_equal(precision, golden["mask_precision"])
    np.testing.assert_array_equal(recall, golden["mask_recall"])
    assert metric.compute().item() == pytest.approx(golden["pxap"].item(), abs=1e-9)
    tp, fp, positives, negatives = metric._counts()
    np.testing.assert_array_equal(tp[::-1], golden["mask_tp"])
    np.testing.assert_array_equal(fp[::-1], golden["mask_fp"])
    np.testing.assert_array_equal(positives - tp[::-1], golden["mask_fn"])
    np.testing.assert_array_equal(negatives - fp[::-1], golden["mask_tn"])


def _official_mask(ignore_file: Path) -> np.ndarray:
    """One public mask at 224x224: instances joined, ignored region outside them 255."""

    def read(path: Path) -> np.ndarray:
        grey = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
        return cv2.resize(grey, (224, 224), interpolation=cv2.INTER_NEAREST) > 127

    instances = [read(p) for p in ignore_file.parent.glob(ignore_file.name.split("_")[0] + "_m*.png")]
    return np.where(np.any(instances, axis=0), 1, np.where(read(ignore_file), 255, 0))


def test_three_public_masks(shared: Path) -> None:
    files = sorted((shared / "golden" / "masks").glob("*_ignore.png"))
    masks = torch.from_numpy(np.stack([_official_mask(file) for file in files]))
    counts = [[int((mask == v).sum()) for v in (1, 0, 255)] for mask in masks]
    assert counts == [[43031, 7145, 0], [833, 49343, 0], [347, 13910, 35919]]
    perfect, constant = PxAP(), PxAP()
    scores = torch.where(
        masks == 255, torch.rand(masks.shape, generator=torch.Generator().manual_seed(0)), 0.0
    )
    perfect.update(torch.where(masks == 1, 1.0, scores), masks)
    constant.update(torch.full(masks.shape, 0.4), masks)
    assert perfect.compute().item() == 100
    assert constant.compute().item() == pytest.approx(38.5755, abs=5e-5)


def _random(seed: int, kind: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    maps = torch.rand(5, 17, 23, generator=generator, dtype=torch.float64).to(kind)
    maps[0].mul_(1000).round_().div_(1000)  # values on the edges, where an ulp decides
    maps[1, :3], maps[1, 3:5] = 0, 1
    masks = torch.randint(0, 3, (5, 17, 23), generator=generator).to(torch.uint8)
    return maps, torch.where(masks == 2, 255, masks)


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
def test_histograms_equal_numpy(kind: torch.dtype) -> None:
    maps, masks = _random(3, kind)
    found = score_histograms(maps, masks, score_edges(1000))
    for i in range(5):
        for label in (0, 1):
            values = maps[i][masks[i] == label].double().numpy()
            np.testing.assert_array_equal(found[i, label], np.histogram(values, EDGES)[0])


@pytest.mark.parametrize("thresholds", [1, 2, 3, 7, 100])
def test_other_numbers_of_thresholds(thresholds: int) -> None:
    maps, masks = _random(4)
    edges = score_edges(thresholds)
    assert len(edges) == thresholds + 2
    found = score_histograms(maps, masks, edges).sum(0)
    for label in (0, 1):
        expected = np.histogram(maps[masks == label].double().numpy(), [*edges, 3.0])[0]
        np.testing.assert_array_equal(found[label], expected)


def test_precision_recall_and_overlap_at_every_threshold() -> None:
    maps, masks = _random(5)
    area, overlap = PxAP(thresholds=20), PIoU(thresholds=20)
    area.update(maps, masks)
    overlap.update(maps, masks)
    values, truth = maps[masks != 255].double(), masks[masks != 255] == 1
    curve = area.curve()
    assert torch.equal(curve.thresholds.flip(0)[:-1], overlap.thresholds())
    pairs = zip(overlap.thresholds(), overlap.curve(), strict=True)
    for k, (tau, iou) in enumerate(pairs):
        predicted = values >= tau
        hit = (predicted & truth).sum().item()
        expected = [100 * hit / predicted.sum().item(), 100 * hit / truth.sum().item()]
        expected.append(100 * hit / (predicted | truth).sum().item())
        assert list(area.at_threshold(tau)) == pytest.approx(expected)
        assert [curve.precision[-1 - k], curve.recall[-1 - k], iou] == pytest.approx(expected)
        assert overlap.at_threshold(tau) == iou
    assert overlap.compute() == overlap.curve().max()
    assert overlap.at_threshold(overlap.best_threshold()) == overlap.compute()
    assert overlap.at_threshold(overlap.plateau_threshold()) == overlap.compute()
    for metric in (area, overlap):
        with pytest.raises(FcamError, match="tau is None, but a threshold is a number"):
            metric.at_threshold(None)
        with pytest.raises(FcamError, match="tau must be one number, got 2"):
            metric.at_threshold([0.1, 0.2])
    with pytest.raises(FcamError, match=r"0\.33 is not among"):
        overlap.at_threshold(0.33)
    with pytest.raises(FcamError, match=r"0\.33 is not among"):
        area.at_threshold(0.33)
    assert np.isnan(area.at_threshold(2.0).precision)


def test_ignored_pixels_do_not_count_but_foreground_always_does() -> None:
    maps, _ = _random(6)
    masks = torch.randint(0, 2, maps.shape, generator=torch.Generator().manual_seed(1))
    ignore = torch.rand(maps.shape, generator=torch.Generator().manual_seed(2)) < 0.3
    joined, apart = PxAP(), PxAP()
    joined.update(maps, torch.where((masks == 0) & ignore, 255, masks))
    apart.update(maps, masks.bool(), ignore=ignore)
    assert torch.equal(joined.total, apart.total)
    assert int(joined.total.sum()) == maps.numel() - int((ignore & (masks == 0)).sum())


def test_states_add_up_and_batches_are_equal() -> None:
    maps, masks = _random(7)
    one, first, second = PxAP(), PxAP(), PxAP()
    one.update(maps, masks)
    first.update(maps[:2], masks[:2])
    second.update(maps[2:].numpy(), masks[2:].numpy())
    assert torch.equal(first.total + second.total, one.total)
    assert one.total.shape == (2, 1002)


def test_no_foreground_is_an_error_and_no_background_is_not() -> None:
    empty, full = PxAP(), PxAP()
    empty.update(torch.rand(1, 4, 4), torch.zeros(1, 4, 4, dtype=torch.uint8))
    with pytest.raises(FcamError, match="no mask of the split holds a foreground pixel"):
        empty.compute()
    grey = PIoU()
    grey.update(torch.rand(0, 4, 4), torch.ones(0, 4, 4, dtype=torch.uint8))  # a batch may be empty
    grey.update(torch.rand(1, 4, 4), 255 * torch.eye(4, dtype=torch.uint8)[None])
    with pytest.raises(FcamError, match="give masks of 0 and 255 as masks > 0"):
        grey.compute()
    full.update(torch.rand(1, 4, 4), torch.ones(1, 4, 4, dtype=torch.uint8))
    assert full.compute().item() == pytest.approx(100)
    # torchmetrics warns about the missing update first.
    with pytest.warns(UserWarning, match="before the"), pytest.raises(FcamError, match="seen no image"):
        PIoU().compute()


@pytest.mark.parametrize(
    ("maps", "masks", "ignore", "message"),
    [
        (
            torch.zeros(1, 4, 4),
            torch.zeros(1, 4, 5, dtype=torch.uint8),
            None,
            r"\(1, 4, 4\), got \(1, 4, 5\)",
        ),
        (torch.zeros(1, 4, 4), torch.zeros(1, 4, 4), None, "masks must be integer or bool"),
        (torch.zeros(1, 4, 4), torch.full((1, 4, 4), 7), None, "mask 0 of the batch holds the value 7"),
        (torch.zeros(1, 4, 4), torch.full((1, 4, 4), 257), None, "mask 0 of the batch holds the value 257"),
        (torch.zeros(1, 4, 4), torch.full((1, 4, 4), -1), None, "mask 0 of the batch holds the value -1"),
        (torch.full((1, 4, 4), float("nan")), torch.zeros(1, 4, 4, dtype=torch.uint8), None, "map 0 .* nan"),
        (torch.full((1, 4, 4), 1.25), torch.zeros(1, 4, 4, dtype=torch.uint8), None, "map 0 .* 1.25"),
        (
            torch.zeros(1, 4, 4),
            torch.zeros(1, 4, 4).bool(),
            torch.zeros(1, 3, 4).bool(),
            "ignore must have the shape",
        ),
        (
            torch.zeros(1, 4, 4),
            torch.zeros(1, 4, 4).bool(),
            torch.zeros(1, 4, 4),
            "ignore must be integer or bool",
        ),
    ],
)
def test_mistakes_are_named(maps, masks, ignore, message: str) -> None:
    metric = PxAP()
    with pytest.raises(FcamError, match=message):
        metric.update(maps, masks, ignore)
    assert metric.counted() == 0


@pytest.mark.parametrize("thresholds", [49, 93, 98, 1000])
def test_values_of_one_have_their_own_bin(thresholds: int) -> None:
    # 49 times 1 / 49 is less than 1 in double precision: the bin of 1 must not come from that product.
    below = np.nextafter(1.0, 0.0)
    maps = np.array([[[1.0, below, 0.0, 1.0]]])
    found = score_histograms(maps, np.ones(maps.shape, np.uint8), score_edges(thresholds))[0, 1]
    assert found[-2:].tolist() == [2, 0]
    assert found[[0, -3]].tolist() == [1, 1]
