"""Time an exported ONNX file in onnxruntime against the model in PyTorch, float32, on a CPU.

    python benchmarks/export.py
    python benchmarks/export.py --models tf_efficientnet_lite0 --threads 1 --rounds 100

Both run in turns on the same image with the same number of threads; printed are the medians and the median of the
ratios of neighbouring runs. PyTorch runs the way `Localizer` does: channels last, no autograd. Weights are random,
which changes no time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor

from fcam.benchmark.timing import milliseconds
from fcam.export import export_onnx
from fcam.model import FCAM, foreground
from fcam.registry import create_model

CPU = torch.device("cpu")
STRIDES = {"tf_efficientnet_lite0": 16}
"""Output strides of the recipes; 8 for others."""


def by_torch(model: FCAM, image: Tensor) -> Callable[[], Any]:
    model = model.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    image = image.contiguous(memory_format=torch.channels_last)

    def run() -> Any:
        with torch.inference_mode():
            out = model(image)
            return out.logits.softmax(1), foreground(out.maps)

    return run


def by_onnx(file: Path, image: Tensor, threads: int) -> Callable[[], Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    array = image.numpy()
    return lambda: session.run(None, {"images": array})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["tf_efficientnet_lite0", "resnet50"])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, {options.threads} threads, "
        f"batch {options.batch}, {options.size}x{options.size}, {options.rounds} runs each, in turns\n"
    )
    print("| model | PyTorch ms | ONNX ms | ONNX / PyTorch |\n|---|---|---|---|")
    for name in options.models:
        torch.manual_seed(0)
        model = create_model(name, 1000, pretrained=False, output_stride=STRIDES.get(name, 8))
        image = torch.rand(options.batch, 3, options.size, options.size)
        with tempfile.TemporaryDirectory() as folder:
            file = export_onnx(model, Path(folder) / "model.onnx").path
            onnx = by_onnx(file, image, options.threads)
        eager = by_torch(model, image)
        for run in (eager, onnx) * 3:
            run()
        times = [(milliseconds(eager, CPU), milliseconds(onnx, CPU)) for _ in range(options.rounds)]
        eager_ms, onnx_ms = (statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(b / a for a, b in times)
        print(f"| {name} | {eager_ms:.1f} | {onnx_ms:.1f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
