"""Top-k localization: right box and right class."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fcam.errors import FcamError
from fcam.metrics import MaxBoxAcc, TopKLocalization, label_rank


def _square(x0: int, y0: int, x1: int, y1: int) -> torch.Tensor:
    map = torch.zeros(20, 20)
    map[y0 : y1 + 1, x0 : x1 + 1] = 1
    return map


def test_rank_is_that_of_the_stable_descending_sort() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(0, 4, (200, 9), generator=generator).float()  # many ties
    labels = torch.randint(0, 9, (200,), generator=generator)
    order = logits.sort(dim=1, descending=True, stable=True).indices
    assert torch.equal(label_rank(logits, labels), (order == labels[:, None]).int().argmax(1))


def test_arrays_are_taken_too() -> None:
    ranks = label_rank(np.array([[0.0, 2.0, 1.0]]), np.array([2]))
    assert ranks.tolist() == [1]


def test_counts_images_with_right_box_and_class() -> None:
    truth = [torch.tensor([[5, 5, 14, 14]])] * 4
    maps = torch.stack(
        [_square(5, 5, 14, 14), _square(5, 5, 14, 14), _square(0, 0, 2, 2), _square(5, 5, 14, 14)]
    )
    logits = torch.tensor([[9.0, 1, 0], [1, 9, 0], [9, 0, 1], [1, 2, 3]])
    labels = torch.tensor([0, 0, 0, 0])  # right; second; right class but wrong box; third
    metric = TopKLocalization(topk=(1, 2, 3), iou=(0.5,))
    metric.update(maps, truth, logits, labels)
    assert metric.compute().tolist() == [[25.0], [50.0], [75.0]]
    known = MaxBoxAcc(iou=(0.5,))
    known.update(maps, truth)
    assert known.compute().item() == 75.0  # torchmetrics makes one number a scalar
    assert metric.curve().shape == (3, 1, 1000)
    assert metric.best_threshold().shape == (3, 1)
    assert torch.equal(metric.at_threshold(metric.best_threshold()), metric.compute())


def test_each_k_has_its_own_threshold() -> None:
    # A bright core in a dim square: the box is the square at low thresholds and the core at high ones.
    map = 0.4 * _square(2, 2, 17, 17) + 0.6 * _square(8, 8, 11, 11)
    maps = torch.stack([map, map, map])
    boxes = [torch.tensor([[2, 2, 17, 17]]), torch.tensor([[8, 8, 11, 11]]), torch.tensor([[8, 8, 11, 11]])]
    logits = torch.tensor([[2.0, 1.0], [1.0, 2.0], [1.0, 2.0]])
    metric = TopKLocalization(topk=(1, 2), iou=(0.5,), thresholds=10)
    metric.update(maps, boxes, logits, torch.tensor([0, 0, 0]))
    assert metric.compute()[:, 0].tolist() == pytest.approx([100 / 3, 200 / 3])
    assert metric.best_threshold()[:, 0].tolist() == pytest.approx([0.0, 0.4])


def test_mistakes_are_named() -> None:
    map, box = _square(5, 5, 9, 9)[None], [torch.tensor([[5, 5, 9, 9]])]
    metric = TopKLocalization()
    with pytest.raises(FcamError, match="label 5 lies outside the 3 classes"):
        metric.update(map, box, torch.zeros(1, 3), torch.tensor([5]))
    with pytest.raises(FcamError, match="NaN"):
        metric.update(map, box, torch.full((1, 3), float("nan")), torch.tensor([0]))
    with pytest.raises(FcamError, match=r"\(1, 3\) and \(2,\)"):
        metric.update(map, box, torch.zeros(1, 3), torch.tensor([0, 1]))
    with pytest.raises(FcamError, match="1 maps but logits for 2 images"):
        metric.update(map, box, torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(FcamError, match="labels must be integer classes, got torch.float32"):
        metric.update(map, box, torch.zeros(1, 3), torch.tensor([1.5]))
    for topk in ((0,), 1, (1.5,)):
        with pytest.raises(FcamError, match="topk"):
            TopKLocalization(topk=topk)  # type: ignore[arg-type]
    assert metric.counted() == 0
