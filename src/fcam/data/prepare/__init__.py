"""The lists of the WSOL benchmark, built from the archives in which CUB, OpenImages and ILSVRC are given away."""

from fcam.data.prepare.archives import ARCHIVES, Archive
from fcam.data.prepare.prepare import KINDS, Prepared, prepare

__all__ = ["ARCHIVES", "KINDS", "Archive", "Prepared", "prepare"]
