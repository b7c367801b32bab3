"""Ways to damage a good file: bytes, lines of text, and trees of plain values, all drawn from one `random.Random`."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

HEADER = 64
"""First bytes, where formats keep their sizes; half of the byte edits go there."""
NASTY_BYTES = (b"\x00", b"\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff", b"\x80\x00")
NASTY_WORDS = (
    *(
        "",
        " ",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "-1",
        "0",
        "1.5",
        "9" * 30,
        "9" * 5000,
        "0x10",
        "1_0",
        "²",
        "٣",
    ),
    *(
        "true",
        "null",
        "../../x",
        "/",
        "\x00",
        "\x1b[31m",
        "\u2028",
        "\ufeff",
        "a" * 3000,
        ",",
        ",,,,,",
        '"',
        "'",
    ),
    *("{", "[", "- ", ": ", "#", "&a", "*a", "!!python/object/apply:os.system", "2001-13-45", "1:60:60"),
)
NASTY_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 1.5, -0.5, 1e308, float("nan"), float("inf")),
    *("", "x", "0", "\n", "a" * 3000, [], {}, [[]], [None], {"a": None}, [1, 2, 3, 4], ["x"] * 5),
)


def damage(data: bytes, rng: Random) -> bytes:
    """Apply one to six edits to bytes: flips, values, truncation, insertion, deletion, repetition, zeros."""
    edited = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        if not edited:
            break
        end = min(len(edited), HEADER) if rng.random() < 0.5 else len(edited)
        at = rng.randrange(end)
        span = rng.choice((1, 1, 2, 4, 16, 200))
        match rng.randrange(8):
            case 0:
                edited[at] ^= 1 << rng.randrange(8)
            case 1:
                edited[at] = rng.randrange(256)
            case 2:
                value = rng.choice(NASTY_BYTES)
                edited[at : at + len(value)] = value
            case 3:
                del edited[rng.randrange(len(edited)) :]
            case 4:
                edited[at:at] = bytes(rng.randrange(256) for _ in range(span))
            case 5:
                del edited[at : at + span]
            case 6:
                edited[at:at] = edited[at : at + span]
            case _:
                edited[at : at + span] = bytes(len(edited[at : at + span]))
    return bytes(edited)


def damage_text(text: str, rng: Random, separators: str = ",") -> bytes:
    """Edit lines and words of a text: drop, repeat, swap, replace by nasty words; now and then damage bytes."""
    lines = text.split("\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        match rng.randrange(7):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, rng.choice(lines))
            case 2:
                lines[at] = rng.choice(NASTY_WORDS)
            case 3:
                place = rng.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + rng.choice(NASTY_WORDS) + lines[at][place:]
            case _:
                separator = rng.choice(separators)
                words = lines[at].split(separator)
                words[rng.randrange(len(words))] = rng.choice(NASTY_WORDS)
                lines[at] = separator.join(words)
        lines = lines or [""]
    data = rng.choice(("\n", "\n", "\n", "\r\n", "\r")).join(lines).encode("utf-8", "surrogatepass")
    return damage(data, rng) if rng.random() < 0.2 else data


def damage_value(tree: Any, rng: Random) -> Any:
    """Replace, drop, rename or repeat some nodes of a tree of dicts and lists; returns a changed copy."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(tree))
        if not places:
            return rng.choice(NASTY_VALUES)
        node, key = rng.choice(places)
        match rng.randrange(6):
            case 0:
                del node[key]
            case 1 if isinstance(node, dict):
                node[rng.choice(NASTY_WORDS[:30])] = node.pop(key)
            case 2:
                node[key] = copy.deepcopy(rng.choice(places)[0])
            case _:
                node[key] = copy.deepcopy(rng.choice(NASTY_VALUES))
    return rng.choice(NASTY_VALUES) if rng.random() < 0.02 else tree


def damage_json(tree: Any, rng: Random) -> bytes:
    """A damaged JSON file: of a damaged tree, of damaged text, or nested deeper than a parser goes."""
    choice = rng.random()
    if choice < 0.01:
        return b"[" * 100_000
    if choice < 0.7:
        return json.dumps(damage_value(tree, rng)).encode()
    return damage_text(json.dumps(tree, indent=1), rng, ',:" ')


def _places(tree: Any) -> Any:
    """Yield (container, key) of every node below the root."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)
