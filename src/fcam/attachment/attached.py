"""A classifier of any origin in the shape that the decoder needs: body with taps, head on the last of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, SupportsIndex

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.dropout import _DropoutNd

from fcam.attachment import sources
from fcam.attachment.pyramid import Pyramid, find_pyramid
from fcam.backbones import Backbone
from fcam.cams.forward import linear_weight
from fcam.cams.trace import HeadWatch
from fcam.classifier import Classifier
from fcam.errors import FcamError, shown
from fcam.heads import Head
from fcam.plain import integers


class AttachedBackbone(Backbone):
    """The part of a classifier up to its last map; keys start with `body.` and go on as the classifier's."""

    def __init__(self, name: str, pyramid: Pyramid, mean: Sequence[float], std: Sequence[float]) -> None:
        taps = pyramid.taps
        super().__init__(name, [t.channels for t in taps], [t.stride for t in taps], mean, std)
        self.taps = taps
        self._late = tuple(f"body.{key}" for key in pyramid.late)
        self.body = pyramid.body

    def forward(self, images: Tensor) -> list[Tensor]:
        return list(self.body(self.normalize(images)))

    def late_parameters(self) -> list[nn.Parameter]:
        """The parameters that only the top map depends on."""
        named = dict(self.named_parameters())
        return [named[key] for key in self._late]


class AttachedHead(Head):
    """The rest of a classifier after its last map, whatever layers that has.

    Args:
        num_classes: outputs of the classifier.
        linear: name of the weight where the whole of it is average pooling and one linear layer.
        scores: as in `Head`.

    Attributes:
        num_outputs: outputs of the classifier, whichever of them are classes.
        new_layer: name of the one layer of `rest` that is trained where the others stay as they came; None has none.
    """

    name = "attached"

    def __init__(
        self,
        rest: fx.GraphModule,
        channels: int,
        num_classes: int,
        linear: str | None = None,
        scores: str = "softmax",
    ) -> None:
        super().__init__(channels, num_classes)
        self.rest = rest
        self.num_outputs = num_classes
        self.linear = linear
        self.scores = scores
        self.two_sided = False
        self.outputs: tuple[int, ...] | None = None
        self.new_layer: str | None = None

    def train(self, mode: bool = True) -> AttachedHead:
        super().train(mode)
        if self.new_layer is not None:
            self.rest.eval()  # batch statistics stay as they came, too
            # Dropout leaves nothing behind in the network, and is how its author regularises what its last layer learns.
            for layer in self.rest.modules():
                if isinstance(layer, _DropoutNd):
                    layer.train(mode)
        return self

    def is_new(self, name: str) -> bool:
        """Whether a parameter of `rest` belongs to the new layer."""
        return self.new_layer is not None and name.startswith(f"{self.new_layer}.")

    def offer(self, classes: int) -> int:
        """Return how many outputs there are for so many classes: a single one, which says yes or no, serves two.

        Its logit z becomes (-z/2, z/2), whose softmax is (1 - sigmoid(z), sigmoid(z)): class 0 is no, class 1 yes.
        """
        if self.num_outputs == 1 and classes == 2:
            self.two_sided, self.scores, self.num_classes = True, "softmax", 2
        return 2 if self.two_sided else self.num_outputs

    def select(self, outputs: Iterable[SupportsIndex] | None) -> None:
        """Keep these outputs of the classifier, in this order; None keeps all. Raises `FcamError` out of range."""
        count = 2 if self.two_sided else self.num_outputs
        kept = None if outputs is None else integers(outputs, "outputs")
        if kept is not None and not (kept and all(0 <= i < count for i in kept)):
            raise FcamError(f"outputs must lie in 0..{count - 1}, got {shown(list(kept))}")
        self.outputs = kept
        self.num_classes = count if kept is None else len(kept)

    @property
    def has_class_maps(self) -> bool:
        return self.linear is not None

    def forward(self, top: Tensor) -> Tensor:
        # Heads may begin in place, and the decoder reads the same map.
        logits = self.rest(top.clone())
        if logits.dim() == 1 and top.shape[0] == 1:  # a head that squeezes
            logits = logits[None]
        logits = self._both_sides(logits, 1)
        return logits if self.outputs is None else logits[:, list(self.outputs)]

    def linear_weight(self) -> Tensor | None:
        if self.linear is None:
            return None
        weight = self._both_sides(self.rest.get_parameter(self.linear).flatten(1), 0)
        return weight if self.outputs is None else weight[list(self.outputs)]

    def _both_sides(self, output: Tensor, dim: int) -> Tensor:
        return torch.cat((-output, output), dim) / 2 if self.two_sided else output

    def class_maps(self, top: Tensor) -> Tensor:
        """The CAM of every class; raises `FcamError` for a head with hidden layers, which has no such maps."""
        weight = self.linear_weight()
        if weight is None:
            raise FcamError(
                "this head has hidden layers and no class maps; use fcam.cam with a gradient method"
            )
        return F.conv2d(top, weight[:, :, None, None])

    def layers(self) -> str:
        """Its layers in words."""
        names = [
            type(self.rest.get_submodule(str(node.target))).__name__
            if node.op == "call_module"
            else str(getattr(node.target, "__name__", node.target))
            for node in self.rest.graph.nodes
            if node.op in ("call_module", "call_function", "call_method") and node.name != "size"
        ]
        return ", ".join(names)


class AttachedClassifier(Classifier):
    """A `Classifier` made of somebody's trained model.

    Attributes:
        source: the name that builds it again (`fcam.attachment.sources`), or None.
        image_size: side of the images it was looked at with.
        normalization: in words, where mean and standard deviation come from.
    """

    backbone: AttachedBackbone
    head: AttachedHead

    def __init__(
        self, backbone: AttachedBackbone, head: AttachedHead, source: str | None, image_size: int, origin: str
    ) -> None:
        super().__init__(backbone, head)
        self.source, self.image_size, self.normalization = source, image_size, origin
        self.eval()

    def freeze(self, part: Literal["all", "backbone"] = "all") -> AttachedClassifier:
        """As `Classifier.freeze`; where the head has a new layer, "backbone" freezes all but that."""
        super().freeze(part)
        if part == "backbone" and self.head.new_layer is not None:
            for name, parameter in self.head.rest.named_parameters():
                parameter.requires_grad_(self.head.is_new(name))
        return self

    def config(self) -> dict[str, Any]:
        taps = [{"path": t.path, "channels": t.channels, "stride": t.stride} for t in self.backbone.taps]
        return {
            "classifier": {
                "source": self.source,
                "type": self.backbone.name,
                "image_size": self.image_size,
                "taps": taps,
                "linear": self.head.linear,
                "scores": self.head.scores,
                "outputs": None if self.head.outputs is None else list(self.head.outputs),
                "num_outputs": self.head.num_outputs,
            },
            **self.normalization_config(),
            "num_classes": self.num_classes,
        }

    def describe(self) -> str:
        """What was found, in a few lines: the taps, the head, the normalisation, how the model is built again."""
        taps = [f"  {t.path}: {t.channels} channels, stride {t.stride}" for t in self.backbone.taps]
        head = (
            "average pooling and a linear layer; CAMs in closed form"
            if self.head.linear is not None
            else f"{self.head.layers()}; CAMs by gradient through the head"
        )
        scores = {
            "softmax": "softmax of the outputs, CAMs are taken before it",
            "sigmoid": "sigmoid of each output, CAMs are taken before it",
            "given": "the outputs, which are probabilities already; CAMs by gradient are those of probabilities",
        }[self.head.scores]
        if self.head.two_sided:
            scores = "sigmoid of the one output for class 1, the rest for class 0; CAMs are taken before it"
        classes = f"{self.num_classes} classes"
        if self.head.outputs is not None:
            classes += f" out of {self.head.num_outputs} outputs"
        again = self.source or "no name: loading needs FCAM.from_pretrained(folder, classifier=model)"
        return "\n".join(
            [
                f"{self.backbone.name}, {classes}",
                "maps that the decoder reads:",
                *taps,
                f"head: {head}",
                f"scores: {scores}",
                f"normalisation: {self.normalization}",
                f"built again by: {again}",
            ]
        )


def classifier_from(
    model: nn.Module,
    source: str | None,
    image_size: int,
    level: str | Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    origin: str,
) -> AttachedClassifier:
    """Cut a copy of `model` into backbone and head; arguments as in `fcam.attach`."""
    pyramid = find_pyramid(model, image_size, level)
    backbone = AttachedBackbone(source or type(model).__name__, pyramid, mean, std)
    linear = _linear_key(pyramid)
    head = AttachedHead(pyramid.head, pyramid.taps[-1].channels, pyramid.num_classes, linear, pyramid.scores)
    return AttachedClassifier(backbone, head, source, image_size, origin)


def _linear_key(pyramid: Pyramid) -> str | None:
    """Name of the weight W where logits are W times the mean of the top map plus a bias, found by trying."""
    height, width = pyramid.top_size
    if height * width < 2:  # on one pixel every pooling is the same
        return None
    parameters = dict(pyramid.head.named_parameters())
    like = next(iter(parameters.values()), torch.zeros(()))
    shape = (2, pyramid.taps[-1].channels, height, width)
    top = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(like.device)
    watch = HeadWatch(grids=False)
    with torch.no_grad(), watch:
        logits = pyramid.head(watch.take("top", top))
    weight = linear_weight(watch.taken["top"], logits.detach(), watch.linears)
    if weight is None or not bool(weight.any()):  # all zeros would fit anything
        return None
    return next((name for name, p in parameters.items() if p.data_ptr() == weight.data_ptr()), None)


def needs_code(config: dict[str, Any]) -> bool:
    """Whether the classifier of a saved model is somebody's own code, which no library builds."""
    saved = config.get("classifier")
    return saved is not None and (saved["source"] is None or sources.is_importable(saved["source"]))


def rebuild(config: dict[str, Any], given: nn.Module | str | None = None) -> AttachedClassifier:
    """Build the classifier of a saved model with random weights, from what `AttachedClassifier.config` returned.

    Args:
        given: the module, or the name that builds it; needed where the config names none, and where it names
            somebody's own code, which is never imported because a file says so.

    Raises `FcamError` when it is needed and absent, or when it has another pyramid than the saved one.
    """
    saved = config["classifier"]
    source = saved["source"]
    if given is None and needs_code(config):
        what = f"classifier={source!r}" if source else "classifier=your_model"
        raise FcamError(
            f"the classifier of this model ({source or saved['type']}) is not built by torchvision or timm; "
            f"load it with FCAM.from_pretrained(folder, {what}) or on the command line --classifier module.path:factory"
        )
    if not 16 <= int(saved["image_size"]) <= 4096:
        raise FcamError(
            f"the saved image_size is {shown(saved['image_size'])}; sides lie between 16 and 4096 pixels"
        )
    name = given if isinstance(given, str) else source
    model = given if isinstance(given, nn.Module) else sources.build(str(name), saved["num_outputs"])
    called = type(model).__name__ if isinstance(given, nn.Module) else name
    paths = [tap["path"] for tap in saved["taps"]]
    norm = (config["mean"], config["std"], "as saved with the model")
    advice = "pass the architecture that the saved model was trained with"
    try:
        found = classifier_from(model, name, saved["image_size"], paths, *norm)
        found.head.offer(config["num_classes"])
        found.head.select(saved["outputs"])
    except FcamError as error:
        raise FcamError(f"{error}; {advice}") from error
    got = [(t.channels, t.stride) for t in found.backbone.taps], found.head.num_outputs
    wanted = [(tap["channels"], tap["stride"]) for tap in saved["taps"]], saved["num_outputs"]
    if got != wanted:
        raise FcamError(
            f"{called} has maps (channels, stride) {got[0]} and {got[1]} outputs, not {wanted[0]} "
            f"and {wanted[1]}; {advice}"
        )
    # Random weights may look linear, or not, by chance; the trained ones have been looked at.
    found.head.linear, found.head.scores = saved["linear"], saved.get("scores", found.head.scores)
    try:
        found.head.linear_weight()
    except AttributeError as error:  # a name that is not there must be noticed now
        raise FcamError(f"{called} has no weight {shown(saved['linear'])} in its head; {advice}") from error
    return found
