"""The state all localization metrics share: one integer table per image, added up over the split."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from fcam.boxes import plain_array
from fcam.errors import FcamError

_CHUNK = 512


class Tally(Metric):
    """Sum of one integer table per image; the base of every metric in this package.

    Two kinds of state. By default the tables are added up as they come: `total` (the table's shape) and
    `count`, both int64 and summed over processes, so memory does not depend on the number of images, and an
    image that is fed twice counts twice. With `images=N`, the number of images of the split, each image keeps
    its own row, addressed by its position in the split (`ids` of `update`), and counts once however often and
    on however many processes it is fed: when states are merged, the first process that saw an image provides
    its row. Rows of box metrics are bits (375 bytes for 1000 thresholds at 3 overlaps), rows of pixel metrics
    are int32 counts (8 kB).

    Args:
        shape: shape of the table of one image.
        images: number of images of the split, or None.
        bits: whether tables hold only 0 and 1.
        settings: what the numbers in a table depend on besides `update` and the shape.
        kwargs: passed on to `torchmetrics.Metric`.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    total: Tensor
    count: Tensor
    rows: Tensor

    def __init__(
        self, shape: tuple[int, ...], images: int | None, bits: bool, settings: object = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if images is not None and (not isinstance(images, int) or images < 1):
            raise FcamError(f"images must be the number of images of the split or None, got {images!r}")
        self.images = images
        self._shape = shape
        self._bits = bits
        if images is None:
            self.add_state("total", torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")
            self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        else:
            size = math.prod(shape)
            width, dtype = ((size + 7) // 8, torch.uint8) if bits else (size, torch.int32)
            self.add_state("rows", torch.zeros(images, 1 + width, dtype=dtype), dist_reduce_fx=_first_seen)
        # A MetricCollection updates only one of the metrics whose states are named and filled alike after a batch.
        kind = zlib.crc32(repr((type(self).update.__qualname__, settings)).encode())
        self.add_state(f"kind_{kind:08x}", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def _record(self, tables: np.ndarray, ids: Tensor | np.ndarray | None) -> None:
        """Take in the tables (B, *shape) of a batch whose images have the positions `ids` (B,)."""
        if self.images is None:
            if ids is not None:
                raise FcamError(
                    f"ids were given to {type(self).__name__} but not the number of images; construct it "
                    "with images=len(dataset) to count every image once, or leave ids out"
                )
            self.total = self.total + torch.from_numpy(tables.sum(0, dtype=np.int64)).to(self.total.device)
            self.count = self.count + len(tables)
            return
        positions = self._positions(ids, len(tables))
        seen = self.rows[:, 0].cpu().numpy()
        new = {p: i for i, p in reversed(list(enumerate(positions))) if not seen[p]}
        flat = tables.reshape(len(tables), -1)[list(new.values())]
        coded = np.packbits(flat, axis=1) if self._bits else flat.astype(np.int32)
        rows = np.concatenate([np.ones((len(coded), 1), coded.dtype), coded], axis=1)
        where = torch.tensor(list(new), dtype=torch.int64, device=self.rows.device)
        self.rows[where] = torch.from_numpy(rows).to(self.rows.device)

    def _positions(self, ids: Tensor | np.ndarray | None, batch: int) -> list[int]:
        given = None if ids is None else plain_array(ids, "ids")
        if given is None or given.shape != (batch,) or given.dtype.kind not in "iu":
            found = "none" if given is None else f"{given.shape} {given.dtype}"
            raise FcamError(
                f"{type(self).__name__}(images={self.images}) needs ids, the position in the split of each "
                f"of the {batch} images, integers of shape ({batch},); got {found}"
            )
        positions = given.tolist()
        wrong = [p for p in positions if not 0 <= p < (self.images or 0)]
        if wrong:
            raise FcamError(
                f"position {wrong[0]} lies outside a split of {self.images} images; check images="
            )
        return positions

    def _totals(self) -> tuple[np.ndarray, int]:
        """Return the summed table and the number of images in it; raise `FcamError` when that is none."""
        if self.images is None:
            total, count = self.total.cpu().numpy(), int(self.count)
        else:
            rows = self.rows.cpu().numpy()
            rows = rows[rows[:, 0] != 0]
            count = len(rows)
            flat = np.zeros(math.prod(self._shape), np.int64)
            for first in range(0, count, _CHUNK):
                part = rows[first : first + _CHUNK, 1:]
                if self._bits:
                    part = np.unpackbits(part, axis=1, count=flat.size)
                flat += part.sum(0, dtype=np.int64)
            total = flat.reshape(self._shape)
        if count == 0:
            raise FcamError(
                f"{type(self).__name__} has seen no image; call update before asking for a result"
            )
        return total, count

    @contextmanager
    def _synced(self) -> Iterator[None]:
        """Gather the state of all processes, as `compute` does, for the other results."""
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn,
            should_sync=self._to_sync and not self._is_synced,
            should_unsync=self._should_unsync and not self._is_synced,
        ):
            yield

    def counted(self) -> int:
        """Return the number of images counted so far, over all processes."""
        with self._synced():
            return int(self.count) if self.images is None else int((self.rows[:, 0] != 0).sum())

    def missing(self) -> Tensor:
        """Return the positions (int64) of the images not yet seen by any process; needs `images=N`."""
        if self.images is None:
            raise FcamError("missing images are only known to a metric constructed with images=len(dataset)")
        with self._synced():
            return (self.rows[:, 0] == 0).nonzero().flatten().cpu()


def _first_seen(stacked: Tensor) -> Tensor:
    """Merge rows (processes, N, 1 + width): each image's row comes from the first process that has it."""
    owner = (stacked[:, :, 0] != 0).to(torch.uint8).argmax(0)
    return stacked[owner, torch.arange(stacked.shape[1], device=stacked.device)]
