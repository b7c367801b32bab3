"""A model as one file that runs without this package: ONNX, or `.pt2` of torch.export.

Normalisation, classifier, decoder and softmax become one graph whose batch, height and width are free. The file is run
and compared with the model before it is kept.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from fcam import __version__
from fcam.errors import FcamError, cut, escaped
from fcam.export.check import INPUT, OUTPUTS, batches, check, sizes_for
from fcam.export.graph import Network
from fcam.files import write_atomic
from fcam.model import FCAM
from fcam.predict.localizer import Localizer, Photo

InputKind = Literal["float", "uint8"]
INPUT_TEXTS = {
    "float": "RGB, float32 (batch, 3, height, width) in [0, 1]; the file normalises it itself",
    "uint8": "RGB, uint8 (batch, height, width, 3), 0 to 255; the file normalises it itself",
}
MASK_RULE = "floor(255 foreground) > int(threshold * its maximum)"
NOTE = "fcam.json"
"""Name of the notes inside a `.pt2` file."""
OPSET = 18
TRACED = (2, 103, 141)
"""Batch, height and width of the traced images: odd, and none like another, so that no size is taken for special."""
ONNX_LIMIT = 2**31 - 2**24
"""Bytes of weights that fit into one ONNX file, whose format ends at 2 GB."""


class Exported(NamedTuple):
    """A file that was written and found right."""

    path: Path
    num_bytes: int
    difference: float
    """Largest difference from PyTorch in float32; that of the logits relative to the largest, where that is above 1."""
    sizes: tuple[tuple[int, int], ...]
    """(height, width) at which it was compared."""
    note: dict[str, str]
    """What is stored in the file beside the network."""


def export_onnx(
    model: FCAM,
    path: str | Path,
    *,
    photos: Iterable[Photo] = (),
    input: InputKind = "float",
    fixed_size: bool = False,
    threshold: float | None = None,
    size: int | None = None,
) -> Exported:
    """Write `model` as one `.onnx` file, from photos to class scores and foreground map.

    In: `images`, RGB, (B, 3, H, W) in [0, 1]. Out: `logits` and `probabilities` (B, K), `foreground` S² (B, H, W) in
    [0, 1]; all float32. The metadata hold class names, threshold, training size, mean and std. `model` is left alone.

    Args:
        photos: what the file is compared with PyTorch on; drawn pictures when there are none.
        input: "uint8" makes it read pixels as image libraries give them, (B, H, W, 3), 0 to 255.
        fixed_size: for classifiers that take one size only: height and width are `size`, the batch stays free.
        threshold: stored in the file instead of the model's own, as in `Localizer`.
        size: the same for the training size.

    Raises `FcamError`, and keeps no file, when packages are missing, the network cannot be written down, or onnxruntime
    gives another result than PyTorch by 1e-4 or more.
    """
    _check_path(path, ".onnx")
    runtime = [_needed(name) for name in ("onnx", "onnxscript", "onnxruntime")][-1]
    job = _Job(model, photos, input, fixed_size, threshold, size)
    weights = sum(t.numel() * t.element_size() for t in job.model.state_dict().values())
    if weights > ONNX_LIMIT:
        raise FcamError(
            f"the weights take {weights / 1e9:.1f} GB, and an ONNX file ends at 2 GB; write a .pt2 file instead"
        )

    def load(temporary: Path) -> Callable[[Tensor], Any]:
        session = runtime.InferenceSession(str(temporary), providers=["CPUExecutionProvider"])
        return lambda images: session.run(list(OUTPUTS), {INPUT: images.numpy()})

    return job.finish(path, _onnx_bytes, load)


def export_torch(
    model: FCAM,
    path: str | Path,
    *,
    photos: Iterable[Photo] = (),
    input: InputKind = "float",
    fixed_size: bool = False,
    threshold: float | None = None,
    size: int | None = None,
) -> Exported:
    """Write `model` as one `.pt2` file for `torch.export.load`; arguments, results and errors as in `export_onnx`.

    What the metadata of an ONNX file hold is a JSON text, the extra file `fcam.json` of the archive.
    """
    _check_path(path, ".pt2")
    job = _Job(model, photos, input, fixed_size, threshold, size)

    def load(temporary: Path) -> Callable[[Tensor], Any]:
        with _quiet():
            return torch.export.load(temporary).module()

    return job.finish(path, _torch_bytes, load)


class _Job:
    """What both formats have in common: a copy of the model on the CPU, its notes, tracing, writing and checking."""

    def __init__(
        self,
        model: FCAM,
        photos: Iterable[Photo],
        input: InputKind,
        fixed_size: bool,
        threshold: float | None,
        size: int | None,
    ) -> None:
        if input not in INPUT_TEXTS:
            raise FcamError(f"input is {input!r}; take 'float' or 'uint8'")
        own = copy.deepcopy(model).float()
        # What prediction takes, the file's user shall have too: threshold, size, names and the way photos are resized.
        self.localizer = Localizer(own, threshold, size, device="cpu", dtype=torch.float32)
        self.model = self.localizer.model
        self.photos = tuple(photos)
        self.input, self.fixed_size = input, fixed_size
        self.note = self._note()

    def _note(self) -> dict[str, str]:
        names = self.localizer.classes or map(str, range(self.model.classifier.num_classes))
        return {
            "fcam_version": __version__,
            "backbone": self.model.classifier.backbone.name,
            "classes": json.dumps([escaped(name) for name in names], ensure_ascii=False),
            "threshold": str(self.localizer.threshold),
            "size": str(self.localizer.size),
            **{name: json.dumps(v) for name, v in self.model.classifier.normalization_config().items()},
            "input": INPUT_TEXTS[self.input],
            "mask": MASK_RULE,
        }

    def trace(self) -> torch.export.ExportedProgram:
        """The network as a graph; raises `FcamError` for one that cannot be written down."""
        network = Network(self.model, self.input == "uint8").eval()
        side = self.localizer.size
        batch, height, width = (TRACED[0], side, side) if self.fixed_size else TRACED
        pixels = torch.zeros(batch, height, width, 3, dtype=torch.uint8)
        example = pixels if network.pixels else pixels.permute(0, 3, 1, 2).float().contiguous()
        free = {0: torch.export.Dim.DYNAMIC}
        if not self.fixed_size:
            free |= dict.fromkeys((1, 2) if network.pixels else (2, 3), torch.export.Dim.DYNAMIC)
        with torch.no_grad(), _quiet(), _explained(self):
            return torch.export.export(network, (example,), dynamic_shapes={INPUT: free}, strict=False)

    def finish(
        self,
        path: str | Path,
        content: Callable[[_Job], bytes],
        load: Callable[[Path], Callable[[Tensor], Any]],
    ) -> Exported:
        """Write the file, run it, and keep it if it is right."""
        sizes = sizes_for(self.localizer.size, self.fixed_size)
        images = list(
            batches(self.localizer, self.photos, sizes)
        )  # a bad photo ends it now, not after minutes
        with write_atomic(path) as temporary:
            temporary.touch()  # a folder that takes no file must be noticed before the work
            num_bytes = temporary.write_bytes(content(self))
            run = load(temporary)
            difference = check(run, self.model, images, self.input == "uint8")
            del run  # some systems cannot rename a file that is in use
        return Exported(Path(path), num_bytes, difference, sizes, self.note)


def _torch_bytes(job: _Job) -> bytes:
    """The network as a `.pt2` file with the notes, and nothing about this machine."""
    program, stream = job.trace(), io.BytesIO()
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        node.meta.pop("stack_trace", None)  # paths of this machine are nobody's business
    with _quiet():
        # On a full disk torch's own writing of a file ends the whole process: it raises once more while it cleans up.
        torch.export.save(program, stream, extra_files={NOTE: json.dumps(job.note)})
    return stream.getvalue()


def _onnx_bytes(job: _Job) -> bytes:
    """The network as an ONNX file, with names for its free sizes, the notes, and nothing about this machine."""
    import onnx

    program = job.trace()
    with _quiet(), _explained(job):
        written = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            external_data=False,
            verbose=False,
        )
    proto = cast(Any, written).model_proto
    proto.producer_name, proto.producer_version = "fcam", __version__
    onnx.helper.set_model_props(proto, job.note)
    graph = proto.graph
    side = str(job.localizer.size)
    height, width = (side, side) if job.fixed_size else ("height", "width")
    classes = str(job.model.classifier.num_classes)
    shape = ("batch", height, width, "3") if job.input == "uint8" else ("batch", "3", height, width)
    _name_sizes(graph.input[0], shape)
    for value, names in zip(
        graph.output, (("batch", classes), ("batch", classes), ("batch", height, width)), strict=True
    ):
        _name_sizes(value, names)
    del graph.value_info[:]  # runtimes infer shapes themselves
    parts = [graph, *graph.node, *graph.initializer, *graph.input, *graph.output]
    parts += [part for function in proto.functions for part in (function, *function.node)]
    for part in parts:
        del part.metadata_props[:]
        part.doc_string = ""
    return proto.SerializeToString()


def _name_sizes(value: Any, names: tuple[str, ...]) -> None:
    for dim, name in zip(value.type.tensor_type.shape.dim, names, strict=True):
        if name.isdigit():
            dim.dim_value = int(name)
        else:
            dim.dim_param = name


def _check_path(path: str | Path, suffix: str) -> None:
    path = Path(path)
    if path.suffix != suffix:
        raise FcamError(f"{path} has another suffix than {suffix}; name a {suffix} file")
    if path.is_dir():
        raise FcamError(f"{path} is a folder; name a {suffix} file")


def _needed(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise FcamError(
            f'writing ONNX needs {name}, which is not installed; pip install "fcam[export]"'
        ) from error


@contextlib.contextmanager
def _explained(job: _Job) -> Iterator[None]:
    """Turn whatever tracing raises into one sentence."""
    try:
        yield
    except FcamError:
        raise
    # Tracers refuse code in many ways, and none is of a kind that could be listed.
    except Exception as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        advice = (
            "predict with fcam instead" if job.fixed_size else "try --fixed-size (in Python fixed_size=True)"
        )
        raise FcamError(
            f"{job.model.classifier.backbone.name} cannot be written as a graph "
            f"({type(error).__name__}: {cut(first)}); {advice}"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep exporters' notes to developers from the user."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
