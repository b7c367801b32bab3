"""Figures of others that stand beside ours, and why they may not be compared."""

from __future__ import annotations

P100_COLUMNS = ("vgg16", "inceptionv3", "resnet50")
P100_MS: dict[str, tuple[float, float, float]] = {
    "cam": (0.2, 0.2, 0.3),
    "gradcam": (7.7, 21.1, 27.8),
    "gradcampp": (23.5, 23.7, 28.0),
    "smoothgradcampp": (62.0, 150.7, 136.2),
    "xgradcam": (2.9, 19.2, 14.2),
    "layercam": (3.2, 18.2, 17.9),
    "fcam": (6.2, 25.5, 18.5),
    "scorecam": (1.9e3, 3.4e3, 9.3e3),
    "sscam": (105e3, 136e3, 349e3),
    "iscam": (30.1e3, 39.0e3, 99e3),
}
"""The paper's table of runtimes (supplementary, "Runtime analysis"): batch 1, 224x224, 200 classes."""
P100_NOTE = (
    "The paper's column was taken on a Tesla P100 from one unsynchronised run per method; its clock started after the "
    "forward pass for CAM and the gradient methods (0.2 ms is a weighted sum) but before it for F-CAM. It is not "
    "comparable with ours, which include the forward everywhere."
)

AUTHORS_BATCH, AUTHORS_SIZE = 8, 224
AUTHORS_LABEL = "authors' code, 2 CPU cores, float32, batch 8"
AUTHORS_NOTE = (
    "The authors' code was timed once, on 2 cores of a Xeon with AMX; on another processor or a GPU the ratio says how long "
    "a step takes here and there, not how much faster the code is."
)
AUTHORS_STEP_MS = {"resnet50": 4132.0, "vgg16": 10901.0, "inceptionv3": 4421.0}
"""One stage-2 step at 224x224, measured by us."""
AUTHORS_PARTS_MS = {
    "resnet50": {
        "backbone": 1021.0,
        "cam": 1287.0,
        "seeds": 100.0,
        "decoder": 965.0,
        "crf": 41.0,
        "backward": 683.0,
    }
}
"""Parts of that step; "cam" is a second classifier that sees one image at a time."""

AUTHORS_CRF_MS = {1: 11.4, 8: 39.9, 32: 159.0}
"""The authors' C++ lattice for a batch of 224x224 images with 2 maps on 2 CPU cores, measured by us."""


def p100(method: str, backbone: str) -> float | None:
    """The paper's milliseconds on a P100, or None where it has none."""
    if method not in P100_MS or backbone not in P100_COLUMNS:
        return None
    return P100_MS[method][P100_COLUMNS.index(backbone)]
