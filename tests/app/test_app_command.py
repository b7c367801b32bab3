"""`fcam app` before and around its page: mistakes, addresses, headers."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from fcam.app.command import AppConfig, check_address, run_app
from fcam.app.offline import OwnHostOnly, allowed_hosts
from fcam.cli import main
from fcam.errors import FcamError


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "nowhere"], "nowhere"),
        (["--model", "MODEL", "--model", "nowhere"], "nowhere"),
        (["--model", "MODEL", "--photos", "nowhere"], "does not exist"),
        (["--model", "MODEL", "--photos", "EMPTY"], "no image"),
        (["--model", "MODEL", "--port", "0"], "--port is 0"),
        (["--model", "MODEL", "--host", "256.1.1.1"], "cannot listen on 256.1.1.1"),
        (["--model", "MODEL", "--max-megapixels", "0"], "--max-megapixels is 0"),
        (["--model", "MODEL", "--max-megapixels", "inf"], "--max-megapixels is inf"),
    ],
)
def test_mistakes_end_in_one_sentence_before_anything_is_served(
    arguments: list[str], words: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {"MODEL": model, "EMPTY": str(tmp_path)}
    if "--port" not in arguments:
        arguments = [*arguments, "--port", str(free_port())]
    assert main(["app", *(named.get(a, a) for a in arguments)]) == 2
    err = capsys.readouterr().err.strip()
    assert words in err
    assert len(err.splitlines()) == 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(FcamError, match=f"port {port}: address already in use; choose another --port"):
            check_address("127.0.0.1", port)
    check_address("127.0.0.1", port)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcam.app.command.find_spec", lambda name: None)
    with pytest.raises(FcamError, match=r'pip install "fcam\[app\]"'):
        run_app(AppConfig())


def test_who_may_ask() -> None:
    assert allowed_hosts("127.0.0.1") == ["localhost", "127.0.0.1"]
    assert allowed_hosts("localhost") == ["localhost", "127.0.0.1"]
    assert allowed_hosts("0.0.0.0") == ["*"]


def test_html_carries_the_policy_and_other_answers_do_not() -> None:
    def head(kind: bytes) -> dict[bytes, bytes]:
        sent: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
            await send({"type": "http.response.body", "body": b"<p>"})

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(OwnHostOnly(app)({"type": "http"}, None, send))
        assert sent[1] == {"type": "http.response.body", "body": b"<p>"}
        return dict(sent[0]["headers"])

    assert b"'self'" in head(b"text/html; charset=utf-8")[b"content-security-policy"]
    assert b"content-security-policy" not in head(b"application/json")
