"""What the two quicker ways of convolving on a CPU save: `python benchmarks/convolutions.py resnet50` prints Markdown.

Processor time with and without each way, in turns, least of several, so that a machine that does other work too can be used.
Convolving before doubling (`fcam.upsampled`): the decoder alone, forward at batch 1 as in inference, forward and backward at
batch 8 as in training. Wide convolutions (`fcam.winograd`): the whole network, forward at batch 8.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor, nn

import fcam
from fcam import winograd
from fcam.benchmark.timing import processor_milliseconds
from fcam.upsampled import UpsampledConv2d
from fcam.winograd import quick_convolutions

NETWORKS = ("resnet50", "vgg16", "inceptionv3", "tf_efficientnet_lite0")


def least(act: Callable[[], object], repeats: int, owner: object, condition: str) -> tuple[float, float]:
    """Least milliseconds of `act` without and with the way that is taken where `condition` of `owner` says so."""

    def plain() -> None:
        with patch.object(owner, condition, lambda *_: False):
            act()

    laps = [(processor_milliseconds(plain), processor_milliseconds(act)) for _ in range(repeats + 1)][1:]
    return min(lap[0] for lap in laps), min(lap[1] for lap in laps)


def measure(name: str, repeats: int) -> str:
    """The row of one network."""
    model: nn.Module = fcam.create_model(name, 1000, pretrained=False).eval()
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    assert isinstance(model, fcam.FCAM)

    def features(batch: int) -> tuple[Tensor, list[Tensor]]:
        images = torch.rand(batch, 3, 224, 224).contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            return images, model.classifier(images).features

    _, of_one = features(1)
    images, of_batch = features(8)

    def forward() -> Tensor:
        with torch.no_grad():
            return model.decoder(of_one, (224, 224))

    def step() -> None:
        with quick_convolutions(images):
            model.decoder(of_batch, (224, 224)).sum().backward()

    @torch.inference_mode()
    def whole() -> None:
        model(images)

    pairs = [least(whole, repeats, winograd, "gains"), least(forward, repeats, UpsampledConv2d, "_gains")]
    model.decoder.train()
    pairs.append(least(step, repeats, UpsampledConv2d, "_gains"))
    cells = [f"{plain:,.0f} | {quick:,.0f} | {plain / quick:.2f}" for plain, quick in pairs]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """A row per network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    parts = ("network of 8, wide", "decoder of 1, doubling", "decoder's step of 8, doubling")
    print("| network | " + " | ".join(f"{part}, ms | quick | ratio" for part in parts) + " |")
    print("|---|" + "--:|" * 3 * len(parts))
    for name in arguments.networks:
        print(measure(name, arguments.repeats), flush=True)


if __name__ == "__main__":
    main()
