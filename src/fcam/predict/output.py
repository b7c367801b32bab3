"""What a folder run leaves behind: pictures and maps per photo, and one list of everything.

```
OUT/predictions.json         every photo's label, score, boxes and files; every photo that failed, and why
OUT/predictions.jsonl        the same as it grows, a line per photo; gone once predictions.json is there
OUT/overlays/NAME.jpg        heat, contour, box, label
OUT/masks/NAME.png           0 or 255
OUT/heatmaps/NAME.png        the map as grey levels, 8 or 16 bits
OUT/maps/NAME.npy            the map as float16
OUT/panels/NAME.jpg          photo, the classifier's CAM, F-CAM, mask and box in a row
```

NAME is the photo's path below the folder that all photos have in common, without suffix.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from PIL import Image

from fcam.boxes import quantize
from fcam.data.find import RESULT_FOLDERS, RESULTS, RUNNING
from fcam.errors import FcamError, cut, shown
from fcam.files import read_json_lines, remove_leftovers, write_array, write_image, write_json, write_text
from fcam.predict.prediction import Prediction

SUBFOLDERS = RESULT_FOLDERS
FINAL, JOURNAL = RESULTS, RUNNING
JPEG_QUALITY, PNG_LEVEL = 92, 3
WRITTEN_SUFFIXES = frozenset({".png", ".jpg", ".npy", ".txt", ".xml"})
"""What follows NAME in the files of a photo, labels included."""
NAME_BYTES, SUFFIX_BYTES = 255, 4
"""The longest name that file systems take, and what `WRITTEN_SUFFIXES` need of it."""


@dataclass(frozen=True)
class Outputs:
    """Which files are written for every photo."""

    overlays: bool = True
    masks: bool = True
    heatmaps: Literal[0, 8, 16] = 8
    """Bits per pixel of the grey heat map, floor((2^bits - 1) S²); 0 writes none."""
    maps: bool = False
    """Also the map as float16 `.npy`."""
    panels: bool = False
    """Also photo, CAM, F-CAM, mask and box in a row."""


@dataclass(frozen=True)
class Named:
    """A photo and what its outputs are called."""

    path: Path
    file: str
    """Path below the common folder, forward slashes."""
    name: str
    """The same without suffix; unique in the run, also where upper and lower case are the same."""


def name_outputs(paths: Sequence[Path], fixed: Mapping[str, str] | None = None) -> list[Named]:
    """Name the outputs of photos by their place below their common folder, told apart by suffix, then number.

    No output is called what a folder of photos is called: beside `x.png/`, the mask of `x.jpg` cannot be `x.png`.
    `fixed` holds the names, by absolute path, of photos that already have outputs.
    """
    fixed = fixed or {}
    absolute = [Path(os.path.abspath(path)) for path in paths]
    try:
        root = Path(os.path.commonpath([path.parent for path in absolute])) if absolute else Path()
        files = [path.relative_to(root).as_posix() for path in absolute]
    except ValueError:  # different drives have nothing in common
        files = [path.name for path in absolute]
    used = {name.casefold() for name in fixed.values()}
    for folder in {folder for file in files for folder in PurePosixPath(file).parents}:
        stem, suffix = os.path.splitext(str(folder).casefold())
        if suffix in WRITTEN_SUFFIXES:
            used.add(stem)
    named = []
    for path, whole, file in zip(paths, map(str, absolute), files, strict=True):
        if whole not in fixed:
            name = next(name for name in _candidates(file) if name.casefold() not in used)
            used.add(name.casefold())
            named.append(Named(path, file, name))
        else:
            named.append(Named(path, file, fixed[whole]))
    return named


def _candidates(file: str) -> Iterator[str]:
    stem, suffix = os.path.splitext(file)
    yield joined(stem, "")
    yield joined(stem, f"_{suffix[1:]}")
    yield from (joined(stem, f"_{suffix[1:]}_{number}") for number in count(2))


def joined(stem: str, end: str) -> str:
    """Return `stem` and `end`; of a name that would be too long for a file, the last letters before `end` are left out."""
    folder, slash, name = stem.rpartition("/")
    while len(os.fsencode(name + end)) + SUFFIX_BYTES > NAME_BYTES:
        name = name[:-1]
    return folder + slash + name + end


def save(prediction: Prediction, named: Named, out: Path, outputs: Outputs) -> dict[str, Any]:
    """Write the files of one photo and return its row for `predictions.json`; raises `FcamError`."""
    files: dict[str, str] = {}

    def place(folder: str, suffix: str) -> Path:
        files[folder] = f"{folder}/{named.name}{suffix}"
        return out / files[folder]

    if outputs.masks:
        levels = prediction.mask.astype(np.uint8) * np.uint8(255)
        write_image(place("masks", ".png"), Image.fromarray(levels), compress_level=PNG_LEVEL)
    if outputs.heatmaps == 8:
        # The very levels that mask and boxes were cut from: the cut can be repeated from this file.
        levels = Image.fromarray(quantize(prediction.cam[None])[0])
        write_image(place("heatmaps", ".png"), levels, compress_level=PNG_LEVEL)
    elif outputs.heatmaps == 16:
        deep = (prediction.cam * np.float32(65535)).astype(np.uint16)
        write_image(place("heatmaps", ".png"), Image.fromarray(deep), compress_level=PNG_LEVEL)
    if outputs.maps:
        write_array(place("maps", ".npy"), prediction.cam.astype(np.float16))
    # JPEG ends at 65535 pixels a side.
    picture = ".jpg" if max(prediction.size) < 65_500 else ".png"
    if outputs.overlays:
        write_image(place("overlays", picture), prediction.overlay(), quality=JPEG_QUALITY)
    if outputs.panels:
        write_image(place("panels", ".jpg"), prediction.panel(), quality=JPEG_QUALITY)
    return {
        "path": str(named.path),
        "file": named.file,
        "name": named.name,
        "width": prediction.size[0],
        "height": prediction.size[1],
        "label": prediction.label,
        "class_idx": prediction.class_idx,
        "score": round(prediction.score, 6),
        "threshold": prediction.threshold,
        "boxes": prediction.boxes.tolist(),
        "mask_share": round(float(prediction.mask.mean()), 6),
        "files": files,
    }


def load_predictions(out: str | Path) -> dict[str, Any]:
    """Read `predictions.json` of a folder run (the file or its folder); raises `FcamError` when it cannot."""
    path = Path(out) / FINAL if Path(out).is_dir() else Path(out)
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FcamError(f"cannot read {path}: {cut(error)}; give the folder of a finished run") from error
    lists = [whole.get(key) for key in ("predictions", "failed")] if isinstance(whole, dict) else []
    if (
        not lists
        or not isinstance(whole.get("settings"), dict)
        or not all(isinstance(x, list) for x in lists)
    ):
        raise FcamError(f"{path} is not a list that fcam predict wrote; give the folder of a finished run")
    for number, row in enumerate(whole["predictions"], start=1):
        if not _is_row(row):
            raise FcamError(f"{path}, photo {number} is damaged: {shown(row)}; run fcam predict again")
    return whole


_ROW: dict[str, type | tuple[type, ...]] = {
    "path": str,
    "file": str,
    "name": str,
    "label": str,
    "files": dict,
    "boxes": list,
    "width": int,
    "height": int,
    "class_idx": int,
    "score": (int, float),
}


def _is_row(row: Any) -> bool:
    """Whether this is a row that `save` returned."""
    if not isinstance(row, dict) or not all(isinstance(row.get(key), kind) for key, kind in _ROW.items()):
        return False
    boxes = all(
        isinstance(box, list) and len(box) == 4 and all(isinstance(side, int) for side in box)
        for box in row["boxes"]
    )
    return boxes and all(isinstance(file, str) for file in row["files"].values()) and _is_json(row)


def _is_json(row: dict[str, Any]) -> bool:
    """Whether the row can be written again: Python reads NaN and 1e999, which are no JSON."""
    try:
        json.dumps(row, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return True


class Journal:
    """The list of a run while it grows, a line per photo, each on disk at once: a kill loses nothing.

    Safe to add to from several threads. `close` turns it into `predictions.json`.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any], resume: bool) -> None:
        """Open or start the list in `out`; raises `FcamError` when `out` is not writable, or not ours."""
        self.out, self.settings = out, dict(settings)
        self.rows: list[dict[str, Any]] = []
        self.failed: list[dict[str, str]] = []
        self._lock = threading.Lock()
        ours = (out / FINAL).exists() or (out / JOURNAL).exists()
        foreign = [name for name in SUBFOLDERS if (out / name).exists()]
        if foreign and not ours:
            raise FcamError(
                f"{out / foreign[0]} exists but {out} holds no predictions; "
                "choose another --out, so that nothing of yours is overwritten"
            )
        if resume and ours:
            self.rows = self._read()
        if ours:
            self._sweep()
        lines = [{"settings": self.settings}, *self.rows]
        write_text(out / JOURNAL, "".join(json.dumps(line) + "\n" for line in lines))
        (out / FINAL).unlink(missing_ok=True)
        self._stream = (out / JOURNAL).open("a", encoding="utf-8")

    def _sweep(self) -> None:
        """Remove what a kill left half written."""
        for folder in SUBFOLDERS:
            remove_leftovers(self.out / folder)

    def _read(self) -> list[dict[str, Any]]:
        """Return the rows of the run before whose files are all there; its settings must be ours."""
        settings, rows = None, []
        if (self.out / FINAL).exists():
            whole = load_predictions(self.out)
            settings, rows = whole["settings"], whole["predictions"]
        else:
            for _, value in read_json_lines(self.out / JOURNAL):
                if value is not None and isinstance(value.get("settings"), dict):
                    settings = value["settings"]
                elif _is_row(value):
                    rows.append(value)
        before = settings or {}
        compared = dict(self.settings)
        # A model is known by its weights: it may have another path now, or have been trained again at the same one.
        compared.pop("model" if "weights" in before else "weights", None)
        for key, now in compared.items():
            if before.get(key) != now:
                raise FcamError(
                    f"{self.out} was started with {key} = {shown(before.get(key))}, now it is {shown(now)}; "
                    "resume with the same settings, or leave --resume out to start anew"
                )
        return [r for r in rows if all((self.out / file).is_file() for file in r["files"].values())]

    def add(self, row: dict[str, Any]) -> None:
        """Append the row of a finished photo, or of a failed one (`path`, `reason`)."""
        with self._lock:
            (self.failed if "reason" in row else self.rows).append(row)
            try:
                self._stream.write(json.dumps(row) + "\n")
                self._stream.flush()
            except OSError as error:
                raise FcamError(f"cannot write {self.out / JOURNAL}: {error.strerror or error}") from error

    def close(self, order: Sequence[Path], extra: Mapping[str, Any]) -> None:
        """Write `predictions.json`, rows in the order of the photos, and remove the journal."""
        with contextlib.suppress(OSError):  # what could not be flushed was reported by `add`
            self._stream.close()
        place = {os.path.abspath(path): i for i, path in enumerate(order)}
        for rows in (self.rows, self.failed):
            rows.sort(key=lambda row: place.get(os.path.abspath(row["path"]), len(place)))
        whole = {"settings": self.settings, **extra, "predictions": self.rows, "failed": self.failed}
        write_json(self.out / FINAL, whole)
        (self.out / JOURNAL).unlink(missing_ok=True)
