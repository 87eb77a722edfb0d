"""Deletes processed messages from a stream, so that its size limit counts what waits and not what was done long ago.

    REQUESTS    each consumer trims its own subjects, behind its lowest unacknowledged message: settle acknowledges only what
                is answered (in an inbox, as a rejection, or as a dead letter), and stored there
    INBOX       placement, behind the inbox sequence of the last record of the ledger

The naive way is to purge up to there at once. But the broker forgets the ids of purged messages when it restarts, and a
person who looks for a message of a minute ago should find it. So processed messages stay for `keep_s`, unless the stream is
half full, or a subject has half of the messages that it may have. Nothing depends on a purge: one that fails is tried again.

A subject of REQUESTS (one user's) may have a fixed number of messages: the broker refuses the next. With a purge every 15 s a
user could send only that many in 15 s, so the consumer reports what it has processed (`dealt_with`), and full subjects are
purged as often as needed. While a burst blocks other teams it gets only part of its places back (`held_back`): answered
requests then stay, and fill its subject.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from nats.js import JetStreamContext
from nats.js.api import StreamInfo

from libs.bus.metrics import SENDERS_NOW, TRIMMED
from libs.bus.retry import run_periodically
from libs.bus.table import WAITING_OF_A_SENDER, durable_of

log = logging.getLogger("baton.trim")

KEEP_S = 600.0
PRESSED = 0.5
"""From this fill level on (of a stream's limit) processed messages are not kept."""

SENDERS = 10_000
"""With more subjects than this in a stream processed messages are not kept either: it is not checked which are full."""

_TURN_S = 15.0
_RELIEVED = 1 / 16
"""After this share of a subject's limit was processed, it is checked which subjects are half full."""
_PRESSED_TURN_S = 1.0
_API_S = 5.0
_RELIEF_S = 0.1
"""The minimum interval between two checks of subjects."""
_FOLLOWED = 64
"""Subjects of which it is known where what was answered lies: those that were answered last."""

Floor = Callable[[], Awaitable[int]]
"""The sequence up to which everything has been dealt with, and what follows from it is stored elsewhere."""
HeldBack = Callable[[str, int], float]
"""Told a subject and how many messages it may have: the share of them (0 to 1) that what was answered of it goes on taking up,
so that so much less of it can wait."""


class Trimmer:
    """Trims `stream`, or those of its messages that `subject` matches, behind `floor`."""

    def __init__(
        self,
        js: JetStreamContext,
        stream: str,
        floor: Floor,
        *,
        subject: str = "",
        keep_s: float = KEEP_S,
        held_back: HeldBack | None = None,
    ) -> None:
        self.stream = stream
        self._held_back = held_back
        self._answered: OrderedDict[str, deque[int]] = OrderedDict()  # subject -> sequences, as they were dealt with
        self._keeps_back = False
        self.trimmed_to = 0
        self._js = js
        self._floor = floor
        self._subject = subject
        self._keep_s = keep_s
        self._seen: deque[tuple[float, int]] = deque()  # (when, floor), oldest first
        self._relieved: dict[str, int] = {}  # subject that was pressed -> where it was trimmed to
        self._dealt_with = 0
        self._enough = 1  # to look at subjects for
        self._bytes = 0
        self._enough_bytes = 1  # the same, of what was dealt with
        self._look = asyncio.Event()

    async def run(self) -> None:
        """Runs for ever and waits while the broker is unavailable. Raises ConnectionClosedError."""
        turn_s = min(_TURN_S, max(0.1, self._keep_s / 4))

        async def turn() -> float | None:
            pressed = await self.turn(asyncio.get_running_loop().time())
            return min(turn_s, _PRESSED_TURN_S) if pressed else None

        await run_periodically(turn, turn_s, log, f"stream {self.stream} is not trimmed")

    async def clear(self) -> None:
        """Trims all that was dealt with. Raises nats errors."""
        if floor := await self._floor():
            await self._js.purge_stream(self.stream, seq=floor + 1, subject=self._subject or None)

    def dealt_with(self, count: int = 1, subject: str = "", seq: int = 0, size: int = 0) -> None:
        """So many more messages were processed, of so many bytes; for a single one it may be said which."""
        if subject:
            self._answered.setdefault(subject, deque(maxlen=WAITING_OF_A_SENDER)).append(seq)
            self._answered.move_to_end(subject)
            if len(self._answered) > _FOLLOWED:
                self._answered.popitem(last=False)
        self._dealt_with += count
        self._bytes += size
        if self._dealt_with >= self._enough or self._bytes >= self._enough_bytes:
            self._dealt_with = self._bytes = 0
            self._look.set()

    async def relieve(self) -> None:
        """For ever: trims subjects that are half full, and all of them when the stream is, as soon as enough was dealt with:
        large messages would fill it between two turns of `run`, and others' would be refused. Raises ConnectionClosedError."""

        async def turn() -> float:
            with suppress(TimeoutError):  # what is held back must go also when nobody sends any more
                async with asyncio.timeout(_PRESSED_TURN_S if self._keeps_back else None):
                    await self._look.wait()
            self._look.clear()
            info, floor = await self._js.stream_info(self.stream), await self._floor()
            self._enough_bytes = max(1, int((info.config.max_bytes or 0) * _RELIEVED))
            if fill_of(info) >= PRESSED:
                await self._trim(info, floor)
            await self._relieve(info, floor)
            return _RELIEF_S

        await run_periodically(turn, _PRESSED_TURN_S, log, f"subjects of stream {self.stream} are not trimmed")

    async def _relieve(self, info: StreamInfo, floor: int) -> None:
        """Trims those subjects that have half of what they may have."""
        most = (info.config.max_msgs_per_subject or 0) if info.config.discard_new_per_subject else 0
        if most <= 0 or not self._subject:
            return
        if await self._senders() > SENDERS:
            return
        self._enough = max(1, int(most * _RELIEVED))
        counts = (await self._js.stream_info(self.stream, subjects_filter=self._subject)).state.subjects or {}
        pressed = [subject for subject, count in counts.items() if count >= most * PRESSED]
        self._relieved = {subject: self._relieved.get(subject, 0) for subject in pressed}
        self._keeps_back = False
        for subject in pressed:
            keep = int(most * self._held_back(subject, most)) if self._held_back is not None else 0
            self._keeps_back |= keep > 0
            if (upto := self._behind(subject, floor, keep)) > self._relieved[subject]:
                await self._js.purge_stream(self.stream, seq=upto + 1, subject=subject)
                self._relieved[subject] = upto
                TRIMMED.labels(self.stream).inc()

    def _behind(self, subject: str, floor: int, keep: int) -> int:
        """The sequence up to which a subject may go: never above the floor. `keep` of what was answered of it stay."""
        answered = sorted(seq for seq in self._answered.get(subject, ()) if seq <= floor)
        return answered[-min(keep, len(answered))] - 1 if keep and answered else floor

    async def _senders(self) -> int:
        """How many subjects the stream has; nats-py does not tell it."""
        told = await self._js._api_request(f"{self._js._prefix}.STREAM.INFO.{self.stream}", timeout=_API_S)
        found = int(told["state"].get("num_subjects", 0))
        SENDERS_NOW.labels(self.stream).set(found)
        return found

    async def turn(self, now: float) -> bool:
        """Trims what may go at `now` (seconds of a monotonic clock); whether the stream is pressed. Raises nats errors."""
        info = await self._js.stream_info(self.stream)
        floor = await self._floor()
        self._seen.append((now, floor))
        await self._relieve(info, floor)
        pressed = fill_of(info) >= PRESSED or (bool(self._subject) and await self._senders() > SENDERS)
        upto = floor if pressed else self._dealt_with_before(now - self._keep_s)
        await self._trim(info, upto)
        return pressed

    async def _trim(self, info: StreamInfo, upto: int) -> None:
        """All that was dealt with, up to there."""
        if upto > self.trimmed_to and info.state.first_seq <= upto:
            await self._js.purge_stream(self.stream, seq=upto + 1, subject=self._subject or None)
            self.trimmed_to = upto
            TRIMMED.labels(self.stream).inc()

    def _dealt_with_before(self, moment: float) -> int:
        """The last floor that was seen before `moment`; older ones are forgotten."""
        while len(self._seen) > 1 and self._seen[1][0] <= moment:
            self._seen.popleft()
        when, floor = self._seen[0]
        return floor if when <= moment else 0


def fill_of(info: StreamInfo) -> float:
    """How full a stream is, of its limit: 0 to 1."""
    limit = info.config.max_bytes or 0
    return info.state.bytes / limit if limit > 0 else 0.0


def trimmer_of(
    js: JetStreamContext,
    stream: str,
    durable: str,
    *,
    keep_s: float = KEEP_S,
    answered: Callable[[int], None] | None = None,
    held_back: HeldBack | None = None,
) -> Trimmer:
    """A trimmer of what the durable consumer reads, behind what it has acknowledged, which `answered` is told whenever it is
    looked. Raises KeyError as `durable_of`."""
    (subject,) = durable_of(stream, durable).filter_subjects

    async def acknowledged() -> int:
        last = (await js.stream_info(stream)).state.last_seq  # first: what comes after this is not counted as read
        consumer = await js.consumer_info(stream, durable)
        if not consumer.num_pending and not consumer.num_ack_pending:
            return last
        return consumer.ack_floor.stream_seq if consumer.ack_floor is not None else 0

    async def floor() -> int:
        found = await acknowledged()
        if answered is not None:
            answered(found)
        return found

    return Trimmer(js, stream, floor, subject=subject, keep_s=keep_s, held_back=held_back)
