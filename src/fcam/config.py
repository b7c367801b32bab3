"""Every default of the package, in frozen dataclasses; the command line, `config.yaml` and the recipes are views of them.

Names follow the paper. Where the paper leaves a choice open the comment says `ours`; where the authors' code
departs from the paper it says `code`.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal

CamMethod = Literal["cam", "gradcam", "gradcampp", "smoothgradcampp", "xgradcam", "layercam"]
Precision = Literal["auto", "no", "bf16", "fp16"]
SelectionMetric = Literal["max_box_acc", "max_box_acc_v2", "pxap", "top1"]
Sharpener = Literal["refine", "grabcut"]
EpochWindow = tuple[int, int]

ALWAYS: EpochWindow = (0, -1)


@dataclass(frozen=True)
class Within:
    """What a number may be: from `low` to `high`, these included unless `above` or `below` say otherwise; `odd` as well."""

    low: float
    high: float
    above: bool = False
    below: bool = False
    odd: bool = False

    def __contains__(self, number: float) -> bool:
        low = self.low < number if self.above else self.low <= number
        high = number < self.high if self.below else number <= self.high
        return low and high and not (self.odd and number % 2 == 0)

    def __str__(self) -> str:
        kind = "an odd number, " if self.odd else ""
        low = f"more than {self.low:g}" if self.above else f"{self.low:g} or more"
        return f"{kind}{low}, and {'less than' if self.below else 'at most'} {self.high:g}"


Share = Annotated[float, Within(0, 1)]
PartialShare = Annotated[float, Within(0, 1, below=True)]
"""A share of which the whole makes no sense."""
Weight = Annotated[float, Within(0, 1e12)]
NotNegative = Annotated[float, Within(0, 1e6)]
Positive = Annotated[float, Within(0, 1e6, above=True)]
Count = Annotated[int, Within(1, 1e9)]
Natural = Annotated[int, Within(0, 1e9)]
Side = Annotated[int, Within(32, 16384)]
"""Side of an image in pixels."""
Sharpness = Annotated[float, Within(1e-6, 1e6)]
"""t of the log-barrier, which divides by its square."""
OddSide = Annotated[int, Within(1, 16383, odd=True)]
"""Side of a square around a pixel."""


@dataclass(frozen=True)
class ModelConfig:
    """The network: a classifier and the decoder on its features."""

    backbone: str = "resnet50"
    """resnet50, vgg16, inceptionv3 (their WSOL forms), tf_efficientnet_lite0, or timm:NAME; `own` with --classifier."""
    output_stride: Count = 8
    """Strides are removed from the deepest on until the top map is this much smaller than the image (timm backbones)."""
    head: Literal["wgap", "gap", "maxpool", "logsumexp", "wildcat"] = "wgap"
    """Pooling head; the paper's tables use `wgap`, global average pooling and a linear layer."""
    decoder_channels: Annotated[tuple[int, ...] | None, Within(1, 65536)] = None
    """Channels of the decoder blocks, deep to shallow; None takes the preset of the backbone."""
    pretrained: bool = True
    """Start from ImageNet weights."""
    level: tuple[str, ...] = ()
    """With --classifier: layers whose maps the decoder reads, shallow to deep, the last before the pooling; () finds them."""
    mean: tuple[float, float, float] | None = None
    """With --classifier: channel means it was trained with, for images in [0, 1]; None takes the library's, or none."""
    std: tuple[float, float, float] | None = None
    """With --classifier: the standard deviations that go with `mean`."""


@dataclass(frozen=True)
class SeedConfig:
    """Sampling regions and pixels (paper, eq. 1 and 2)."""

    n_minus: Share = 0.3
    """n⁻: share of the image, lowest activations first, that background pixels are drawn from; 0.1 to 0.7 by validation."""
    foreground_pixels: Natural = 1
    """Pixels drawn from C⁺ per image and step."""
    background_pixels: Natural = 1
    """Pixels drawn from C⁻ per image and step."""
    erosion: OddSide = 11
    """Side of the square that erodes C⁺ before drawing (code); 1 turns it off, as the paper has it."""
    erosion_iterations: Natural = 1
    """How often the erosion is applied."""
    dilation: OddSide = 3
    """Side of the square that each drawn pixel grows to (code); 1 turns it off, as the paper has it."""
    foreground_rule: Literal["otsu", "peak"] = "otsu"
    """C⁺ is everything above Otsu's threshold (paper), or above `peak` times the maximum (ours)."""
    peak: PartialShare = 0.7
    """Share of the maximum for the `peak` rule."""


@dataclass(frozen=True)
class LossConfig:
    """Pixel alignment loss (paper, eq. 3); a weight of 0 turns a term off. Windows are (first, last) epochs from 1, -1 open."""

    alpha: Weight = 1.0
    """α: weight of the partial cross-entropy on the drawn pixels."""
    alpha_epochs: EpochWindow = ALWAYS
    crf: Weight = 1.2e-9
    """λ of the CRF loss for a filter that returns the true Gaussian sum; the paper's 2e-9 belongs to a lattice with a gain
    of about 0.6 (docs/crf.md)."""
    crf_epochs: EpochWindow = ALWAYS
    sigma_rgb: Positive = 15.0
    """Colour bandwidth of the CRF kernel in 8-bit levels."""
    sigma_xy: Positive = 100.0
    """Position bandwidth of the CRF kernel in pixels."""
    crf_filter: Literal["gaussian", "lattice"] = "gaussian"
    """gaussian: the true sum; lattice: the permutohedral lattice of the authors' code (use λ = 2e-9 with it)."""
    size: Weight = 0.1
    """Weight of the absolute size constraint (code; the paper states none)."""
    size_epochs: EpochWindow = ALWAYS
    barrier_t: Sharpness = 1.0
    """Initial t of the extended log-barrier."""
    barrier_growth: Annotated[float, Within(1, 1e6)] = 1.01
    """Factor on t after every epoch."""
    barrier_max: Sharpness = 10.0
    """Upper bound of t."""
    entropy: Weight = 0.0
    """Weight of the mean pixel entropy; off in the paper."""
    entropy_epochs: EpochWindow = ALWAYS


@dataclass(frozen=True)
class OptimizerConfig:
    """SGD with momentum and the step schedule of the WSOL benchmark."""

    lr: Positive = 0.01
    momentum: PartialShare = 0.9
    nesterov: bool = True
    weight_decay: NotNegative = 1e-4
    late_ratio: Positive = 10.0
    """Factor on the learning rate of the head and the backbone's late layers in stage 1."""
    schedule: Literal["step", "constant", "cosine"] = "step"
    step_epochs: Count = 15
    """`step` multiplies the rate by gamma after every so many epochs."""
    gamma: NotNegative = 0.1
    min_lr: NotNegative = 1e-7
    clip_norm: NotNegative = 0.0
    """Largest gradient norm; 0 leaves gradients as they are, as the paper does."""


@dataclass(frozen=True)
class StageConfig:
    """One of the two training stages."""

    epochs: int = 50
    batch_size: Count = 32
    """Images per step and process."""
    accumulate: Count = 1
    """Steps whose gradients are added up before the weights move."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    average: Share = 0.0
    """Share that the moving average of the weights keeps per step (ours); 0 keeps the last weights, as the paper does."""
    select: SelectionMetric = "max_box_acc"
    """Metric on `val` by which the epoch is chosen; the first that reaches the maximum wins, of those equal by max_box_acc the
    first best by max_box_acc_v2."""


@dataclass(frozen=True)
class TrainConfig:
    """A whole run: both stages, evaluation, and where the result lies."""

    name: str = ""
    """Recipe this started from."""
    data: str = ""
    """Folder of the data set."""
    out: str = ""
    """Folder of the run."""
    stages: Literal["both", "classifier", "decoder"] = "both"
    classifier_from: str = ""
    """Run or model folder whose classifier stage 2 starts from instead of training one."""
    decoder_from: str = ""
    """Run, model folder or model that comes along whose decoder stage 2 goes on with instead of a fresh one; with --stages
    decoder its classifier is taken too unless another is named (ours)."""
    classifier: str = ""
    """Your trained classifier: torchvision:NAME, timm:NAME or module.path:factory; only the decoder is trained on it."""
    weights: str = ""
    """Weights of --classifier: a .safetensors file, or a state dict that torch.save wrote; "" takes the library's."""
    class_names: str = ""
    """Text file with a name a line, in the order of --classifier's outputs; "" takes the data's classes, sorted."""
    new_head: bool = False
    """Put a new last layer on --classifier and train it, in stage 1, for the data's classes."""
    head_only: bool = False
    """Stage 1 trains the head on a frozen backbone."""
    method: CamMethod = "cam"
    """CAM that seeds are drawn from, and that stands beside F-CAM in the tables."""
    variant: Literal["published", "reference"] = "published"
    """Formula of Grad-CAM++ and Smooth-Grad-CAM++: as published or as the authors' code executes it."""
    model: ModelConfig = field(default_factory=ModelConfig)
    seeds: SeedConfig = field(default_factory=SeedConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    stage1: StageConfig = field(default_factory=lambda: StageConfig(optimizer=OptimizerConfig(lr=0.0017)))
    stage2: StageConfig = field(
        default_factory=lambda: StageConfig(optimizer=OptimizerConfig(schedule="constant"))
    )
    rounds: Annotated[int, Within(1, 10)] = 1
    """Times that stage 2 runs: from the second on, a fresh decoder learns from seeds in the map of the one before instead of in
    the CAM (ours; the paper has one)."""
    sharpen: Annotated[int, Within(0, 10_000)] = 0
    """Epochs that the decoder goes on for after stage 2, learning from its own maps once these are raised where the CAM of the
    photo's class is and follow its edges (ours; the paper has none)."""
    sharpen_by: Sharpener = "refine"
    """What makes them follow the edges: refine, or refine and then grabcut, which needs OpenCV (the extra grabcut)."""
    mosaics: Annotated[float, Within(0, 10)] = 0.0
    """Mosaics that stage 2 adds to a batch, as a share of its images: four of them two by two, for objects that are small or
    not in the middle (ours; the paper has none)."""
    recolor: Annotated[float, Within(0, 1)] = 0.0
    """Share of a batch's photos that stage 2 shows the decoder in other colours, while seeds and loss see the photo as it is
    (ours; the paper has none)."""
    resize: Side = 256
    """Training images are resized to this square, ..."""
    crop: Side = 224
    """... and cropped to this one; evaluation resizes to it."""
    seed: Annotated[int, Within(0, 2**32 - 1)] = 0
    precision: Precision = "auto"
    """no is float32; bf16 and fp16 (GPU only) are autocast; auto is bf16 where the processor multiplies it natively."""
    workers: Annotated[int, Within(0, 1024)] = 2
    """Data loading processes."""
    compile: bool = False
    """torch.compile what a stage runs for a batch: network and loss."""
    tensorboard: bool = False
    resume: bool = False
    """Go on with an interrupted run in `out`."""


def wrong_numbers(group: Any, place: str = "") -> Iterator[tuple[str, float, str]]:
    """Each number of a group of settings that no run can do with: its dotted name, its value, and what it may be."""
    for name, kind in _annotated(type(group)).items():
        value = getattr(group, name)
        if dataclasses.is_dataclass(value):
            yield from wrong_numbers(value, f"{place}{name}.")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                yield f"{place}{name}", number, "give a number"
            elif isinstance(number, int | float):
                rules = [rule for rule in getattr(kind, "__metadata__", ()) if number not in rule]
                yield from ((f"{place}{name}", number, f"take {rule}") for rule in rules)


@cache
def _annotated(group: type) -> dict[str, Any]:
    return typing.get_type_hints(group, include_extras=True)
