"""The Score-CAM family by its definition, in bounded memory, and the centre Gaussian."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fcam.cams import cam, center_gaussian, normalize, refine
from fcam.cams.perturbation import from_scores
from fcam.errors import FcamError


class Strided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 7, 3, stride=4, padding=1), nn.ReLU())
        self.fc = nn.Linear(7, 5)
        self.largest = 0

    def forward(self, x: Tensor) -> Tensor:
        self.largest = max(self.largest, len(x))
        return self.fc(self.body(x).mean((2, 3)))


@pytest.fixture
def model() -> Strided:
    torch.manual_seed(0)
    return Strided().eval()


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))


def one_by_one(model: Strided, x: Tensor, k: int, method: str, variant: str, noise: Tensor) -> Tensor:
    """One image (3, H, W), channel after channel, straight from the definitions."""
    with torch.no_grad():
        a = model.body(x[None])[0]
        weights = []
        shown = []
        for channel in a:
            if variant == "reference":
                channel = (channel - channel.min()) / (channel.max() - channel.min())  # NaN if constant
                shown.append(channel)
            mask = F.interpolate(channel[None, None], x.shape[1:], mode="bilinear", align_corners=False)[0, 0]
            if variant == "published":
                mask = normalize(mask)
            total, seen = 0.0, torch.zeros_like(x)
            steps = {"scorecam": 1, "sscam": len(noise), "iscam": 4}[method]
            for i in range(1, steps + 1):
                if method == "iscam":
                    seen = seen + i / steps * x * mask
                else:
                    seen = x * (mask + noise[i - 1] if method == "sscam" else mask)
                logits = model(seen[None])[0]
                total += float((logits if variant == "published" else logits.softmax(0))[k])
            weights.append(total / (1 if (method, variant) == ("iscam", "reference") else steps))
        w = torch.tensor(weights)
        if variant == "published":
            return (w.softmax(0)[:, None, None] * a).sum(0).relu()
        return torch.nansum(w[:, None, None] * torch.stack(shown), 0).relu()


@pytest.mark.parametrize("variant", ["published", "reference"])
@pytest.mark.parametrize("method", ["scorecam", "sscam", "iscam"])
def test_equals_the_definition(model: Strided, images: Tensor, method: str, variant: str) -> None:
    with torch.no_grad():
        model.body[0].bias[2] = -100.0  # a dead channel
    noise = torch.randn(3, 3, 16, 24, generator=torch.Generator().manual_seed(3)) * 2
    options = {
        "sscam": {"samples": 3, "generator": torch.Generator().manual_seed(3)},
        "iscam": {"samples": 4},
    }
    if (method, variant) == ("sscam", "published"):  # one mask noise for all, by a chunk of one channel
        options["sscam"]["noise_std"] = 0.0
        noise = noise * 0
    got = cam(
        model, images, [1, 4], method, variant=variant, normalize=False, chunk=3, **options.get(method, {})
    )
    want = torch.stack(
        [one_by_one(model, images[i], k, method, variant, noise) for i, k in enumerate([1, 4])]
    )
    torch.testing.assert_close(normalize(got), normalize(want), atol=2e-6, rtol=0)


def test_memory_is_bounded_and_progress_is_told(model: Strided, images: Tensor) -> None:
    steps = []
    whole = cam(model, images, 1, "scorecam")
    model.largest = 0
    parts = cam(
        model, images, 1, "scorecam", chunk=2, progress=lambda done, total: steps.append((done, total))
    )
    assert model.largest == 2
    assert steps[0] == (2, 14)
    assert steps[-1] == (14, 14)
    torch.testing.assert_close(whole, parts)


def test_top_channels_keeps_the_most_active(model: Strided, images: Tensor) -> None:
    seen = []
    few = cam(model, images, 1, "scorecam", top_channels=2, progress=lambda *step: seen.append(step))
    assert seen[-1] == (4, 4)
    with torch.no_grad():
        a = model.body(images)
        best = a.mean((2, 3)).topk(2).indices
        muted = torch.zeros_like(a).scatter(1, best[:, :, None, None].expand(-1, -1, *a.shape[2:]), 1.0) * a
    every = from_scores(model, images, muted, torch.full((2, 1), 1), "scorecam")[:, 0]
    assert few.shape == every.shape
    # The muted channels add nothing, and softmax over the others differs by a factor only.
    torch.testing.assert_close(few, normalize(every), atol=1e-5, rtol=0)
    assert torch.equal(cam(model, images, 1, "scorecam", top_channels=99), cam(model, images, 1, "scorecam"))


def test_noise_is_reproducible(model: Strided, images: Tensor) -> None:
    def once(seed: int) -> Tensor:
        return cam(model, images, 1, "sscam", samples=2, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(once(0), once(0))
    assert not torch.equal(once(0), once(1))


def test_refine_multiplies_normalised_maps() -> None:
    coarse = torch.tensor([[[1.0, 3.0], [1.0, 1.0]]])
    fine = torch.arange(16.0).view(1, 4, 4)
    larger = F.interpolate(normalize(coarse)[:, None], (4, 4), mode="bilinear")[:, 0]
    torch.testing.assert_close(refine([fine, coarse]), larger * fine / 15)
    assert refine([fine[:, None], coarse[:, None]]).shape == (1, 1, 4, 4)
    torch.testing.assert_close(refine([fine[0], coarse[0]]), larger[0] * fine[0] / 15)
    with pytest.raises(FcamError, match="at least two"):
        refine([fine])


def test_center_gaussian_map() -> None:
    x = torch.arange(224.0)
    want = torch.exp(-((x[None] - 112) ** 2 + (x[:, None] - 112) ** 2) / (2 * 60.0**2))
    torch.testing.assert_close(center_gaussian(224, 224), want)
    maps = cam(nn.Identity(), torch.zeros(2, 3, 224, 224), method="center")
    torch.testing.assert_close(maps[1], normalize(want))
    several = cam(nn.Identity(), torch.zeros(2, 3, 32, 32), [[0, 1, 2], [2, 1, 0]], "center")
    assert several.shape == (2, 3, 32, 32)
    wide = center_gaussian(10, 40)
    assert wide.shape == (10, 40)
    assert wide.argmax() == 5 * 40 + 20


def test_center_gaussian_scores_its_known_value_on_cub(shared: Path) -> None:
    """59.72 MaxBoxAcc at IoU 0.5 on the 5794 test images (reference 14.3), here with boxes in closed form.

    A level set of the map is a disc around (112, 112): its box is known without contours, so this stays a
    test of the map and of its arithmetic alone.
    """
    level = (normalize(center_gaussian(224, 224)) * 255).to(torch.uint8)  # as the evaluator quantises
    folder = "CUB/test/"
    with zipfile.ZipFile(shared / "golden" / "wsol_metadata.zip") as archive:
        prefix = next(n for n in archive.namelist() if n.endswith(folder + "image_sizes.txt"))[:-15]
        read = lambda name: archive.read(prefix + name).decode().split("\n")  # noqa: E731
        sizes = {i: (int(w), int(h)) for i, w, h in (r.split(",") for r in read("image_sizes.txt") if r)}
        rows = [r.split(",") for r in read("localization.txt") if r]
    truth = []
    for row in rows:
        w, h = sizes[row[0]]
        x0, y0, x1, y1 = (int(v) for v in row[1:])
        truth.append([int(x0 * 224 / w), int(y0 * 224 / h), int(x1 * 224 / w), int(y1 * 224 / h)])
    boxes = torch.tensor(truth)
    best = 0.0
    for threshold in range(255):
        inside = level > threshold
        if not inside.any():
            break
        ys, xs = inside.any(1).nonzero()[:, 0], inside.any(0).nonzero()[:, 0]
        x0, y0, x1, y1 = int(xs[0]), int(ys[0]), min(int(xs[-1]) + 1, 223), min(int(ys[-1]) + 1, 223)
        width = (boxes[:, 2].clamp(max=x1) - boxes[:, 0].clamp(min=x0) + 1).clamp(min=0)
        height = (boxes[:, 3].clamp(max=y1) - boxes[:, 1].clamp(min=y0) + 1).clamp(min=0)
        both = width * height
        area = (boxes[:, 2] - boxes[:, 0] + 1) * (boxes[:, 3] - boxes[:, 1] + 1)
        iou = both / (area + (x1 - x0 + 1) * (y1 - y0 + 1) - both)
        best = max(best, 100 * (iou >= 0.5).float().mean().item())
    assert len(boxes) == 5794
    assert round(best, 2) == 59.72
