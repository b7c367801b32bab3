"""A network whose answer is known: what is red is foreground, the photo's colour decides the class."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from fcam.model import FCAMOutput


class Planted(nn.Module):
    """Stands in for an `FCAM` with three classes: mostly red, mostly green, mostly blue."""

    def __init__(self, metadata: dict[str, Any] | None = None, classes: list[str] | None = None) -> None:
        super().__init__()
        self.metadata = metadata or {}
        self.classes = classes
        self.fc = nn.Linear(3, 3, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.eye(3) * 8)
        head = SimpleNamespace(linear_weight=lambda: self.fc.weight)
        self.classifier = SimpleNamespace(head=head, probabilities=lambda logits: logits.softmax(1))
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, images: Tensor) -> FCAMOutput:
        self.shapes.append(tuple(images.shape))
        red = images[:, 0] - images[:, 1:].amax(1)
        maps = torch.stack([torch.zeros_like(red), (red - 0.4) * 20], 1)
        top = nn.functional.avg_pool2d(images, 16)
        return FCAMOutput(self.fc(top.mean((2, 3))), maps, [top])
