"""`fcam.cam`: one function for every method and every classifier."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fcam.cams.autograd import from_gradients, smooth_weights, weigh
from fcam.cams.center import center_gaussian
from fcam.cams.closed_form import from_features
from fcam.cams.forward import Forward
from fcam.cams.maps import empty_maps
from fcam.cams.maps import normalize as min_max
from fcam.cams.methods import check_method
from fcam.cams.perturbation import from_scores
from fcam.cams.refine import refine
from fcam.cams.subject import Subject
from fcam.errors import FcamError

Layer = str | nn.Module
# These say how to work, not what to compute: a loop over methods may pass them to all.
_ANY_METHOD = ("generator", "chunk", "progress")


class EmptyMapWarning(UserWarning):
    """Some maps are constant or not finite, and therefore all zeros after normalisation."""


@dataclass
class Options:
    """The keywords that only some methods listen to; None is the method's own default."""

    samples: int | None = None
    noise_std: float | None = None
    generator: torch.Generator | None = None
    top_channels: int | None = None
    chunk: int | None = None
    progress: bool | Callable[[int, int], None] | None = None
    layers: Sequence[Layer] | None = None
    base: str | None = None


def cam(
    model: nn.Module,
    images: Tensor,
    class_idx: int | Sequence[int] | Sequence[Sequence[int]] | Tensor | None = None,
    method: str = "cam",
    target_layer: Layer | None = None,
    variant: str = "published",
    normalize: bool = True,
    *,
    samples: int | None = None,
    noise_std: float | None = None,
    generator: torch.Generator | None = None,
    top_channels: int | None = None,
    chunk: int | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
    layers: Sequence[Layer] | None = None,
    base: str | None = None,
) -> Tensor:
    """Return class activation maps of any classifier, float32, as large as the layer they are read from.

    Args:
        model: an fcam classifier or FCAM model, or any torch classifier. It is run in eval mode, without
            gradients of its parameters, and is left as it was: mode, hooks, `requires_grad`, `.grad`.
        images: (B, 3, H, W), as the model's own forward takes them (fcam models: RGB in [0, 1]).
        class_idx: 0-based classes: one for all images, one per image (list or int64 (B,)), or several per
            image (lists or int64 (B, n)); None is the predicted class.
        method: a name in `fcam.cams.METHODS`.
        target_layer: where the map is read, a layer or its name; None is the last spatial map before
            pooling, which is found by watching one forward pass (`explain_target` tells which it is).
        variant: "published" follows the cited paper, "reference" the code of the F-CAM authors.
        normalize: min-max each map to [0, 1], an empty map to zeros; False returns raw maps.
        samples: number of noisy copies.
        noise_std: standard deviation of their noise.
        generator: source of their random numbers.
        top_channels: for the Score-CAM family: score only so many of the most active channels.
        chunk: for the Score-CAM family: images per forward.
        progress: for the Score-CAM family: True for a bar, or a function of (done, total).
        layers: for RefineCAM: the layers whose maps are multiplied.
        base: for RefineCAM: the method that makes those maps.

    Returns:
        (B, h, w), or (B, n, h, w) for several classes per image; in [0, 1] unless `normalize` is False.

    Raises:
        FcamError: for an unknown method (with the nearest ones), classes out of range or too few of them, a
            layer without height and width, options that the method does not have. Empty maps are no error: an
            `EmptyMapWarning` lists them.
    """
    row = check_method(method, variant)
    options = Options(samples, noise_std, generator, top_channels, chunk, progress, layers, base)
    takes = {*row.options, *_ANY_METHOD}
    unknown = [name for name, value in vars(options).items() if value is not None and name not in takes]
    if unknown:
        raise FcamError(f"method '{method}' has no option {unknown[0]}; it takes {', '.join(sorted(takes))}")
    _check_images(images)
    if method == "center":
        gaussian = center_gaussian(images.shape[-2], images.shape[-1], device=images.device)
        gaussian = min_max(gaussian[None])[0] if normalize else gaussian
        classes = () if class_idx is None else torch.as_tensor(class_idx).shape[1:]
        return gaussian.repeat(len(images), *classes, 1, 1)
    if method == "refinecam" and target_layer is not None:
        raise FcamError("refinecam reads several layers: pass layers=[...] instead of target_layer")
    if method == "refinecam" and layers is not None and (isinstance(layers, str) or len(layers) < 2):
        raise FcamError(f"refinecam multiplies the maps of at least two layers, got {layers!r}; name more")
    # Tensors made in inference mode cannot take part in any gradient, so the work is done outside of it.
    with torch.inference_mode(False), torch.no_grad():
        images = images.clone() if images.is_inference() else images
        cut = layers if layers is not None else None if target_layer is None else [target_layer]
        subject = Subject(model, images, cut)
        forward = subject.stages() if method == "refinecam" else subject.forward()
        index = _class_index(class_idx, forward.logits.detach())
        raw = _make(subject, forward, index if index.dim() == 2 else index[:, None], method, variant, options)
        raw = raw if index.dim() == 2 else raw[:, 0]
        _report_empty(raw, method)
        return min_max(raw) if normalize else raw


def from_top(
    classifier: nn.Module,
    images: Tensor,
    top: Tensor,
    class_idx: Tensor,
    method: str = "cam",
    *,
    variant: str = "published",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return raw maps (B, h, w) float32 of an fcam classifier from the top features it has already made.

    A linear head has the map in closed form; of any other the head alone runs again, and gradients, where the method
    needs them, stop at `top` (B, C, h, w). `images` (B, 3, H, W) in [0, 1] are read by methods that look at noisy
    copies alone, with noise of `generator`; `class_idx` is int64 (B,). Equal to `cam(classifier, images, class_idx,
    method, normalize=False)`. Raises `FcamError` for an unknown method.
    """
    check_method(method, variant)
    weight = classifier.head.linear_weight()  # type: ignore[operator,union-attr]
    if weight is not None and (method, variant) != ("smoothgradcampp", "reference"):
        with torch.no_grad():
            return from_features(top, weight, class_idx, method, variant=variant)
    with torch.inference_mode(False), torch.no_grad():
        top, images = (t.clone() if t.is_inference() else t for t in (top, images))
        subject = Subject(classifier, images)
        index = class_idx.clone()[:, None]
        return _make(subject, subject.from_top(top), index, method, variant, Options(generator=generator))[
            :, 0
        ]


def _make(
    subject: Subject, forward: Forward, index: Tensor, method: str, variant: str, options: Options
) -> Tensor:
    """Raw maps (B, n, h, w) for class_idx (B, n), by the cheapest exact way."""
    top = forward.activations[-1]
    if method == "refinecam":
        return _refined(forward, index, options.base or "gradcampp", variant)
    if method in ("scorecam", "sscam", "iscam"):
        given = {k: v for k, v in vars(options).items() if v is not None and k not in ("layers", "base")}
        images = subject.normalized_images()
        return from_scores(subject.scores, images, top, index, method, variant=variant, **given)
    if forward.weight is not None:
        noisy = None
        if method == "smoothgradcampp" and variant == "reference":
            *_, last = _noises(subject, options)  # the others never reach the authors' map
            noisy = subject.forward_noisy(last).activations[-1]
        return from_features(top, forward.weight, index, method, variant=variant, noisy_top=noisy)
    if method == "cam" and forward.class_maps is not None:
        maps = forward.class_maps(top).float()
        return maps.gather(1, index[:, :, None, None].expand(-1, -1, *maps.shape[-2:]))
    if method == "smoothgradcampp":
        return _smooth(subject, top, index, variant, options)
    return from_gradients(top, forward.gradients(index)[-1], method, variant=variant)


def _refined(forward: Forward, index: Tensor, base: str, variant: str) -> Tensor:
    gradients = forward.gradients(index)
    pairs = zip(forward.activations, gradients, strict=True)
    return refine([from_gradients(a, g, base, variant=variant) for a, g in pairs])


def _noises(subject: Subject, options: Options) -> Iterator[Tensor]:
    """Yield noise for the normalised images: 4 draws of standard deviation 0.3, as the authors have it."""
    count = 4 if options.samples is None else options.samples
    std = 0.3 if options.noise_std is None else options.noise_std
    if count < 1 or std < 0:
        raise FcamError(f"smoothgradcampp needs samples >= 1 and noise_std >= 0, got {count} and {std}")
    generator = options.generator
    device = generator.device if generator is not None else torch.device("cpu")
    for _ in range(count):
        noise = torch.randn(subject.images.shape, generator=generator, device=device) * std
        yield noise.to(subject.images.device)


def _smooth(subject: Subject, top: Tensor, index: Tensor, variant: str, options: Options) -> Tensor:
    """Smooth-Grad-CAM++ where gradients depend on the image: their first three moments over noisy copies."""
    first = second = third = gradient = shown = torch.zeros(())
    count = 0
    for noise in _noises(subject, options):
        forward = subject.forward_noisy(noise)
        gradient, shown = forward.gradients(index)[-1], forward.activations[-1]
        first, second, third = first + gradient, second + gradient**2, third + gradient**3
        count += 1
    A = top.float()
    if variant == "published":
        first, shown = first / count, A
    else:  # the authors' code keeps the last gradient and the last noisy activation
        first, shown = gradient, shown.float()
    weights = smooth_weights(A[:, None], first, second / count, third / count, variant=variant)
    return torch.relu(weigh(weights, shown))


def _check_images(images: Tensor) -> None:
    if not isinstance(images, Tensor) or images.dim() != 4 or not images.is_floating_point():
        got, advice = type(images).__name__, "make a tensor of it"
        if isinstance(images, Tensor):
            got = f"{images.dtype} {tuple(images.shape)}"
            advice = "add a batch dimension" if images.dim() == 3 else "pass whole images"
            if images.dim() == 4:
                advice = "convert it, as the model's own forward takes it"
        raise FcamError(f"images must be a float tensor (B, channels, H, W), got {got}; {advice}")
    if len(images) == 0:
        raise FcamError("images is an empty batch; pass at least one image")


def _class_index(class_idx: Any, logits: Tensor) -> Tensor:
    """Return int64 classes (B,) or (B, n) on the logits' device, checked for number and range."""
    batch, classes = logits.shape
    if class_idx is None:
        return logits.argmax(1)
    try:
        index = torch.as_tensor(class_idx)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FcamError(
            f"class_idx must be int, list or int64 tensor, got {class_idx!r}; give each image as many classes"
        ) from error
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise FcamError(f"class_idx must hold 0-based class numbers, got {index.dtype}")
    index = index.to(logits.device, torch.int64, copy=True)
    index = index.expand(batch) if index.dim() == 0 else index
    if index.dim() > 2 or len(index) != batch or index.numel() == 0:
        raise FcamError(
            f"class_idx has shape {tuple(index.shape)} for {batch} images; give each image one class or a row"
        )
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= classes:
        raise FcamError(
            f"class_idx has {low if low < 0 else high}, but the model has classes 0..{classes - 1}"
        )
    return index


def _report_empty(raw: Tensor, method: str) -> None:
    empty = empty_maps(raw)
    if bool(empty.any()):
        where = [tuple(pair) if len(pair) > 1 else pair[0] for pair in empty.nonzero().tolist()]
        shown = ", ".join(map(str, where[:10])) + (", ..." if len(where) > 10 else "")
        what = "image" if raw.dim() == 3 else "(image, class)"
        warnings.warn(
            f"{len(where)} of {empty.numel()} '{method}' maps are empty, at {what} {shown}: nothing speaks "
            "for the class there, or the map has one pixel; method 'cam' keeps negative evidence",
            EmptyMapWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class Explanation:
    """Where `cam` reads the maps of a model, and whether in closed form; `str()` says it in a sentence."""

    layer: str
    shape: tuple[int, int, int]
    closed_form: bool

    def __str__(self) -> str:
        how = "closed form, the head is linear" if self.closed_form else "gradient through the head only"
        channels, height, width = self.shape
        return f"maps are read at {self.layer}: {channels} channels of {height}x{width}; {how}"


def explain_target(model: nn.Module, images: Tensor, target_layer: Layer | None = None) -> Explanation:
    """Tell where and how `cam` reads the maps of `model` for images (B, 3, H, W); raises what it raises."""
    _check_images(images)
    with torch.inference_mode(False), torch.no_grad():
        images = images.clone() if images.is_inference() else images
        forward = Subject(model, images[:1], None if target_layer is None else [target_layer]).forward()
    channels, height, width = forward.activations[-1].shape[1:]
    return Explanation(forward.names[-1], (channels, height, width), forward.weight is not None)
