"""An HTTP page behind a bearer token."""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Page = Callable[[Scope, Receive, Send], Awaitable[None]]

_REFUSAL = b"send the header `Authorization: Bearer <token>`, with the service's BATON_HTTP_TOKEN\n"


def guarded(page: Page, token: str) -> Page:
    """`page` for whoever shows the token, 401 for all others. Without a token it is open."""
    if not token:
        return page
    wanted = f"Bearer {token}".encode()

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        given = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        if len(given) == 1 and hmac.compare_digest(given[0], wanted):
            await page(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": _REFUSAL})

    return guard
