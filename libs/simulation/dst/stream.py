"""One stream of the simulated broker: what is stored, what is refused, and why. The order of the checks is nats-server's."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from libs.simulation.dst.subjects import matches

ApiRefusal = tuple[int, int, str]
"""(HTTP-like code, JetStream's error code, text)."""
_AT_ONCE_US = 1000
"""A disk writes one message after the other: no two of a stream that come in one moment have the same time."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A stored message. `time_us` is the broker's clock."""

    seq: int
    subject: str
    headers: dict[str, str] | None
    data: bytes
    time_us: int

    @property
    def size(self) -> int:
        return len(self.data) + len(self.subject) + 64


@dataclass(slots=True)
class Stream:
    """`config` is the stream's configuration as the API shows it; its messages are kept by their numbers."""

    name: str
    config: dict[str, Any]
    messages: dict[int, StoredMessage] = field(default_factory=dict)
    last_seq: int = 0
    first_seq: int = 1
    size: int = 0
    """Bytes of what is kept."""
    full: bool = False
    """It takes nothing more, however little it keeps."""
    ids: dict[str, tuple[int, int]] = field(default_factory=dict)
    by_subject: dict[str, list[int]] = field(default_factory=dict)
    _last_us: int = -_AT_ONCE_US
    _shown: tuple[Any, str] = (None, "")
    """The configuration that was shown last, and its JSON."""

    def takes(self, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in self.config.get("subjects") or ())

    def store(
        self, subject: str, headers: dict[str, str] | None, data: bytes, time_us: int
    ) -> "StoredMessage | int | ApiRefusal":
        """The stored message; the sequence of an earlier one with the same id; or the refusal."""
        config = self.config
        if config.get("sealed"):
            return 400, 10109, "invalid operation on sealed stream"
        held = headers or {}
        expected = held.get("Nats-Expected-Last-Sequence")
        if expected is not None and int(expected) != self.last_seq:
            return 400, 10071, f"wrong last sequence: {self.last_seq}"
        expected = held.get("Nats-Expected-Last-Subject-Sequence")
        if expected is not None:
            last = self.last_of(subject)
            if int(expected) != (last.seq if last is not None else 0):
                return 400, 10071, f"wrong last sequence: {last.seq if last is not None else 0}"
        id_ = held.get("Nats-Msg-Id")
        if id_ is not None and (seen := self.ids.get(id_)) is not None:
            if time_us - seen[1] < config["duplicate_window"] // 1000:
                return seen[0]
            del self.ids[id_]
        if self._last_us - _AT_ONCE_US < time_us <= self._last_us:
            time_us = self._last_us + 1
        self._last_us = time_us
        rollup = held.get("Nats-Rollup")
        kept = StoredMessage(self.last_seq + 1, subject, headers, data, time_us)
        per_subject = config.get("max_msgs_per_subject", -1)
        full_subject = bool(config.get("discard_new_per_subject")) and per_subject > 0
        if full_subject and len(self.by_subject.get(subject, ())) >= per_subject:
            return 503, 10077, "maximum messages per subject exceeded"
        replaces = rollup == "sub" or (per_subject > 0 and not full_subject)
        if self.full:
            return 503, 10077, "maximum bytes exceeded"
        if not replaces and config.get("discard") == "new":
            limit, most = config.get("max_bytes", -1), config.get("max_msgs", -1)
            if (0 < limit < self.size + kept.size) or (0 < most <= len(self.messages)):
                return 503, 10077, "maximum bytes exceeded" if limit > 0 else "maximum messages exceeded"
        self.last_seq += 1
        self.messages[kept.seq] = kept
        self.size += kept.size
        seqs = self.by_subject.setdefault(subject, [])
        seqs.append(kept.seq)
        if id_ is not None:
            self.ids[id_] = (kept.seq, time_us)
        if rollup == "sub":
            self._drop(seqs[:-1])
        elif per_subject > 0 and not full_subject:
            self._drop(seqs[:-per_subject])
        if config.get("discard") == "old":
            limit = config.get("max_bytes", -1)
            while 0 < limit < self.size and len(self.messages) > 1:
                self._drop([self.first_seq])
        return kept

    def knows(self, id_: str | None, time_us: int) -> bool:
        """Whether a message of that id was stored within the window."""
        seen = self.ids.get(id_ or "")
        return seen is not None and time_us - seen[1] < self.config["duplicate_window"] // 1000

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more are taken."""
        if self.full:
            return False
        limit = self.config.get("max_bytes", -1)
        return self.config.get("discard") == "old" or limit <= 0 or self.size + size <= limit

    def expire(self, now_us: int) -> None:
        """Drops what is older than the stream's age, and ids beyond the window."""
        age = (self.config.get("max_age") or 0) // 1000
        if age:
            while self.messages and now_us - self.messages[self.first_seq].time_us > age:
                self._drop([self.first_seq])

    def last_of(self, subject: str) -> StoredMessage | None:
        seqs = self.by_subject.get(subject)
        return self.messages[seqs[-1]] if seqs else None

    def next_of(self, seq: int, pattern: str = ">") -> StoredMessage | None:
        """The first message from `seq` on that matches."""
        for number in range(max(seq, self.first_seq), self.last_seq + 1):
            kept = self.messages.get(number)
            if kept is not None and (pattern == ">" or matches(pattern, kept.subject)):
                return kept
        return None

    def after(self, seq: int, patterns: tuple[str, ...]) -> Iterator[StoredMessage]:
        """Messages after `seq` that match one of `patterns` (none: all)."""
        for number in range(max(seq + 1, self.first_seq), self.last_seq + 1):
            kept = self.messages.get(number)
            if kept is not None and (not patterns or any(matches(p, kept.subject) for p in patterns)):
                yield kept

    def purge(self, *, below: int | None = None, pattern: str = ">", keep: int = 0) -> int:
        """Removes messages; returns how many."""
        seqs = [s for s, k in self.messages.items() if (below is None or s < below) and matches(pattern, k.subject)]
        if keep:
            seqs = seqs[:-keep]
        self._drop(seqs)
        if pattern == ">" and not self.messages:
            self.first_seq = max(self.first_seq, min(below or self.last_seq + 1, self.last_seq + 1))
        return len(seqs)

    def delete(self, seq: int) -> bool:
        found = seq in self.messages
        self._drop([seq])
        return found

    def _drop(self, seqs: list[int]) -> None:
        for seq in list(seqs):
            kept = self.messages.pop(seq, None)
            if kept is None:
                continue
            self.size -= kept.size
            of_subject = self.by_subject[kept.subject]
            of_subject.remove(seq)
            if not of_subject:
                del self.by_subject[kept.subject]
        if self.messages:
            while self.first_seq not in self.messages and self.first_seq <= self.last_seq:
                self.first_seq += 1
        else:
            self.first_seq = self.last_seq + 1

    def shown(self) -> str:
        """Its configuration as JSON: most questions about a stream have the same answer but for its state."""
        if self._shown[0] is not self.config:
            self._shown = (self.config, json.dumps(self.config))
        return self._shown[1]

    def state(self) -> str:
        """As JSON."""
        return (
            f'{{"messages": {len(self.messages)}, "bytes": {self.size}, "first_seq": {self.first_seq}, '
            f'"last_seq": {self.last_seq}, "last_ts": "{iso(max(0, self._last_us))}", "consumer_count": 0}}'
        )


def iso(time_us: int) -> str:
    """As the broker writes moments."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat().replace("+00:00", "Z")
