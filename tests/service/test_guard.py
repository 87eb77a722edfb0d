"""Metrics and readiness are for whoever shows the token."""

from typing import Any

import pytest
from pydantic import ValidationError

from libs.service.guard import guarded
from libs.service.settings import ServiceSettings

TOKEN = "secret"


async def status(token: str, *sent: bytes) -> int:
    """Of a page behind `token`, when these Authorization headers are sent."""
    told: list[Any] = []

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        told.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    await guarded(page, token)({"headers": [(b"authorization", one) for one in sent]}, receive, send)
    return int(told[0]["status"])


async def test_a_page_asks_for_its_token() -> None:
    assert await status(TOKEN, b"Bearer secret") == 200
    for sent in (
        (),
        (b"Bearer secre",),
        (b"Bearer ",),
        (b"secret",),
        (b"Basic secret",),
        (b"Bearer x", b"Bearer secret"),
    ):
        assert await status(TOKEN, *sent) == 401, sent
    assert await status("") == 200, "none is set: the port is of loopback"


def test_a_port_that_others_reach_needs_a_token() -> None:
    with pytest.raises(ValidationError, match="set BATON_HTTP_TOKEN"):
        ServiceSettings(http_host="0.0.0.0")
    assert ServiceSettings(http_host="0.0.0.0", http_token=TOKEN).http_host == "0.0.0.0"
    assert "secret" not in repr(ServiceSettings(http_token=TOKEN))
