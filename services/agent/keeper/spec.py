"""What the keeper asks its zygote and shims for, and what they say, in the words of `native/spec.h` and `native/shim.c`.

Numbers are as the machine has them. A text has its length and a NUL at its end; a list of texts has its count, the length of
all of them, and each with its NUL.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from services.agent.keeper import contain

VERSION = 3
"""Of the words. A keeper and its program are of one version: the keeper holds the file that it began with open."""
LARGEST = 65_536
"""Bytes of one message. A larger spec is a file."""
MOST_RANKS = 4096
TOLD = ("group", "memory", "pids", "cpu", "workdir", "command", "ranks", "log_limit", "remove", "walls")
"""What a shim needs of the agent's start message. `walls`: see `walls.Spec`, or None. `memory`: a cgroup to be made, `group`,
and its limit in `bytes`; or None. `pids`: the same, and how many processes it may have at `most`; `cpu`: and its `weight`."""

STARTED, FAILED, EXITED, GONE = b"sfxg"
"""What a shim says first: its first byte."""
KILL = b"k"
_SIGNAL = struct.Struct("=ciII")
_U32, _U64, _I32 = struct.Struct("=I"), struct.Struct("=Q"), struct.Struct("=i")
_CODE = struct.Struct("=Ii")
_NAMESPACES = {"mnt": 1, "ipc": 2, "net": 4}


class BadWords(ValueError):
    """What came is nothing that a shim says."""


def attempt(told: Mapping[str, Any], shown: bytes | None = None) -> bytes:
    """A shim's spec, of an agent's start message. `shown`: what the prepared view shows that the shim is given; None: none.

    Raises ValueError when it is no message that can be started.
    """
    try:
        memory, pids, cpu = (told.get(key) or {} for key in ("memory", "pids", "cpu"))
        walls = told.get("walls")
        ranks: Sequence[Mapping[str, Any]] = told["ranks"]
        if not 0 < len(ranks) <= MOST_RANKS:
            raise ValueError(f"{len(ranks)} ranks: 1 to {MOST_RANKS} can be started at once")
        pieces = [
            _U32.pack(VERSION),
            _U64.pack(told["log_limit"]),
            _text(told.get("group") or ""),
            _text(memory.get("group") or ""),
            _U64.pack(memory.get("bytes") or 0),
            _text(pids.get("group") or ""),
            _U64.pack(pids.get("most") or 0),
            _text(cpu.get("group") or ""),
            _U64.pack(cpu.get("weight") or 0),
            _text(told["workdir"]),
            _text(told.get("remove") or ""),
            _list(told["command"]),
            _U32.pack(0) if walls is None else _walls(walls, shown),
            _U32.pack(len(ranks)),
        ]
        for rank in ranks:
            pieces += _U32.pack(rank["rank"]), _text(rank["log"]), _environment(rank["environment"])
    except (KeyError, TypeError, AttributeError, struct.error) as e:
        raise ValueError(f"a start that is not understood: {type(e).__name__}: {e}") from None
    return b"".join(pieces)


def making(args: Sequence[str], sources: Sequence[str]) -> bytes:
    """What a maker of a view is asked for. Raises ValueError."""
    return b"".join((_U32.pack(VERSION), _list(sources), _list(args)))


def setup(kind: str, name: str, bwrap: str, common: bytes, last: bytes) -> bytes:
    """What a zygote is told first. `common`, `last`: filters of system calls, see there. Raises ValueError."""
    number = contain.KINDS.index(kind)
    return b"".join((_U32.pack(VERSION), _U32.pack(number), _text(name), _text(bwrap), _block(common), _block(last)))


def signals(number: int, ranks: Sequence[int], whole_session: bool) -> bytes:
    """Raises ValueError."""
    try:
        return _SIGNAL.pack(b"n", number, whole_session, len(ranks)) + struct.pack(f"={len(ranks)}I", *ranks)
    except struct.error as e:
        raise ValueError(f"signal {number!r} to ranks {ranks!r}: {e}") from None


def failure(said: bytes) -> dict[str, Any]:
    """Of FAILED: `errno` (None: the agent's words are at fault), `error`, "" for that errno's own text, and `filename`. Raises
    BadWords."""
    text, nul, about = said[1 + _I32.size :].partition(b"\0")
    if not nul or len(said) < 1 + _I32.size:
        raise BadWords(f"{said[:64]!r}")
    (number,) = _I32.unpack_from(said, 1)
    return {"errno": number or None, "error": text.decode(errors="replace"), "filename": about.decode(errors="replace")}


def codes(said: bytes) -> dict[int, int]:
    """Of EXITED and GONE: rank -> exit code, minus n for signal n. Raises BadWords."""
    if (len(said) - 1) % _CODE.size:
        raise BadWords(f"{said[:64]!r}")
    return dict(_CODE.iter_unpack(said[1:]))


def _text(text: str) -> bytes:
    data = text.encode(errors="surrogateescape")
    if 0 in data:
        raise ValueError("embedded null byte")
    return b"%b%b\0" % (_U32.pack(len(data) + 1), data)


def _list(texts: Sequence[str]) -> bytes:
    return _items(texts, len(texts))


def _environment(variables: Mapping[str, str]) -> bytes:
    if any("=" in name or not name for name in variables):
        raise ValueError("illegal environment variable name")
    return _items([f"{name}={value}" for name, value in variables.items()], len(variables))


def _items(texts: Iterable[str], count: int) -> bytes:
    if not count:
        return _U32.pack(0) + _U32.pack(0)
    data = ("\0".join(texts) + "\0").encode(errors="surrogateescape")
    if data.count(0) != count:
        raise ValueError("embedded null byte")
    return b"%b%b%b" % (_U32.pack(count), _U32.pack(len(data)), data)


def _block(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def _walls(walls: Mapping[str, Any], shown: bytes | None) -> bytes:
    namespaces = sum(_NAMESPACES[name] for name in set(walls["namespaces"]))
    return b"".join(
        (
            _U32.pack(1),
            struct.pack("=IIII", bool(walls["root"]), walls["uid"], walls["gid"], namespaces),
            struct.pack("=QQQ", walls["processes"], walls["files"], walls.get("oom_score", 0)),
            _list(walls["args"]),
            _U32.pack(0) if shown is None else _prepared(walls["prepared"], shown),
        )
    )


def _prepared(prepared: Mapping[str, Any], shown: bytes) -> bytes:
    own = prepared["own"]
    return b"".join(
        (
            _U32.pack(1),
            _U64.pack(prepared["scratch"]),
            _list(prepared["sources"]),
            _block(shown),
            _list(prepared["carried"]),
            _list(prepared["stems"]),
            _list([path for path, _ in own]),
            _block(bytes(bool(writable) for _, writable in own)),
        )
    )
