"""Score-CAM and its descendants: features weighted by the score of the image seen through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from fcam.cams.autograd import weigh
from fcam.cams.maps import normalize
from fcam.errors import FcamError

Scores = Callable[[Tensor], Tensor]
Report = Callable[[int, int], None]
SAMPLES = {"scorecam": 1, "sscam": 35, "iscam": 10}


def from_scores(
    scores: Scores,
    images: Tensor,
    activation: Tensor,
    class_idx: Tensor,
    method: str = "scorecam",
    *,
    variant: str = "published",
    samples: int | None = None,
    noise_std: float | None = None,
    top_channels: int | None = None,
    chunk: int = 32,
    generator: torch.Generator | None = None,
    progress: bool | Report | None = None,
) -> Tensor:
    """Return raw maps (B, n, h, w) float32 of Score-CAM, SS-CAM or IS-CAM.

    `scores` maps normalised images (m, 3, H, W) to logits (m, K); `images` are the normalised images
    (B, 3, H, W), `activation` their features (B, C, h, w), `class_idx` int64 (B, n). Each channel k gives a
    mask M_k in [0, 1] of the image's size. Published: `w = softmax over k of the mean logit of class c`, on
    `M_k x` (Score-CAM, Wang 2020), on `(M_k + d) x` with 35 draws d ~ N(0, 2^2) (SS-CAM, Wang 2020), on
    `c_i M_k x` with `c_i = (1 + ... + i) / N`, N = 10 (IS-CAM, Naidu 2020). The score of a baseline image is
    the same for all k and drops out. Reference: `w_k` is the probability (softmax over classes) of class c,
    averaged for SS-CAM and summed for IS-CAM; masks are normalised before they are enlarged, the map adds up
    normalised features, and the noise of SS-CAM is one (3, H, W) draw for all channels.

    At most `chunk` masked images are alive at a time. `top_channels` keeps those of the largest mean
    activation. `progress` is True for a bar, or a function of (done, total) channels. Raises `FcamError`
    for options below 1.
    """
    count = samples if samples is not None else SAMPLES[method]
    std = 2.0 if noise_std is None else noise_std
    _check(count, std, top_channels, chunk)
    batch, channels = activation.shape[:2]
    activation = activation.float()
    kept = _kept_channels(activation, top_channels)
    shared = None
    if method == "sscam" and variant == "reference":
        shared = _noise((count, *images.shape[1:]), generator, images) * std
    weights = torch.zeros(batch, class_idx.shape[1], channels, device=activation.device)
    with _reporting(progress, kept.numel()) as report:
        for image in range(batch):
            total = []
            for part in kept[image].split(chunk):
                masks = _masks(activation[image, part], images.shape[-2:], variant)
                total.append(torch.zeros(len(part), class_idx.shape[1], device=activation.device))
                for step in range(1, count + 1):
                    seen = _seen(images[image], masks, method, step, count, std, shared, generator)
                    logits = scores(seen.to(images.dtype)).float()
                    value = logits if variant == "published" else logits.softmax(1)
                    total[-1] += value[:, class_idx[image]]
                report(len(part))
            score = torch.cat(total)
            if variant == "published":
                score = (score / count).softmax(0)
            elif method != "iscam":  # the reference divides SS-CAM by N, but not IS-CAM
                score = score / count
            weights[image, :, kept[image]] = score.T
    if variant == "reference":
        activation = normalize(activation)
        weights = (
            weights * (activation.amax((2, 3)) > 0)[:, None]
        )  # its constant channels are NaN and skipped
    return F.relu(weigh(weights, activation))


def _check(count: int, std: float, top_channels: int | None, chunk: int) -> None:
    for name, value in (("samples", count), ("chunk", chunk), ("top_channels", top_channels)):
        if value is not None and value < 1:
            raise FcamError(f"{name} must be at least 1, got {value}")
    if std < 0:
        raise FcamError(f"noise_std must not be negative, got {std}")


def _kept_channels(activation: Tensor, top_channels: int | None) -> Tensor:
    """Indices (B, c) of the channels to score, in their own order."""
    batch, channels = activation.shape[:2]
    if top_channels is None or top_channels >= channels:
        return torch.arange(channels, device=activation.device).expand(batch, -1)
    return activation.mean((2, 3)).topk(top_channels, dim=1).indices.sort(1).values


def _masks(channels: Tensor, size: torch.Size, variant: str) -> Tensor:
    """Turn features (c, h, w) into masks (c, 1, H, W) in [0, 1]; the reference scales before it enlarges."""
    channels = normalize(channels) if variant == "reference" else channels
    masks = F.interpolate(channels[:, None], size, mode="bilinear", align_corners=False)
    return masks if variant == "reference" else normalize(masks)


def _seen(
    image: Tensor,
    masks: Tensor,
    method: str,
    step: int,
    count: int,
    std: float,
    shared: Tensor | None,
    generator: torch.Generator | None,
) -> Tensor:
    """Return the masked images (c, 3, H, W) of one step."""
    if method == "sscam":
        noise = _noise(masks.shape, generator, masks) * std if shared is None else shared[step - 1]
        return image * (masks + noise)
    if method == "iscam":
        return image * masks * (step * (step + 1) / 2 / count)
    return image * masks


def _noise(shape: tuple[int, ...] | torch.Size, generator: torch.Generator | None, like: Tensor) -> Tensor:
    """Standard normal noise, drawn where the generator lives and moved to `like`."""
    device = generator.device if generator is not None else torch.device("cpu")
    return torch.randn(shape, generator=generator, device=device).to(like.device)


@contextmanager
def _reporting(progress: bool | Report | None, total: int) -> Iterator[Callable[[int], None]]:
    done = 0
    if progress is True:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        with Progress(console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("channels", total=total)
            yield lambda step: bar.advance(task, step)
        return

    def report(step: int) -> None:
        nonlocal done
        done += step
        if callable(progress):
            progress(done, total)

    yield report
