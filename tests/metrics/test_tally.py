"""Counting every image once: within a process, across processes, whatever a sampler repeats."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest
import torch
from opencv_oracle import as_scores, make_map
from torchmetrics import Metric, MetricCollection

from fcam.errors import FcamError
from fcam.metrics import MaxBoxAcc, MaxBoxAccV2, PIoU, PxAP, TopKLocalization

COUNT = 9


def _data() -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    kinds = ("smooth", "rings", "noise")
    maps = torch.from_numpy(np.stack([as_scores(make_map(kinds[i % 3], 16, 16, i)) for i in range(COUNT)]))
    boxes = [torch.tensor([[i % 5, i % 3, 9 + i % 4, 12]]) for i in range(COUNT)]
    masks = (maps > 0.6).roll(2, dims=2).to(torch.uint8)
    return maps, boxes, masks


def _feed(metric, positions: list[int], with_ids: bool) -> None:
    maps, boxes, masks = _data()
    ids = torch.tensor(positions) if with_ids else None
    if isinstance(metric, MaxBoxAcc):
        metric.update(maps[positions], [boxes[p] for p in positions], ids=ids)
    elif isinstance(metric, TopKLocalization):
        logits = torch.linspace(-1, 1, COUNT * 7).sin().reshape(COUNT, 7)[positions]
        metric.update(
            maps[positions], [boxes[p] for p in positions], logits, torch.tensor(positions) % 7, ids=ids
        )
    else:
        metric.update(maps[positions], masks[positions], ids=ids)


CASES = [
    (MaxBoxAcc, {"thresholds": 50}),
    (MaxBoxAccV2, {"thresholds": 50, "iou": (0.2, 0.4)}),
    (TopKLocalization, {"thresholds": 50, "topk": (1, 3)}),
    (PxAP, {"thresholds": 50}),
    (PIoU, {"thresholds": 50}),
]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_repeated_images_count_once(kind, options: dict) -> None:
    plain, once = kind(**options), kind(**options, images=COUNT)
    _feed(plain, list(range(COUNT)), with_ids=False)
    _feed(once, [3, 1, 3, 0], with_ids=True)  # twice in one batch
    assert once.missing().tolist() == [2, 4, 5, 6, 7, 8]
    _feed(once, [0, 1, 2, 4, 5], with_ids=True)  # again in a later one
    _feed(once, [8, 7, 6], with_ids=True)
    assert once.missing().tolist() == []
    assert once.counted() == plain.counted() == COUNT
    np.testing.assert_array_equal(once._totals()[0], plain._totals()[0])
    assert torch.equal(once.compute(), plain.compute())
    _feed(plain, [3], with_ids=False)
    assert plain.counted() == COUNT + 1


def _gather_from(states: list[dict]):
    """A stand-in for all_gather: the states of all processes, told apart by shape and type."""
    return lambda tensor, group: [
        next(s for s in state.values() if s.shape == tensor.shape and s.dtype == tensor.dtype)
        for state in states
    ]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_two_processes_with_a_padded_sampler(kind, options: dict) -> None:
    # Nine images on two processes: the sampler gives image 0 to both.
    shares = [[0, 2, 4, 6, 8], [1, 3, 5, 7, 0]]
    ranks = [kind(**options, images=COUNT) for _ in shares]
    for metric, share in zip(ranks, shares, strict=True):
        _feed(metric, share, with_ids=True)
    states = [copy.deepcopy(metric.metric_state) for metric in ranks]
    whole = kind(**options)
    _feed(whole, list(range(COUNT)), with_ids=False)
    for metric in ranks:
        metric.dist_sync_fn = _gather_from(states)
        metric.distributed_available_fn = lambda: True
        assert torch.equal(metric.compute(), whole.compute())
    ranks[0].reset()
    merged = kind(**options, images=COUNT)
    _feed(merged, shares[0], with_ids=True)
    merged.merge_state(states[1])
    assert merged.counted() == COUNT
    assert torch.equal(merged.compute(), whole.compute())


def test_curve_and_thresholds_gather_all_processes_too() -> None:
    metric, other, whole = (MaxBoxAcc(thresholds=50) for _ in range(3))
    _feed(metric, [0, 1, 2, 3], with_ids=False)
    _feed(other, [4, 5, 6, 7, 8], with_ids=False)
    _feed(whole, list(range(COUNT)), with_ids=False)
    local = metric.curve()
    metric.dist_sync_fn = _gather_from([copy.deepcopy(metric.metric_state), other.metric_state])
    metric.distributed_available_fn = lambda: True
    assert metric.counted() == COUNT
    assert torch.equal(metric.curve(), whole.curve())
    assert torch.equal(metric.best_threshold(), whole.best_threshold())
    metric.distributed_available_fn = lambda: False
    assert torch.equal(metric.curve(), local)  # the local state is back afterwards


@pytest.mark.parametrize("images", [None, COUNT])
def test_a_collection_gives_what_each_metric_gives_alone(images: int | None) -> None:
    once = {"thresholds": 20, "images": images}

    def metrics() -> dict[str, Metric]:
        return {
            "largest": MaxBoxAcc(iou=(0.5,), **once),
            "low": MaxBoxAcc(iou=(0.1,), **once),
            "all": MaxBoxAcc(iou=(0.5,), contours="all", **once),
            "exact": MaxBoxAcc(iou=(0.5,), convention="exact", **once),
            "top1": TopKLocalization((1,), iou=(0.5,), **once),
            "top3": TopKLocalization((3,), iou=(0.5,), **once),
            "top1 of all": TopKLocalization((1,), contours="all", iou=(0.5,), **once),
            "pxap": PxAP(**once),
            "piou": PIoU(**once),
        }

    maps, boxes, masks = _data()
    logits = torch.linspace(-1, 1, COUNT * 7).sin().reshape(COUNT, 7)
    maps[0], logits[0] = 0, torch.arange(7.0).flip(0)  # right by every metric: it tells none from another
    left, upper, right, lower = boxes[0][0].tolist()
    maps[0, upper : lower + 1, left : right + 1] = 1
    alone, together = metrics(), MetricCollection(metrics())
    for share in ([0], [1, 2, 3], [4, 5, 6, 7, 8]):
        ids = {"ids": torch.tensor(share)} if images else {}
        true = {"boxes": [boxes[p] for p in share], "masks": masks[share], "labels": torch.tensor(share) % 7}
        batch = {"maps": maps[share], "logits": logits[share], **true, **ids}
        together.update(**batch)
        for metric in alone.values():
            wanted = inspect.signature(metric.update).parameters
            metric.update(**{key: value for key, value in batch.items() if key in wanted})
    assert {name: float(v) for name, v in together.compute().items()} == {
        name: float(metric.compute()) for name, metric in alone.items()
    }
    assert ["pxap", "piou"] in [sorted(group, reverse=True) for group in together.compute_groups.values()]


@pytest.mark.parametrize("images", [None, COUNT])
def test_metrics_survive_pickling_and_copying(images: int | None) -> None:
    metric = MaxBoxAcc(thresholds=50, images=images)
    _feed(metric, [0, 1, 2], with_ids=images is not None)
    for twin in (pickle.loads(pickle.dumps(metric)), copy.deepcopy(metric), metric.clone()):
        assert torch.equal(twin.compute(), metric.compute())


def test_wrong_ids_are_named() -> None:
    maps, boxes, _ = _data()
    with pytest.raises(FcamError, match=r"construct it with images=len\(dataset\)"):
        MaxBoxAcc().update(maps[:1], boxes[:1], ids=torch.tensor([0]))
    with pytest.raises(FcamError, match=r"needs ids.*got none"):
        MaxBoxAcc(images=3).update(maps[:1], boxes[:1])
    with pytest.raises(FcamError, match=r"got \(2,\)"):
        MaxBoxAcc(images=3).update(maps[:1], boxes[:1], ids=torch.tensor([0, 1]))
    with pytest.raises(FcamError, match=r"got \(1,\) float32"):
        MaxBoxAcc(images=3).update(maps[:1], boxes[:1], ids=torch.tensor([1.5]))
    with pytest.raises(FcamError, match="position 3 lies outside a split of 3"):
        MaxBoxAcc(images=3).update(maps[:1], boxes[:1], ids=torch.tensor([3]))
    with pytest.raises(FcamError, match="images=len"):
        MaxBoxAcc().missing()


def test_memory_does_not_grow_with_images() -> None:
    metric = MaxBoxAccV2()
    _feed(metric, [0], with_ids=False)
    size = sum(state.numel() for state in metric.metric_state.values())
    for _ in range(3):
        _feed(metric, list(range(COUNT)), with_ids=False)
    assert sum(state.numel() for state in metric.metric_state.values()) == size == 3002
