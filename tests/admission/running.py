"""A service's application in this process, as uvicorn would run it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from faststream.asgi import AsgiFastStream

from libs.bus.broker import Broker


@asynccontextmanager
async def running(app: AsgiFastStream) -> AsyncIterator[AsgiFastStream]:
    """Once its subscribers have started."""
    async with app.start_lifespan_context():
        assert isinstance(app.broker, Broker)
        await app.broker.started.wait()
        yield app


async def get(app: AsgiFastStream, path: str) -> tuple[int, str]:
    """(status, body) of a GET request."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [], "http_version": "1.1"}
    await app(scope, receive, send)
    body = b"".join(part.get("body", b"") for part in sent)
    return sent[0]["status"], body.decode()
