"""What a stage-2 step under bfloat16 autocast costs a CPU beside its convolutions.

    python benchmarks/autocast_step.py

A processor without bfloat16 units takes minutes for the convolutions of such a step, so only all else can be measured there:
each convolution is replaced by a stand-in that writes a result of the right shape, type and layout. Processor time of one
thread, batch 8 at 224x224, in turns, medians: with the decoder's maps and the classifier's appended to each other, and
convolved apart (`fcam.upsampled`).
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from fcam.benchmark.pictures import pictures
from fcam.benchmark.timing import processor_milliseconds
from fcam.benchmark.train_step import Step
from fcam.memory import keep_freed_memory
from fcam.upsampled import UpsampledConv2d

convolution = F.conv2d


class StandIn(torch.autograd.Function):
    """Writes what a convolution and its gradients would write, without reading anything."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, shape: list[int]) -> Tensor:
        ctx.save_for_backward(images, weight)
        return torch.empty(shape, dtype=images.dtype, memory_format=torch.channels_last).fill_(0.01)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad
        images, weight = (
            torch.empty_like(tensor).fill_(1e-3) if wanted else None
            for tensor, wanted in zip(ctx.saved_tensors, needed, strict=False)
        )
        return images, weight, grads[0][0, :, 0, 0].clone() if needed[2] else None, None


def stand_in(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """`F.conv2d` as autocast calls it, with the stand-in for the library's work."""
    if not torch.is_autocast_enabled("cpu"):
        return convolution(images, weight, bias, stride, padding, dilation, groups)
    with torch.autocast("cpu", enabled=False):
        without_data = (images.to("meta", torch.float32), weight.to("meta", torch.float32))
        shape = list(convolution(*without_data, None, stride, padding, dilation, groups).shape)
    cast = [None if t is None else t.to(torch.bfloat16) for t in (images, weight, bias)]
    return StandIn.apply(*cast, shape)  # pyright: ignore[reportReturnType]


def measure(backbone: str, repeats: int) -> str:
    """The row of one backbone."""
    step = Step(backbone, torch.device("cpu"), "bf16", pictures(8, 224, None))

    def joined() -> None:
        with patch.object(UpsampledConv2d, "_gains_apart", lambda *_: False):
            step.whole()

    with patch.object(F, "conv2d", stand_in):
        laps = [
            (processor_milliseconds(joined), processor_milliseconds(step.whole)) for _ in range(repeats + 2)
        ]
    before, after = (statistics.median(column) for column in zip(*laps[2:], strict=True))
    return f"| {backbone} | {before:,.0f} | {after:,.0f} | {before / after:.2f} |"


def main() -> None:
    """A row per backbone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as `fcam train` does
    print("| backbone | appended, ms | apart | ratio |\n|---|--:|--:|--:|")
    for backbone in ("resnet50", "vgg16", "inceptionv3"):
        print(measure(backbone, arguments.repeats), flush=True)


if __name__ == "__main__":
    main()
