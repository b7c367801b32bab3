"""Any timm CNN as a backbone: its feature pyramid, its strides removed down to a chosen output stride."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from fcam.backbones import lite0
from fcam.backbones.base import Backbone
from fcam.backbones.unstride import PROBE_SIDE, nominal_strides, unstride
from fcam.backbones.weights import fetch, load_checked, read_weights
from fcam.cams.forward import evaluating
from fcam.errors import FcamError

# timm's modules of which a network was built and brought to output stride 8 (docs/backbones.md).
FAMILIES = (
    *("byobnet", "convnext", "cpubone", "cspnet", "cspnext", "densenet", "dla", "dpn", "edgenext"),
    *(
        "efficientnet",
        "fasternet",
        "ghostnet",
        "hardcorenas",
        "hgnet",
        "inception_next",
        "inception_resnet_v2",
    ),
    *(
        "inception_v4",
        "lcnetv2",
        "metaformer",
        "mobilenetv3",
        "nasnet",
        "nfnet",
        "pnasnet",
        "rdnet",
        "regnet",
    ),
    *("repghost", "repvit", "res2net", "resnest", "resnet", "resnetv2", "rexnet", "selecsls", "senet"),
    *("sknet", "starnet", "tresnet", "vgg", "vovnet", "xception", "xception_aligned"),
)


class TimmBackbone(Backbone):
    """A timm network up to the tensor that it feeds to global pooling.

    The taps are timm's feature pyramid with the last map replaced by that tensor (which differs where a
    convolution or normalisation follows the last stage, as in EfficientNets); a map at full resolution is
    left out. Keys start with `net.` and go on as timm's.
    """

    def __init__(
        self, name: str, pretrained: bool | str | Path, output_stride: int, label: str | None = None
    ) -> None:
        label = label or f"timm:{name}"
        net = _create(name, pretrained, label)
        check_pyramid(label, net)
        maps = unstride(label, net, lambda images: _pyramid(net, images), output_stride)
        config = net.pretrained_cfg
        linear = _linear_after_pooling(net) if pretrained else None
        net.reset_classifier(0)
        strides = nominal_strides(maps, PROBE_SIDE)
        late = _prune(net, lambda images: _pyramid(net, images))
        taps = [i for i in range(len(maps)) if strides[i] > 1 or i == len(maps) - 1]
        if late[-1] == [] and strides[-1] == strides[-2]:
            taps.remove(len(maps) - 2)  # nothing is left between the two but a pooling that was removed
        mean, std = (lite0.MEAN, lite0.STD) if label == lite0.NAME else (config["mean"], config["std"])
        super().__init__(label, [maps[i].shape[1] for i in taps], [strides[i] for i in taps], mean, std)
        self._taps = taps
        self._late = tuple(f"net.{key}" for key in next((keys for keys in reversed(late) if keys), ()))
        if linear is not None and linear.bias is not None:
            self._keep_classifier(linear.weight, linear.bias)
        self.net = net

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = _pyramid(self.net, self.normalize(images))
        return [maps[i] for i in self._taps]

    def late_parameters(self) -> list[nn.Parameter]:
        """The parameters that only the top map depends on: the last stage, as layer4 in ResNet50."""
        named = dict(self.named_parameters())
        return [named[key] for key in self._late]


def list_networks() -> list[str]:
    """`timm:<name>` of the networks of `FAMILIES` that the installed timm has."""
    names = {name for family in FAMILIES for name in timm.list_models(module=family)}
    return [f"timm:{name}" for name in sorted(names) if not name.startswith("test_")]


def check_name(name: str) -> None:
    """Raise `FcamError` with the nearest names unless timm knows `name`."""
    if not timm.is_model(name):
        near = difflib.get_close_matches(name.split(".")[0], timm.list_models(), n=3)
        hint = f"did you mean {', '.join(f'timm:{n}' for n in near)}?" if near else "see fcam.list_models()"
        raise FcamError(f"timm has no model named {name!r}; {hint}")


def _create(name: str, pretrained: bool | str | Path, label: str) -> Any:
    check_name(name)
    if label == lite0.NAME:
        net = timm.create_model(name, pretrained=False)
        if pretrained is True:
            lite0.load(net)
            return net
    elif pretrained is True:
        return fetch(label, lambda: timm.create_model(name, pretrained=True))
    else:
        net = timm.create_model(name, pretrained=False)
    if isinstance(pretrained, (str, Path)):
        load_checked(net, read_weights(pretrained), str(pretrained))
    return net


def check_pyramid(label: str, net: Any) -> None:
    """Raise `FcamError` unless `net` gives a pyramid of NCHW maps."""
    if not hasattr(net, "forward_intermediates") or not hasattr(net, "feature_info"):
        raise FcamError(f"{label} gives no feature pyramid in timm; choose a network of fcam.list_models()")
    try:
        with torch.no_grad(), evaluating(net):
            final, maps = net.forward_intermediates(torch.zeros(1, 3, PROBE_SIDE, PROBE_SIDE))
    except Exception as error:
        raise FcamError(
            f"{label} does not take {PROBE_SIDE}x{PROBE_SIDE} images ({' '.join(str(error).split())[:160]}); "
            "choose a convolutional network"
        ) from error
    channels = [info["num_chs"] for info in net.feature_info]
    sides = [m.shape[-1] for m in maps]
    grid = isinstance(final, Tensor) and final.dim() == 4 and final.shape[-2:] == maps[-1].shape[-2:]
    if not grid or [m.shape[1] for m in maps] != channels:
        shape = tuple(final.shape) if isinstance(final, Tensor) else type(final).__name__
        raise FcamError(
            f"{label} gives tokens or channels-last features of shape {shape}, not (B, C, h, w) maps; "
            "choose a convolutional network"
        )
    if sides[0] <= sides[-1]:
        raise FcamError(f"{label} has features at one resolution only; choose a hierarchical network")


def _pyramid(net: Any, images: Tensor) -> list[Tensor]:
    final, maps = net.forward_intermediates(images)
    return [*maps[:-1], final]


def _linear_after_pooling(net: Any) -> nn.Linear | None:
    """timm's classifier, if all that its head does is average pooling and this one linear layer."""
    linear = net.get_classifier()
    if not isinstance(linear, nn.Linear) or linear.bias is None or linear.in_features != net.num_features:
        return None
    top = torch.rand(1, net.num_features, 7, 7, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad(), evaluating(net):
            same = torch.allclose(net.forward_head(top), linear(top.mean((2, 3))), rtol=1e-4, atol=1e-4)
    except RuntimeError:  # the head takes another width or size than the maps have
        return None
    return linear if same else None


def _prune(net: nn.Module, features: Callable[[Tensor], list[Tensor]]) -> list[list[str]]:
    """Drop the children that no map depends on; return, per map but the last, the keys only deeper ones use.

    Whether a map depends on a parameter is read off the autograd graph: that is the same for all networks.
    """
    names = {id(parameter): key for key, parameter in net.named_parameters()}
    with torch.enable_grad(), evaluating(net):
        *below, used = [_dependencies(m, names) for m in features(torch.zeros(1, 3, PROBE_SIDE, PROBE_SIDE))]
    late = [[key for key in names.values() if key in used - known] for known in below]
    for name, child in list(net.named_children()):
        keys = {f"{name}.{key}" for key, _ in child.named_parameters()}
        if keys and not keys & used:
            setattr(net, name, nn.Identity())
    return late


def _dependencies(output: Tensor, names: dict[int, str]) -> set[str]:
    """Names of the parameters that `output` was computed from; the graph is only walked, not run."""
    found, seen, pending = set(), set(), [output.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            found.add(names.get(id(leaf)))
        pending.extend(parent for parent, _ in node.next_functions)
    return found - {None}
