"""What folding batch normalisation saves: `python benchmarks/folding.py resnet50 tf_efficientnet_lite0` prints Markdown.

Processor time of one F-CAM forward, least of several in turns, so that a machine that does other work too can be used.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

import fcam
from fcam.benchmark.timing import processor_milliseconds
from fcam.folding import folded


@torch.inference_mode()
def measure(name: str, repeats: int) -> tuple[float, float]:
    """Least time of the network as it is, and folded."""
    model = fcam.create_model(name, 1000, pretrained=False).eval()
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    images = torch.rand(1, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    twin = folded(model, images)
    plain, quick = partial(model, images), partial(twin, images)
    for call in (plain, quick):
        call()
    laps = [(processor_milliseconds(plain), processor_milliseconds(quick)) for _ in range(repeats)]
    return min(lap[0] for lap in laps), min(lap[1] for lap in laps)


def main() -> None:
    """A row per network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=["resnet50", "tf_efficientnet_lite0"])
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| network | ms | folded | saved |\n|---|--:|--:|--:|")
    for name in arguments.networks:
        plain, fast = measure(name, arguments.repeats)
        print(f"| {name} | {plain:.0f} | {fast:.0f} | {100 * (1 - fast / plain):.0f} % |")


if __name__ == "__main__":
    main()
