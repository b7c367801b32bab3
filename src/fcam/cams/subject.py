"""What a map is made from: a classifier and a batch of images, ours and anybody's behind one face."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fcam.cams.forward import Forward, answer_of, evaluating, forward_at, logits_of, unwrap
from fcam.cams.layers import run_at_layers
from fcam.cams.layout import Layout
from fcam.cams.target import run
from fcam.cams.trace import HeadWatch


class Subject:
    """A classifier and its images (B, 3, H, W), in whatever range the model's own forward takes.

    An fcam classifier (or the one inside an FCAM model) normalises its images itself and says where its
    features end, so nothing has to be searched there. Perturbation methods see the normalised images in
    either case.
    """

    def __init__(
        self, model: nn.Module, images: Tensor, layers: Sequence[str | nn.Module] | None = None
    ) -> None:
        model = unwrap(model)
        inner = getattr(model, "classifier", None)
        self.model: Any = inner if _is_ours(inner) else model
        self.ours = _is_ours(self.model)
        self.images = images
        self.layers = layers

    def forward(self, images: Tensor | None = None) -> Forward:
        """Run once with the graph cut at the last spatial map, or at the layers asked for."""
        images = self.images if images is None else images
        if self.layers is not None:
            return run_at_layers(self.model, images, self.layers)
        if not self.ours:
            return run(self.model, images)
        with evaluating(self.model), torch.no_grad():
            return self.from_top(self.model.backbone(images)[-1])

    def from_top(self, top: Tensor) -> Forward:
        """Run only the head of an fcam classifier, on top features (B, C, h, w) that are already there."""
        with evaluating(self.model), torch.no_grad():
            watch = HeadWatch()
            with watch:
                logits = logits_of(self.model.head(watch.take("top", top)))
        layout = Layout("NCHW", int(top.shape[2]), int(top.shape[3]))
        forward = forward_at(watch, logits, [watch.taken["top"]], [layout], ["the top features"])
        forward.class_maps = self.model.head.class_maps if self.model.head.has_class_maps else None
        return forward

    def stages(self) -> Forward:
        """Run once with the graph cut at several depths, for RefineCAM."""
        if self.layers is not None:
            return run_at_layers(self.model, self.images, self.layers)
        return run(self.model, self.images, stages=True)

    def normalized_images(self) -> Tensor:
        """The images as the network sees them."""
        return self.model.backbone.normalize(self.images) if self.ours else self.images

    def forward_noisy(self, noise: Tensor) -> Forward:
        """Run once with `noise` (B, 3, H, W) on the normalised images, however far it takes them."""
        if self.ours and self.layers is None:
            with evaluating(self.model), torch.no_grad():
                return self.from_top(self._bare()(self.normalized_images() + noise)[-1])
        scale = self.model.backbone.std if self.ours else 1.0
        return self.forward((self.images + noise * scale).to(self.images.dtype))

    def scores(self, normalized: Tensor) -> Tensor:
        """Return logits (B, K) of images as the network sees them, however far masks and noise took them."""
        with evaluating(self.model), torch.no_grad():
            if not self.ours:
                watch = HeadWatch(grids=False)
                with watch:
                    scores = logits_of(answer_of(self.model, normalized), len(normalized))
                return watch.before_activation(scores)
            return logits_of(self.model.head(self._bare()(normalized)[-1]))

    def _bare(self) -> nn.Module:
        """The backbone of an fcam classifier for normalised images: without its own normalisation and range check."""
        bare = copy.copy(self.model.backbone)  # shallow: it shares the weights, and nobody sees the change
        bare.__dict__["normalize"] = lambda images: images.to(bare.mean.dtype)
        return bare


def _is_ours(module: Any) -> bool:
    head = getattr(module, "head", None)
    return (
        isinstance(getattr(module, "backbone", None), nn.Module)
        and hasattr(module.backbone, "normalize")
        and hasattr(head, "class_maps")
    )
