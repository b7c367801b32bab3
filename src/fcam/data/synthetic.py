"""A WSOL set drawn by code: the class shows in a small part of a larger body, as it does in reality.

Every picture is a creature on cluttered, textured ground. Its body (shape, colour, texture, pose, size) is
drawn without looking at the class; the class is the pattern on its head, a disc of about a tenth of the
object. Fruits and petals in the colours of all heads, but without patterns, lie about. So a classifier must
look at the head, its CAM lights up there and misses the body, and the exact mask says by how much.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from fcam.data import scenery
from fcam.data.creature import MAX_CLASSES, Creature, class_names
from fcam.data.split import SPLITS
from fcam.errors import FcamError
from fcam.files import write_image, write_json, write_text

_VERSION = 1
_STREAM = 3  # first word of the seed sequence, as _ORDER and _AUGMENT in dataset.py


class Drawing(NamedTuple):
    """One picture: `image` uint8 (h, w, 3), `mask` bool (h, w) of the whole object, `part` bool (h, w) of its
    head.
    """

    image: np.ndarray
    mask: np.ndarray
    part: np.ndarray

    @property
    def box(self) -> tuple[int, int, int, int]:
        """The object's x0, y0, x1, y1; x1 and y1 are one past its last pixel."""
        rows, columns = np.flatnonzero(self.mask.any(1)), np.flatnonzero(self.mask.any(0))
        return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def draw_image(label: int, size: int, rng: np.random.Generator) -> Drawing:
    """Draw one `size` x `size` picture of class `label`; everything but the head's pattern depends on `rng`
    only.
    """
    ground = scenery.draw(size, rng)
    creature = Creature.draw(size, ground, rng)
    image = scenery.add_grain(creature.paint(ground, label), rng)
    return Drawing(image, creature.mask, creature.part)


def draw_set(
    root: str | os.PathLike[str],
    images_per_class: tuple[int, int, int] = (60, 15, 25),
    classes: int = 6,
    seed: int = 0,
    size: int = 160,
) -> Path:
    """Draw a data set in the layout of the WSOL benchmark below `root`, with boxes and masks for val and
    test.

    `images_per_class` counts train, val and test; `size` is the side of the square pictures in pixels. The
    same arguments give the same bytes; a finished set is not drawn again. Returns `root`. Raises `FcamError`
    for impossible arguments and for a folder that holds something else.
    """
    root = Path(root)
    _check_arguments(images_per_class, classes, seed, size)
    recipe = {
        "drawn_by": "fcam.data.synthetic",
        "version": _VERSION,
        "images_per_class": list(images_per_class),
        "classes": classes,
        "seed": seed,
        "size": size,
    }
    if _is_finished(root, recipe):
        return root
    lists = {}
    for number, (split, count) in enumerate(zip(SPLITS, images_per_class, strict=True)):
        rows = []
        for label in range(classes):
            for index in range(count):
                rng = np.random.default_rng((_STREAM, seed, number, label, index))
                rows.append(_write_picture(root, split, label, index, draw_image(label, size, rng)))
        lists[split] = rows
    # The lists come last: without them an interrupted folder is no data set.
    write_text(root / "classes.txt", "".join(f"{k} {name}\n" for k, name in enumerate(class_names(classes))))
    write_json(root / "synthetic.json", recipe)
    for split in SPLITS:
        _write_lists(root, split, lists[split], size)
    return root


def _check_arguments(images_per_class: tuple[int, int, int], classes: int, seed: int, size: int) -> None:
    if not 2 <= classes <= MAX_CLASSES:
        raise FcamError(f"a synthetic set has 2 to {MAX_CLASSES} classes, got {classes}")
    if len(images_per_class) != 3 or min(images_per_class) < 1:
        raise FcamError(
            f"images_per_class counts train, val and test, each at least 1, got {tuple(images_per_class)}"
        )
    if size < 64:
        raise FcamError(f"pictures need at least 64 pixels a side for the heads to be told apart, got {size}")
    if seed < 0:
        raise FcamError(f"a seed must not be negative, got {seed}")


def _is_finished(root: Path, recipe: dict[str, Any]) -> bool:
    """Say whether the very set is there; raise for another one, go on over an interrupted one."""
    note, lists = root / "synthetic.json", root / "metadata"
    if not note.is_file():
        if lists.exists():
            raise FcamError(f"{root} already holds another data set; choose another folder")
        return False
    if json.loads(note.read_text(encoding="utf-8")) != recipe:
        raise FcamError(
            f"{root} holds a synthetic set drawn with other arguments; choose another folder or remove it"
        )
    return (lists / SPLITS[-1] / "image_ids.txt").is_file()


class _Row(NamedTuple):
    image_id: str
    label: int
    box: tuple[int, int, int, int]
    mask: str


def _write_picture(root: Path, split: str, label: int, index: int, drawing: Drawing) -> _Row:
    name = f"{split}/{label:02d}/{index:04d}"
    row = _Row(f"images/{name}.jpg", label, drawing.box, f"masks/{name}.png")
    write_image(root / row.image_id, Image.fromarray(drawing.image), quality=95, subsampling=0)
    if split != "train":
        write_image(root / row.mask, Image.fromarray(drawing.mask.astype(np.uint8) * 255))
    return row


def _write_lists(root: Path, split: str, rows: list[_Row], size: int) -> None:
    weak = split == "train"
    boxes = "" if weak else "".join(f"{row.image_id},{','.join(map(str, row.box))}\n" for row in rows)
    masks = "" if weak else "".join(f"{row.image_id},{row.mask},\n" for row in rows)
    for folder, localization in (("metadata_masks", masks), ("metadata", boxes)):
        lists = root / folder / split
        write_text(lists / "class_labels.txt", "".join(f"{row.image_id},{row.label}\n" for row in rows))
        write_text(lists / "image_sizes.txt", "".join(f"{row.image_id},{size},{size}\n" for row in rows))
        write_text(lists / "localization.txt", localization)
        write_text(lists / "image_ids.txt", "".join(f"{row.image_id}\n" for row in rows))
