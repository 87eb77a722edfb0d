"""Copies of whole streams, taken while they are written, and put back as they were: the broker's own snapshots.

A copy has the stream's configuration, its messages with their sequences, and its consumers with how far they are, as of one
moment. It is the broker's own format (a compressed archive), of which nothing is known here but its hash.

Source: https://docs.nats.io/reference/reference-protocols/nats_api_reference, `$JS.API.STREAM.SNAPSHOT` and `.RESTORE`.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

_CHUNK = 128 * 1024
_QUIET_S = 30.0
_ANSWER_S = 30.0
_LAST_S = 300.0
"""Of the last chunk's answer: the broker then reads what it got."""


class NotCopied(RuntimeError):
    """A stream could not be copied, or put back; the text says which, and what the broker said."""


async def copy_stream(nats: Client, name: str, path: Path) -> dict[str, Any]:
    """Writes the stream `name` to `path` (mode 0600); what the broker says of it (`config`, `state`), and of the file
    `sha256` and `bytes`. Raises NotCopied, OSError."""
    chunks: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = nats.new_inbox()
    subscription = await nats.subscribe(inbox, cb=chunks.put)
    digest, size = hashlib.sha256(), 0
    try:
        asked = {"deliver_subject": inbox, "no_consumers": False, "chunk_size": _CHUNK, "jsck": True}
        said = _answer(await _request(nats, f"$JS.API.STREAM.SNAPSHOT.{name}", json.dumps(asked).encode()), name)
        with _private(path) as file:
            while message := await _next(chunks, name):
                digest.update(message.data)
                size += len(message.data)
                file.write(message.data)
                if message.reply:
                    await message.respond(b"")  # the broker sends no more than its window ahead of these
            file.flush()
            os.fsync(file.fileno())
    finally:
        await subscription.unsubscribe()
    return {"config": said["config"], "state": said["state"], "sha256": digest.hexdigest(), "bytes": size}


async def put_back(nats: Client, about: dict[str, Any], path: Path) -> None:
    """Makes the stream of `about` (of `copy_stream`) again out of `path`. There must be none of its name. Raises NotCopied."""
    config = about["config"]
    name = str(config["name"])
    asked = json.dumps({"config": config, "state": about["state"]}).encode()
    into = str(_answer(await _request(nats, f"$JS.API.STREAM.RESTORE.{name}", asked), name)["deliver_subject"])
    for chunk in _chunks(path):
        _heard(await _request(nats, into, chunk), name)
    _answer(await _request(nats, into, b"", _LAST_S), name)


def sha256(path: Path) -> str:
    """Of a whole file."""
    digest = hashlib.sha256()
    for chunk in _chunks(path, 1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(path: Path, size: int = _CHUNK) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(size):
            yield chunk


def _private(path: Path) -> Any:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")


async def _next(chunks: "asyncio.Queue[Msg]", name: str) -> Msg | None:
    """None: that was all. Raises NotCopied."""
    try:
        async with asyncio.timeout(_QUIET_S):
            message = await chunks.get()
    except TimeoutError:
        raise NotCopied(f"the copy of {name} stopped: the broker sent nothing for {_QUIET_S:g} s") from None
    status = (message.headers or {}).get("Status", "")
    if not message.data:
        if status not in ("", "204"):
            raise NotCopied(f"the copy of {name} failed: {status} {(message.headers or {}).get('Description', '')}")
        return None
    return message


async def _request(nats: Client, subject: str, payload: bytes, timeout_s: float = _ANSWER_S) -> bytes:
    try:
        return (await nats.request(subject, payload, timeout=timeout_s)).data
    except Exception as e:
        raise NotCopied(f"the broker did not answer {subject}: {e!r}") from e


def _answer(payload: bytes, name: str) -> dict[str, Any]:
    _heard(payload, name)
    answer: dict[str, Any] = json.loads(payload)
    return answer


def _heard(payload: bytes, name: str) -> None:
    """Raises NotCopied when the broker refused."""
    if b'"error"' not in payload:
        return
    error = json.loads(payload).get("error")
    if error:
        raise NotCopied(f"the broker refused {name}: {error.get('description', error)}")
