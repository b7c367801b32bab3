"""Watching a forward pass begins shortly before its map, and that changes no map."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fcam.cams import cam, target
from fcam.cams.forward import evaluating, run_at_calls
from fcam.cams.target import find_targets
from fcam.errors import FcamError


class Net(nn.Module):
    """A CNN with one ReLU module for all, whose deep part may run inside a context of the model's own."""

    def __init__(self, context: bool = False) -> None:
        super().__init__()
        self.stem, self.deep, self.last = (
            nn.Conv2d(3, 4, 3, padding=1),
            nn.Conv2d(4, 6, 3, stride=2, padding=1),
            nn.Conv2d(6, 8, 3, padding=1),
        )
        self.relu, self.fc = nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5))
        self.context, self.broken = context, False

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        if self.context:
            with torch.device("cpu"):
                x = self.relu(self.last(self.relu(self.deep(x))))
        else:
            x = self.relu(self.last(self.relu(self.deep(x))))
        if self.broken:
            raise ValueError("out of order")
        return self.fc(x.mean((2, 3)))


def net(context: bool = False) -> Net:
    torch.manual_seed(0)
    return Net(context).eval()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))


def test_begins_at_the_last_layer_that_runs_once(images: Tensor) -> None:
    found = find_targets(net(), images)[-1]
    assert found.way_in == ("last", found.call - 2)


def test_the_map_is_the_one_of_a_forward_watched_as_a_whole(images: Tensor) -> None:
    model = net()
    found = find_targets(model, images)[-1]
    with torch.no_grad():
        late, whole = (run_at_calls(model, images, [t]) for t in (found, replace(found, way_in=("", 0))))
    assert late is not None
    assert whole is not None
    assert torch.equal(late.activations[0], whole.activations[0])
    classes = torch.tensor([[1, 2], [3, 4]])
    assert torch.equal(late.gradients(classes)[0], whole.gradients(classes)[0])


def test_never_begins_inside_a_context_of_the_models_own(images: Tensor) -> None:
    inside, plain = net(context=True), net()
    # `torch.device` is such a mode itself: leaving it would end the watch instead.
    assert find_targets(inside, images)[-1].way_in[0] not in ("deep", "last")
    for _ in range(2):
        torch.testing.assert_close(cam(inside, images, 4, "gradcam"), cam(plain, images, 4, "gradcam"))
    assert torch.overrides._get_current_function_mode_stack() == []


def test_a_context_that_comes_later_is_noticed(images: Tensor) -> None:
    model = net()
    want = cam(model, images, 4, "gradcam")
    model.context = True
    torch.testing.assert_close(cam(model, images, 4, "gradcam"), want)


def test_no_hook_stays_when_the_forward_fails(images: Tensor) -> None:
    model = net()
    cam(model, images, 4, "gradcam")
    model.broken = True
    with pytest.raises(FcamError, match="out of order"):
        cam(model, images, 4, "gradcam")
    assert not any(layer._forward_pre_hooks or layer._forward_hooks for layer in model.modules())
    assert torch.overrides._get_current_function_mode_stack() == []


def test_threads_may_share_a_model() -> None:
    model = net()
    photos = [torch.rand(1, 3, 16, 24, generator=torch.Generator().manual_seed(i)) for i in range(40)]
    want = [cam(model, photo, 4, "gradcam") for photo in photos]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda photo: cam(model, photo, 4, "gradcam"), photos))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_threads_share_a_model_in_training_mode() -> None:
    model = nn.Sequential(net(), nn.BatchNorm1d(5)).train()
    frozen = model[0].deep.eval()  # type: ignore[union-attr]
    first, second = evaluating(model), evaluating(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # another thread is not done yet
    assert not any(layer.training for layer in model.modules())
    with evaluating(model[0]):
        pass
    assert not any(layer.training for layer in model.modules())
    second.__exit__(None, None, None)
    assert [layer for layer in model.modules() if not layer.training] == [frozen]

    photos = [torch.rand(1, 3, 16, 24, generator=torch.Generator().manual_seed(i)) for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda photo: cam(model, photo, 4), photos))
    assert model[1].num_batches_tracked == 0
    assert [layer for layer in model.modules() if not layer.training] == [frozen]


@pytest.mark.parametrize("part", ["", "last"])
def test_a_network_compiled_in_place_is_watched_as_it_is_written(part: str, images: Tensor) -> None:
    model = net()
    want, middle = cam(model, images, 4, "gradcam"), cam(model, images, 4, "gradcam", "stem")
    model = net()
    compiled = model.get_submodule(part)
    compiled.compile(backend="eager")
    with torch.no_grad():
        model(images)
    call = compiled._compiled_call_impl
    assert torch.equal(cam(model, images, 4, "gradcam"), want)
    assert torch.equal(cam(model, images, 4, "gradcam", "stem"), middle)
    assert compiled._compiled_call_impl is call


@pytest.mark.parametrize("function", [False, True])
def test_what_was_compiled_is_watched_as_it_is_written(function: bool, images: Tensor) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x).relu()) + x

    def deeper() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, 2), Twice(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
        ).eval()

    want = cam(deeper(), images, 4, "layercam")
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = deeper()
    if function:
        model[1].forward = torch.compile(model[1].forward, backend=backend)
    else:
        model[1] = torch.compile(model[1], backend=backend)
    assert torch.equal(cam(model, images, 4, "layercam"), want)
    assert not graphs
    model(images)
    assert len(graphs) == 1  # compiled again as its owner wants it
    assert torch.equal(cam(model, images, 4, "layercam"), want)
    assert len(graphs) == 1


class Deeper(nn.Module):
    """A CNN whose depth is set between forwards, or given by the size of the photo, or by the number of photos."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.blocks = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))
        self.down, self.fc = nn.Conv2d(8, 8, 3, 2, 1), nn.Linear(8, 5)
        self.depth, self.by_size, self.by_number = 2, False, False

    def forward(self, x: Tensor) -> Tensor:
        depth, smallest = self.depth, 4 if self.by_size else 1000
        depth += 2 if self.by_number and len(x) > 1 else 0
        x = self.stem(x).relu()
        for block in self.blocks[:depth]:
            x = x + block(x).tanh()
        while x.shape[-1] > smallest:
            x = self.down(x).relu()
        return self.fc(x.mean((2, 3)))


@pytest.mark.parametrize("method", ["cam", "refinecam"])
def test_a_forward_that_takes_another_path_is_looked_at_again(method: str, images: Tensor) -> None:
    torch.manual_seed(0)
    model = Deeper().eval()
    model.by_size = method == "refinecam"
    before = cam(model, images, 4, method)
    model.depth = 4
    want = cam(copy.deepcopy(model), images, 4, method)
    assert not torch.equal(before, want)
    for _ in range(2):
        assert torch.equal(cam(model, images, 4, method), want)
    model.depth = 2
    assert torch.equal(cam(model, images, 4, method), before)


def test_a_path_that_depends_on_the_photos_is_followed(images: Tensor) -> None:
    torch.manual_seed(0)
    model = Deeper().eval()
    model.by_size = True
    for size in ((16, 24), (64, 64), (16, 24), (96, 80)):
        photos = F.interpolate(images, size)
        assert torch.equal(cam(model, photos, 4), cam(copy.deepcopy(model), photos, 4))
    model = Deeper().eval()
    model.by_number = True
    deep = Deeper().eval()
    deep.load_state_dict(model.state_dict())
    deep.depth = 4
    assert torch.equal(cam(model, images, 4), cam(deep, images, 4))


def test_a_model_is_looked_at_once(images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(target, "_look", lambda *given, look=target._look: seen.append(1) or look(*given))
    model = net()
    for method in ("gradcam", "layercam", "scorecam"):
        cam(model, images, 4, method)
        cam(model, images[:1], 4, method)
    assert len(seen) == 1
