"""fcam.cam on anybody's classifier: where it reads, what it accepts, and that it leaves no trace."""

from __future__ import annotations

import copy
import gc
import logging
import warnings

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from fcam.cams import EmptyMapWarning, cam, explain_target, from_features, normalize
from fcam.errors import FcamError


class Small(nn.Module):
    """Two strided convolutions and a head; in-place ReLU and functional pooling on purpose."""

    def __init__(self, head: nn.Module | None = None, pool: str = "mean") -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.body = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.fc = head or nn.Linear(6, 5)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(self.norm(self.stem(x)))
        x = F.relu(self.body(x), inplace=True)
        if self.pool == "attention":
            w = x.sum(1, keepdim=True).flatten(2).softmax(-1)
            return self.fc((x.flatten(2) * w).sum(-1))
        return self.fc(x.mean((2, 3)))


@pytest.fixture
def small() -> Small:
    torch.manual_seed(0)
    return Small().eval()


@pytest.fixture
def images() -> Tensor:
    return torch.randn(3, 3, 32, 24, generator=torch.Generator().manual_seed(1))


def hidden_head() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5))


def test_linear_head_is_the_closed_form(small: Small, images: Tensor) -> None:
    with torch.no_grad():
        top = small.body(F.relu(small.norm(small.stem(images)))).relu()
    index = torch.tensor([0, 3, 4])
    for method in ("cam", "gradcam", "gradcampp", "xgradcam", "layercam", "smoothgradcampp"):
        want = from_features(top, small.fc.weight, index, method)
        got = cam(small, images, index, method, normalize=False)
        assert got.shape == (3, 8, 6)
        torch.testing.assert_close(got, want)
    assert explain_target(small, images).closed_form


@pytest.mark.parametrize(
    ("name", "layer", "shape", "closed"),
    [
        ("resnet18", "'layer4'", (512, 3, 2), True),
        ("densenet121", "relu", (1024, 3, 2), True),  # a functional ReLU that no layer returns
        ("mobilenet_v3_small", "'features'", (576, 3, 2), False),
        ("squeezenet1_1", "'classifier.2'", (1000, 5, 3), True),
    ],
)
def test_torchvision_models_need_no_layer_name(name: str, layer: str, shape: tuple, closed: bool) -> None:
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None)
    found = explain_target(model, torch.randn(1, 3, 96, 64))
    assert layer in found.layer
    assert (found.shape, found.closed_form) == (shape, closed)


@pytest.mark.parametrize(
    ("name", "layer", "shape"),
    [
        ("resnet10t", "'layer4'", (512, 3, 2)),
        ("convnext_atto", "'norm_pre'", (320, 3, 2)),
        ("tf_efficientnet_lite0", "'bn2'", (1280, 3, 2)),
    ],
)
def test_timm_cnns_need_no_layer_name(name: str, layer: str, shape: tuple) -> None:
    torch.manual_seed(0)
    found = explain_target(timm.create_model(name, num_classes=4), torch.randn(1, 3, 96, 64))
    assert layer in found.layer
    assert found.shape == shape


def test_vision_transformers_are_read_on_their_token_grid() -> None:
    torch.manual_seed(0)
    options = {"depth": 3, "embed_dim": 48, "num_heads": 3, "num_classes": 4, "img_size": (64, 96)}
    model = timm.create_model("vit_tiny_patch16_224", **options)
    pixels = torch.randn(2, 3, 64, 96)
    assert "blocks.2.norm1" in explain_target(model, pixels).layer
    maps = cam(model, pixels, 1, "gradcam")
    assert maps.shape == (2, 4, 6)
    pooled = timm.create_model("vit_tiny_patch16_224", global_pool="avg", **options)
    assert "norm1" not in explain_target(pooled, pixels).layer


def test_token_gradients_are_those_of_the_whole_model() -> None:
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", depth=2, embed_dim=24, num_heads=3, num_classes=4, img_size=64
    ).eval()
    pixels = torch.randn(1, 3, 64, 64)
    kept = {}
    handle = model.blocks[1].norm1.register_forward_hook(lambda m, a, out: kept.update(out=out))
    score = model(pixels)[0, 2]
    handle.remove()
    gradient = torch.autograd.grad(score, kept["out"])[0][0, 1:]
    want = (gradient.mean(0) * kept["out"][0, 1:]).sum(1).relu().view(4, 4)
    got = cam(model, pixels, 2, "gradcam")[0]
    torch.testing.assert_close(got, normalize(want.detach()), atol=1e-5, rtol=0)


def test_attention_pooling_reads_the_map_before_it(images: Tensor) -> None:
    torch.manual_seed(0)
    model = Small(pool="attention").eval()
    found = explain_target(model, images)
    assert found.shape == (6, 8, 6)
    assert not found.closed_form


@pytest.mark.parametrize("method", ["gradcam", "gradcampp", "xgradcam", "layercam", "smoothgradcampp"])
def test_earlier_layer_has_the_backbones_gradient(small: Small, images: Tensor, method: str) -> None:
    by_name = cam(small, images, 2, method, target_layer="norm", generator=torch.Generator().manual_seed(0))
    by_module = cam(
        small, images, 2, method, target_layer=small.norm, generator=torch.Generator().manual_seed(0)
    )
    assert by_name.shape == (3, 16, 12)
    assert torch.equal(by_name, by_module)
    if method == "gradcam":
        a = small.norm(small.stem(images)).detach().requires_grad_()
        score = small.fc(small.body(a.relu()).relu().mean((2, 3)))[:, 2].sum()
        g = torch.autograd.grad(score, a)[0]
        want = normalize((g.mean((2, 3), keepdim=True) * a.detach()).sum(1).relu())
        torch.testing.assert_close(by_name, want, atol=1e-5, rtol=0)


def state_of(model: nn.Module) -> tuple:
    return (
        [m.training for m in model.modules()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()],
        [(p.requires_grad, p.grad is None) for p in model.parameters()],
        [b.clone() for b in model.buffers()],
        set(vars(model)),
    )


def same_state(a: tuple, b: tuple) -> bool:
    return a[:3] == b[:3] and a[4] == b[4] and all(torch.equal(x, y) for x, y in zip(a[3], b[3], strict=True))


@pytest.mark.parametrize("method", ["cam", "gradcampp", "smoothgradcampp", "scorecam", "refinecam"])
def test_the_callers_model_is_left_as_it_was(images: Tensor, method: str) -> None:
    torch.manual_seed(0)
    model = Small(hidden_head())
    model.train()
    model.body.eval()  # a mixture must come back as a mixture
    model.stem.requires_grad_(False)
    calls = []
    handle = model.norm.register_forward_hook(lambda *_: calls.append(1))
    before, weights = state_of(model), copy.deepcopy(model.state_dict())
    options = {"layers": ["norm", "body"]} if method == "refinecam" else {}
    cam(model, images, method=method, **options)
    assert same_state(before, state_of(model))
    assert calls  # the caller's own hooks still ran
    handle.remove()
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())


def test_the_model_is_restored_after_an_exception(images: Tensor) -> None:
    class Failing(Small):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            if len(x) > 1:
                raise RuntimeError("out of luck")
            return out

    model = Failing().train()
    before = state_of(model)
    for layer in (None, "body"):
        with pytest.raises(FcamError, match="out of luck") as failure:
            cam(model, images, target_layer=layer)
        assert isinstance(failure.value.__cause__, RuntimeError)
        assert same_state(before, state_of(model))
    with pytest.raises(FcamError):
        cam(model, images[:1], target_layer="fc")
    assert same_state(before, state_of(model))


def test_works_frozen_and_without_gradients(images: Tensor) -> None:
    torch.manual_seed(0)
    model = Small(hidden_head()).eval()
    want = cam(model, images, 1, "cam")
    assert want.amax((1, 2)).eq(1).all()
    model.requires_grad_(False)
    assert torch.equal(cam(model, images, 1, "cam"), want)
    with torch.no_grad():
        assert torch.equal(cam(model, images, 1, "cam"), want)
    with torch.inference_mode():
        inside = cam(model, images.clone(), torch.tensor([1, 1, 1]), "cam")
        assert not inside.is_inference()
    assert torch.equal(inside, want)


def test_works_where_the_backbone_is_under_its_own_no_grad(images: Tensor) -> None:
    class Guarded(Small):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = F.relu(self.body(F.relu(self.norm(self.stem(x)))))
            return self.fc(x.mean((2, 3)))

    torch.manual_seed(0)
    model = Guarded(hidden_head()).eval()
    assert cam(model, images, 1, "cam").amax((1, 2)).eq(1).all()


@pytest.mark.parametrize("head", [None, "hidden"])
def test_half_precision_gives_float32_maps(images: Tensor, head: str | None) -> None:
    torch.manual_seed(0)
    model = Small(hidden_head() if head else None).eval()
    plain = cam(model, images, 1, "layercam")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        auto = cam(model, images, 1, "layercam")
    low = cam(model.bfloat16(), images.bfloat16(), 1, "layercam")
    for maps in (auto, low):
        assert maps.dtype == torch.float32
        assert (maps - plain).abs().max() < 0.06


@pytest.mark.parametrize("method", ["cam", "gradcampp", "smoothgradcampp", "scorecam"])
def test_several_classes_per_image(images: Tensor, method: str) -> None:
    torch.manual_seed(0)
    model = Small(hidden_head()).eval()
    rows = [[0, 4], [1, 1], [2, 3]]

    def maps(index):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EmptyMapWarning)
            seed = {"generator": torch.Generator().manual_seed(0)} if method.startswith("smooth") else {}
            return cam(model, images, index, method, **seed)

    both = maps(rows)
    assert both.shape == (3, 2, 8, 6)
    for n in range(2):
        torch.testing.assert_close(both[:, n], maps(torch.tensor(rows)[:, n]), atol=1e-5, rtol=0)


def test_class_idx_forms_agree(small: Small, images: Tensor) -> None:
    want = cam(small, images, torch.tensor([2, 2, 2]))
    assert torch.equal(cam(small, images, 2), want)
    assert torch.equal(cam(small, images, [2, 2, 2]), want)
    assert torch.equal(cam(small, images, torch.tensor(2, dtype=torch.int32)), want)
    predicted = small(images).argmax(1)
    assert torch.equal(cam(small, images), cam(small, images, predicted))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"class_idx": [1, 2]}, "3 images"),
        ({"class_idx": [1, 2, 5]}, r"5.*0\.\.4"),
        ({"class_idx": -1}, "-1"),
        ({"class_idx": [[1], [2, 3], [0]]}, "as many classes"),
        ({"class_idx": 1.5}, "float32"),
        ({"method": "Grad-CAM++x"}, "gradcampp"),
        ({"method": "layer_cam2"}, "layercam"),
        ({"variant": "coded"}, "published"),
        ({"target_layer": "boddy"}, "body"),
        ({"target_layer": "fc"}, r"'fc' gives shape \(3, 5\).*call .* \(1, 6, 8, 6\)"),
        ({"target_layer": nn.Linear(1, 1)}, "not part of"),
        ({"method": "gradcam", "samples": 3}, "no option samples"),
        ({"method": "refinecam", "target_layer": "body"}, "layers="),
        ({"method": "refinecam", "layers": "body"}, "at least two layers, got 'body'"),
        ({"method": "scorecam", "top_channels": 0}, "top_channels"),
        ({"images": torch.zeros(3, 32, 32)}, "batch dimension"),
    ],
)
def test_mistakes_are_explained(small: Small, images: Tensor, given: dict, says: str) -> None:
    arguments = {"model": small, "images": images, "class_idx": 1} | given
    with pytest.raises(FcamError, match=says):
        cam(**arguments)


def test_models_without_a_map_are_refused() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
    with pytest.raises(FcamError, match="no spatial map"):
        cam(flat, torch.zeros(1, 3, 32, 32))
    with pytest.raises(FcamError, match=r"\(B, classes\)"):
        cam(nn.Conv2d(3, 2, 1), torch.zeros(1, 3, 32, 32))


def test_a_map_that_most_of_the_network_follows_is_not_the_last() -> None:
    model = timm.create_model("levit_128s", num_classes=3)  # its tokens fit no grid seen before
    with pytest.raises(FcamError, match="pass target_layer"):
        explain_target(model, torch.randn(1, 3, 224, 224))


def test_a_changed_model_is_looked_at_again(small: Small, images: Tensor) -> None:
    assert explain_target(small, images).shape == (6, 8, 6)
    small.body = nn.Sequential(small.body, nn.ReLU(), nn.Conv2d(6, 6, 3, stride=2, padding=1))
    assert explain_target(small, images).shape == (6, 4, 3)


def test_choice_is_logged_once(small: Small, images: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fcam"):
        cam(small, images)
        cam(small, images)
    assert len(caplog.records) == 1
    assert "(1, 6, 8, 6)" in caplog.text


def test_empty_maps_are_reported(small: Small, images: Tensor) -> None:
    with torch.no_grad():
        small.fc.weight[1] = -1.0
    with pytest.warns(EmptyMapWarning, match=r"2 of 3 'gradcam' maps are empty, at image 0, 2"):
        maps = cam(small, images, [1, 2, 1], "gradcam")
    assert maps[0].eq(0).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cam(small, images, 1, "cam")


def test_raw_maps_are_not_clipped(small: Small, images: Tensor) -> None:
    raw = cam(small, images, 1, normalize=False)
    assert torch.equal(normalize(raw.numpy()), normalize(raw))
    torch.testing.assert_close(
        raw.mean((1, 2)) + small.fc.bias[1].detach(), small(images)[:, 1].detach(), atol=1e-5, rtol=1e-5
    )


def test_memory_stays_flat_over_ten_thousand_maps() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4),
        nn.ReLU(), nn.Linear(4, 3),
    )  # fmt: skip
    batch = torch.rand(50, 3, 9, 9)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(obj), Tensor) for obj in gc.get_objects())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmptyMapWarning)
        cam(model, batch, 0, "gradcam")
        before = tensors()
        gc.disable()  # nothing may depend on the cycle collector
        try:
            for _ in range(200):
                cam(model, batch, 0, "gradcam")
            live = sum(issubclass(type(obj), Tensor) for obj in gc.get_objects())
        finally:
            gc.enable()
    assert live <= before + 5


class Squeezing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fc = nn.Conv2d(3, 8, 3, stride=8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.adaptive_avg_pool2d(self.body(x), 1).squeeze())


@pytest.mark.parametrize("method", ["cam", "layercam"])
def test_a_head_that_squeezes_takes_one_image_and_several(images: Tensor, method: str) -> None:
    model = Squeezing().eval()
    maps = cam(model, images, 1, method, normalize=False)
    torch.testing.assert_close(cam(model, images[:1], 1, method, normalize=False), maps[:1])


@pytest.mark.parametrize("name", ["levit_128s", "tnt_s_patch16_224", "hiera_tiny_224"])
def test_tokens_that_most_of_the_network_follows_are_not_taken_for_its_map(name: str) -> None:
    model = timm.create_model(name, num_classes=3)
    for _ in range(2):  # the answer does not depend on what the first try left in the model's caches
        with pytest.raises(FcamError, match="pass target_layer"):
            cam(model, torch.rand(2, 3, 224, 224), 1)


def test_a_model_that_fills_a_cache_in_its_first_forward_is_read() -> None:
    model = timm.create_model("convit_tiny", num_classes=3)
    assert explain_target(model, torch.rand(1, 3, 224, 224)).layer.startswith("'blocks.11.norm1'")


def quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(Small(), {nn.Linear}, dtype=torch.qint8)


@pytest.mark.parametrize(
    ("model", "pixels", "words"),
    [
        ("resnet18", torch.rand(1, 3, 32, 32), "must be a torch module, got str"),
        (Small().state_dict(), torch.rand(1, 3, 32, 32), "must be a torch module, got OrderedDict"),
        (quantised(), torch.rand(1, 3, 32, 32), "quantised.*float model"),
        (Small().half(), torch.rand(1, 3, 32, 32), r"fails on images.*weights are torch.float16 on cpu"),
        (Small(), torch.rand(1, 1, 32, 32), r"fails on images of shape \(1, 1, 32, 32\)"),
        (Small(), torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "torch.uint8.*; convert it"),
        (Small(), torch.zeros(1, 3, 32, 32).numpy(), "got ndarray; make a tensor"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_sentence(model: nn.Module, pixels: Tensor, words: str) -> None:
    with pytest.raises(FcamError, match=words):
        cam(model, pixels)


def test_a_list_is_not_a_layer(images: Tensor) -> None:
    with pytest.raises(FcamError, match="name one layer"):
        cam(Small(), images, target_layer=["body"])  # type: ignore[arg-type]
