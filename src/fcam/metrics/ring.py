"""What a pixel does to the components of a map when it is added, by which of its eight neighbours came before.

These neighbours, as eight bits, are the pixel's code. They form groups that touch within the ring:

- no group: the pixel begins a component;
- several groups: it may join their components;
- one group: it belongs to that group's component, whose box it widens to the left only if every neighbour of the
  group lies further to the right than itself, and so for the other sides.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

RING = ((-1, -1), (0, -1), (1, -1), (1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0))
"""(x, y) of the neighbours in the order of a code's bits; those with odd numbers share an edge with the pixel."""


class Rules(NamedTuple):
    """What a pixel does, by its code."""

    active: np.ndarray
    """(256,) uint8, 1 if it begins or joins components or may widen a box."""
    step: np.ndarray
    """(256,) uint64, way to one neighbour that came before, in places of the flat map."""
    others: np.ndarray
    """(256,) uint8, the bits of one neighbour of each further group."""
    ring: np.ndarray
    """(8,) uint64, ways to all neighbours."""


@cache
def rules(shift: int, hole: bool) -> Rules:
    """Return the rules for maps with a row pitch of 1 << shift.

    Args:
        shift: logarithm of the row pitch.
        hole: False for 8-connected components and codes that say which neighbours came before; True for
            4-connected ones and codes of the reverse order, which say which neighbours come after.
    """
    ring = [x + (y << shift) for x, y in RING]
    # Unsigned, so that numba need not look for negative indices; steps back come out right modulo 2**64.
    ways = np.array(ring).astype(np.uint64)
    table = Rules(np.zeros(256, np.uint8), np.zeros(256, np.uint64), np.zeros(256, np.uint8), ways)
    for code in range(256):
        groups = _groups(255 - code if hole else code, diagonals=not hole)
        came = [RING[k] for group in groups for k in group]
        # A side is free if all that came before lie on the other side of the pixel.
        free = any(all(side * place[axis] < 0 for place in came) for axis in (0, 1) for side in (-1, 1))
        table.active[code] = len(groups) != 1 or free
        if groups:
            table.step[code] = ways[groups[0][0]]
            table.others[code] = sum(1 << group[0] for group in groups[1:])
    return table


def _groups(code: int, diagonals: bool) -> list[list[int]]:
    """Split the neighbours in a code into groups that touch; one that touches the pixel comes first in each."""
    groups: list[list[int]] = []
    for k in (1, 3, 5, 7, 0, 2, 4, 6):
        if code >> k & 1:
            near = [group for group in groups if any(_touch(k, j, diagonals) for j in group)]
            groups = [g for g in groups if g not in near] + [[j for group in near for j in group] + [k]]
    return [group for group in groups if diagonals or group[0] % 2]


def _touch(k: int, j: int, diagonals: bool) -> bool:
    across, down = (abs(a - b) for a, b in zip(RING[k], RING[j], strict=True))
    return max(across, down) == 1 if diagonals else across + down == 1
