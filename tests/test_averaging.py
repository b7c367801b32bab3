"""The moving average of the weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fcam.averaging import WeightAverage


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def fill(module: nn.Module, value: float) -> None:
    with torch.no_grad():
        for tensor in (*module.parameters(), module[1].running_mean):  # type: ignore[index]
            tensor.fill_(value)


def test_averages_weights_and_batch_statistics_and_gives_the_module_back():
    module = net()
    average = WeightAverage(module, 0.5)
    kept = 0.0
    for step in range(40):
        fill(module, float(step))
        average.update()
        kept = kept * (share := min(0.5, (1 + step) / (10 + step)) if step else 0.0) + step * (1 - share)
    with average.in_place():
        assert module[0].weight[0, 0].item() == pytest.approx(kept, abs=1e-5)  # type: ignore[index]
        assert module[1].running_mean[0].item() == pytest.approx(kept, abs=1e-5)  # type: ignore[index]
    assert module[0].weight[0, 0].item() == 39  # type: ignore[index]
    assert kept < 39


def test_the_module_comes_back_after_an_exception():
    module = net()
    average = WeightAverage(module, 0.9)
    fill(module, 1.0)
    average.update()
    fill(module, 2.0)
    with pytest.raises(KeyboardInterrupt), average.in_place():
        raise KeyboardInterrupt
    assert module[0].weight[0, 0].item() == 2  # type: ignore[index]


def test_without_decay_the_module_stands_for_itself():
    module = net()
    average = WeightAverage(module, 0.0)
    fill(module, 3.0)
    average.update()
    with average.in_place():
        assert module[0].weight[0, 0].item() == 3  # type: ignore[index]
    assert average.state_dict() is None


def test_a_restored_average_goes_on_as_the_first_would_have():
    module = net()
    first = WeightAverage(module, 0.8)
    for value in (1.0, 2.0):
        fill(module, value)
        first.update()
    second = WeightAverage(module, 0.8)
    second.load_state_dict(first.state_dict())
    fill(module, 5.0)
    first.update()
    second.update()
    with first.in_place():
        wanted = module[0].weight.clone()  # type: ignore[index]
    with second.in_place():
        assert torch.equal(module[0].weight, wanted)  # type: ignore[index]


def test_never_waits_for_the_device():
    module = net().to("meta")  # whose values nobody can read
    average = WeightAverage(module, 0.9)
    for _ in range(3):
        average.update()
    assert int(average.state_dict()["n_averaged"]) == 3  # type: ignore[index]
