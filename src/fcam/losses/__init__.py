"""The pixel alignment loss of the paper (eq. 3) and its terms, one file each."""

from fcam.losses.crf import CRFLoss
from fcam.losses.entropy import pixel_entropy
from fcam.losses.partial_ce import partial_cross_entropy
from fcam.losses.size import barrier_t, extended_log_barrier, size_constraint
from fcam.losses.total import PixelAlignmentLoss

__all__ = [
    "CRFLoss",
    "PixelAlignmentLoss",
    "barrier_t",
    "extended_log_barrier",
    "partial_cross_entropy",
    "pixel_entropy",
    "size_constraint",
]
