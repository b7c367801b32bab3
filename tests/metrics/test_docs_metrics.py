"""The numbers worked by hand in docs/metrics.md."""

from __future__ import annotations

import doctest
from pathlib import Path

import torch

from fcam.metrics import MaxBoxAcc, TopKLocalization

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def _map() -> torch.Tensor:
    map = torch.zeros(6, 6)
    map[1:4, 1:4] = 0.6
    map[2, 2], map[5, 1] = 1, 0.2
    map[2:4, 5] = 0.4
    return map


BOXES = [torch.tensor([[1, 1, 3, 3]]), torch.tensor([[2, 2, 3, 3]]), torch.tensor([[5, 2, 5, 4]])]


def test_examples_print_what_the_page_says() -> None:
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted >= 20
    assert result.failed == 0


def test_table_of_correct_images() -> None:
    metric = MaxBoxAcc(thresholds=5)
    metric.update(_map().expand(3, 6, 6), BOXES)
    thirds = (metric.curve() * 3 / 100).round().int()
    assert thirds.tolist() == [[1, 1, 1, 2, 2], [1, 1, 1, 1, 1], [0, 0, 0, 1, 1]]


def test_top_1_needs_box_and_class_of_the_same_image() -> None:
    metric = TopKLocalization(topk=(1,), iou=(0.5,), thresholds=5)
    logits = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    metric.update(_map().expand(3, 6, 6), BOXES, logits, torch.zeros(3, dtype=torch.int64))
    assert round(metric.compute().item(), 1) == 33.3
    assert round(metric.best_threshold().item(), 1) == 0.6


def test_a_threshold_per_image_would_report_more() -> None:
    best = []
    for box in BOXES:
        metric = MaxBoxAcc(thresholds=5, iou=(0.5,))
        metric.update(_map()[None], [box])
        best.append(metric.compute().item())
    assert best == [100, 100, 0]


def test_bytes_per_image() -> None:
    def row(metric) -> int:
        return metric.rows.shape[1] * metric.rows.element_size()

    assert row(MaxBoxAcc(images=1)) == 376
    assert row(TopKLocalization(images=1)) == 751
    assert MaxBoxAcc().total.numel() * 8 == 24_000
