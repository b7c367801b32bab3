"""The table of methods: what each is, where it comes from, what its two variants are and what it costs."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from fcam.cams.closed_form import VARIANTS
from fcam.errors import FcamError


@dataclass(frozen=True)
class Method:
    """One row of the table; `options` are the keywords of `fcam.cam` that this method alone listens to."""

    name: str
    title: str
    """What the literature calls it."""
    summary: str
    source: str
    cost: str
    variants_differ: bool = False
    options: tuple[str, ...] = ()


_ONE = "1 forward"
_SMOOTH = ("samples", "noise_std", "generator")
_SCORE = ("top_channels", "chunk", "progress")

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("cam", "CAM", "class weights times features, signed", "Zhou et al., CVPR 2016", _ONE),
        Method(
            "gradcam",
            "Grad-CAM",
            "mean gradient times features, positive part",
            "Selvaraju et al., ICCV 2017",
            _ONE,
        ),
        Method(
            "gradcampp",
            "Grad-CAM++",
            "positive gradients weighted by their second order term",
            "Chattopadhay et al., WACV 2018",
            _ONE,
            variants_differ=True,
        ),
        Method(
            "smoothgradcampp",
            "Smooth-Grad-CAM++",
            "Grad-CAM++ with gradients averaged over noisy copies of the image",
            "Omeiza et al., IntelliSys 2019",
            "1 forward on linear heads, else 1 + samples",
            variants_differ=True,
            options=_SMOOTH,
        ),
        Method(
            "xgradcam",
            "XGrad-CAM",
            "gradient averaged where the feature is active",
            "Fu et al., BMVC 2020",
            _ONE,
        ),
        Method(
            "layercam",
            "LayerCAM",
            "pixelwise positive gradient times features",
            "Jiang et al., IEEE TIP 2021",
            _ONE,
        ),
        Method(
            "scorecam",
            "Score-CAM",
            "features weighted by the score of the image seen through them",
            "Wang et al., CVPR workshops 2020",
            "1 forward per channel",
            variants_differ=True,
            options=_SCORE,
        ),
        Method(
            "sscam",
            "SS-CAM",
            "Score-CAM averaged over noisy masks",
            "Wang et al., arXiv 2006.14255, 2020",
            "35 forwards per channel",
            variants_differ=True,
            options=(*_SCORE, *_SMOOTH),
        ),
        Method(
            "iscam",
            "IS-CAM",
            "Score-CAM integrated over fading masks",
            "Naidu et al., arXiv 2010.03023, 2020",
            "10 forwards per channel",
            variants_differ=True,
            options=(*_SCORE, "samples"),
        ),
        Method(
            "refinecam",
            "RefineCAM",
            "product of the maps of several layers",
            "Domeniconi et al., arXiv 2605.14641, 2026",
            "1 forward, 1 backward",
            options=("layers", "base"),
        ),
        Method(
            "center",
            "centre Gaussian",
            "a Gaussian at the centre of the image: the floor",
            "Choe et al., CVPR 2020",
            "none",
        ),
    )
}


def check_method(method: str, variant: str) -> Method:
    """Return the row of `method`; raises `FcamError`, with the nearest names, for an unknown one."""
    if variant not in VARIANTS:
        raise FcamError(f"unknown variant '{variant}'; take 'published' or 'reference'")
    if method in METHODS:
        return METHODS[method]
    plain = str(method).lower().replace("-", "").replace("_", "").replace("+", "p").replace(" ", "")
    near = difflib.get_close_matches(plain, METHODS, n=3, cutoff=0.5)
    hint = f"nearest: {', '.join(near)}" if near else f"there are {', '.join(METHODS)}"
    raise FcamError(f"unknown method '{method}'; {hint}")
