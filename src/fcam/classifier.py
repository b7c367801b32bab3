"""The classifier: a backbone and a pooling head (the paper's g)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fcam.backbones import Backbone, build_backbone
from fcam.errors import FcamError
from fcam.heads import Head, LinearHead, build_head


class ClassifierOutput(NamedTuple):
    """Logits (B, K), and the features [f1, ..., fD] they came from, shallow to deep."""

    logits: Tensor
    features: list[Tensor]


class Classifier(nn.Module):
    """Backbone and pooling head; `forward(images (B, 3, H, W) in [0, 1])` gives a `ClassifierOutput`.

    Attributes:
        took_imagenet_head: whether the head's weights came with the backbone's ImageNet weights.
    """

    def __init__(self, backbone: Backbone, head: Head) -> None:
        super().__init__()
        if head.channels != backbone.channels[-1]:
            raise FcamError(
                f"the head reads {head.channels} channels but the top map of {backbone.name} has "
                f"{backbone.channels[-1]}; build the head with backbone.channels[-1]"
            )
        self.backbone = backbone
        self.head = head
        self.took_imagenet_head = False
        self._frozen: tuple[nn.Module, ...] = ()

    @property
    def num_classes(self) -> int:
        return self.head.num_classes

    @property
    def frozen(self) -> bool:
        """Whether the whole classifier is frozen."""
        return len(self._frozen) == 2

    def forward(self, images: Tensor) -> ClassifierOutput:
        features = self.backbone(images)
        return ClassifierOutput(self.head(features[-1]), features)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Scores of classes (B, K) in [0, 1] from logits (B, K)."""
        return self.head.probabilities(logits)

    def config(self) -> dict[str, Any]:
        """All that is needed to build this classifier again, as JSON values."""
        return {
            "backbone": self.backbone.name,
            "output_stride": self.backbone.output_stride,
            **self.normalization_config(),
            "head": {"name": self.head.name, **self.head.options()},
            "num_classes": self.num_classes,
        }

    def normalization_config(self) -> dict[str, list[float]]:
        """Mean and standard deviation of the backbone as JSON values."""
        mean, std = self.backbone.mean, self.backbone.std
        return {
            name: [round(v, 6) for v in t.flatten().tolist()] for name, t in (("mean", mean), ("std", std))
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], pretrained: bool = False) -> Classifier:
        """Build a classifier from what `config()` returned, with random or with ImageNet weights.

        KeyError where the configuration is incomplete; `FcamError` for weights that cannot be had.
        """
        head = dict(config["head"])
        name = head.pop("name")
        backbone = build_backbone(config["backbone"], pretrained, config["output_stride"])
        backbone.set_normalization(config["mean"], config["std"])
        classifier = Classifier(
            backbone, build_head(name, backbone.channels[-1], config["num_classes"], **head)
        )
        classifier.take_imagenet_head()
        return classifier

    def take_imagenet_head(self) -> None:
        """Give the head the last layer that came with the backbone's ImageNet weights, where there is one and it fits."""
        imagenet = self.backbone.classifier_weights()
        if imagenet is None or not isinstance(self.head, LinearHead):
            return
        if imagenet[0].shape == self.head.fc.weight.shape:
            with torch.no_grad():
                self.head.fc.weight.copy_(imagenet[0])
                self.head.fc.bias.copy_(imagenet[1])
            self.took_imagenet_head = True

    def freeze(self, part: Literal["all", "backbone"] = "all") -> Classifier:
        """Stop training all or the backbone alone: no gradients, and eval mode even under `.train()`."""
        self.unfreeze()
        object.__setattr__(self, "_frozen", (self.backbone, self.head) if part == "all" else (self.backbone,))
        for module in self._frozen:
            module.requires_grad_(False)
        return self.train(self.training)

    def unfreeze(self) -> Classifier:
        """Make all parameters trainable again; the mode stays until the next `.train()` or `.eval()`."""
        object.__setattr__(self, "_frozen", ())
        self.requires_grad_(True)
        return self

    def train(self, mode: bool = True) -> Classifier:
        super().train(mode and not self.frozen)
        for module in self._frozen:
            module.eval()
        return self

    def parameter_groups(self, lr: float, ratio: float = 10.0) -> list[dict[str, Any]]:
        """Optimiser groups of stage 1: `lr` for early layers, `lr * ratio` for the last stage and the head.

        The last stage is layer4 of ResNet50, conv6 of VGG16, the SPG layers of InceptionV3 (reference
        protocol) and what follows the second-last tap of a timm network. Frozen parameters are in no group.
        """
        late = [*self.backbone.late_parameters(), *self.head.parameters()]
        known = {id(p) for p in late}
        early = [p for p in self.backbone.parameters() if id(p) not in known]
        groups = [{"params": early, "lr": lr}, {"params": late, "lr": lr * ratio}]
        for group in groups:
            group["params"] = [p for p in group["params"] if p.requires_grad]  # type: ignore[union-attr]
        return [group for group in groups if group["params"]]
