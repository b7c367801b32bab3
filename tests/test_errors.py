"""Sentences for the user: one line, without control characters, whatever goes into them."""

from __future__ import annotations

import pickle

import pytest
from torch._utils import ExceptionWrapper

from fcam.errors import FcamError, cut, shown


def test_a_sentence_is_one_line_without_control_characters() -> None:
    error = FcamError("cannot read a\nb.png:\r\n  \x1b[31mred\x00 \ud800")
    assert str(error) == r"cannot read a b.png: \x1b[31mred\x00 \ud800"
    assert str(FcamError("日本 ünï ° 0.5")) == "日本 ünï ° 0.5"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_loader_worker_hands_on_the_sentence_alone() -> None:
    try:
        raise FcamError("photo 3 has\nno label")
    except FcamError:
        carried = pickle.loads(pickle.dumps(ExceptionWrapper(where="in DataLoader worker process 0")))
    with pytest.raises(FcamError) as caught:
        carried.reraise()
    assert str(caught.value) == "photo 3 has no label"


def test_values_are_shown_short() -> None:
    assert shown("three") == "'three'"
    assert shown(0.5) == "0.5"
    assert len(shown("a" * 10_000)) < 220
    assert len(shown({str(i): list(range(100)) for i in range(100)})) < 220
    assert "bits" in shown(10**5000)
    laughs: list = ["x"]
    for _ in range(60):
        laughs = [laughs] * 8
    assert len(shown(laughs)) < 220
    assert cut("a" * 300) == "a" * 200 + "..."
