"""Keeping the page to itself: the browser is told to ask no other host for anything, and who may ask this one."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]

POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"


class OwnHostOnly:
    """ASGI middleware: HTML carries a policy that forbids requests to other hosts.

    Some versions of gradio name a script on a content network and hosts for fonts; a viewer of one's own photos must
    work without a network and tell nobody about itself.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(
        self, scope: Message, receive: Any, send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Pass everything on; the head of an HTML answer gets the policy."""

        async def guarded(message: Message) -> None:
            headers = message.get("headers", ())
            if dict(headers).get(b"content-type", b"").startswith(b"text/html"):
                message = {**message, "headers": [*headers, (b"content-security-policy", POLICY)]}
            await send(message)

        await self.app(scope, receive, guarded)


def allowed_hosts(host: str) -> list[str]:
    """Return by which names a page served on `host` may be asked for.

    On this machine only, the local ones: another site whose name is made to point here stays outside.
    """
    if host == "localhost":
        return ["localhost", "127.0.0.1"]
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    return ["localhost", host] if local and ":" not in host else ["*"]
