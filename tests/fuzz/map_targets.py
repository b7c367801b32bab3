"""Damaged heat maps."""

from __future__ import annotations

import io
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from judge import judge
from mutations import damage

from fcam import map_files


def heat_map(folder: Path, rng: Random) -> str:
    """A damaged .npy heat map, scored against a box."""
    _write_lists(folder / "metadata" / "test")
    (folder / "maps").mkdir()
    path = folder / "maps" / "1.npy"
    _compile()
    path.write_bytes(_damaged_array(rng))
    return judge(
        lambda: map_files.evaluate_map_files(folder / "maps", folder / "metadata", "test"),
        str(path),
    )


@cache
def _compile() -> None:
    """Score a good map, so that numba compiles before anything is timed."""
    with tempfile.TemporaryDirectory() as folder:
        _write_lists(Path(folder) / "metadata" / "test")
        (Path(folder) / "maps").mkdir()
        np.save(Path(folder) / "maps" / "1.npy", np.linspace(0, 1, 81, dtype=np.float32).reshape(9, 9))
        map_files.evaluate_map_files(Path(folder) / "maps", Path(folder) / "metadata", "test")


def _write_lists(lists: Path) -> None:
    lists.mkdir(parents=True)
    for name, text in (("image_ids", "1"), ("class_labels", "1,0"), ("image_sizes", "1,9,9")):
        (lists / f"{name}.txt").write_text(text)
    (lists / "localization.txt").write_text("1,1,1,6,6")


def _damaged_array(rng: Random) -> bytes:
    stream = io.BytesIO()
    values = np.linspace(0, 1, 81).reshape(9, 9)
    kinds: tuple[Any, ...] = (
        "float32",
        "float16",
        ">f4",
        "float64",
        "longdouble",
        "int32",
        "complex64",
        "U3",
        "O",
        "?",
    )
    choice = rng.random()
    if choice < 0.05:
        np.savez(stream, a=values)
    elif choice < 0.1:
        huge = rng.choice((10**6, 10**9, 2**62, -1))
        np.lib.format.write_array_header_1_0(
            stream, {"descr": "<f4", "fortran_order": False, "shape": (huge, rng.choice((1, 9, huge)))}
        )
        stream.write(bytes(100))
    else:
        odd = rng.choice(
            (values, values, values, values[0], values[:0], values * 3, values - 0.5, values[None])
        )
        with np.errstate(all="ignore"):
            array = odd.astype(rng.choice(("float32", "float16", rng.choice(kinds))))
        array = np.asfortranarray(array) if rng.random() < 0.2 else array
        if array.dtype.kind == "f" and array.size and rng.random() < 0.1:
            array.flat[0] = rng.choice((np.nan, np.inf, -0.0, 1.0000001))
        np.lib.format.write_array(stream, array, version=rng.choice(((1, 0), (2, 0), (3, 0), None)))
    data = stream.getvalue()
    return data if rng.random() < 0.2 else damage(data, rng)
