"""`baton dead list|show|replay`: messages that could not be processed, read from the stream DEAD.

Nothing is removed: the stream expires by age, and a replayed message keeps its dead letter as a record.
"""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from libs.cli import units
from libs.cli.operator_action import MayReason, operator_action
from libs.cli.options import NoHeader, Output, Url
from libs.cli.output import Column, Format, clean, document, done, fields, say, show
from libs.cli.pool_commands import PoolRefused, sent_to_pool
from libs.cli.session import run
from libs.client import Baton, Failed, NotFound
from schemas import subjects
from schemas.subjects import DEAD, OPERATOR

if TYPE_CHECKING:
    from libs.bus.outbox import Outbox

app = typer.Typer(help="Messages that could not be processed (operators).", no_args_is_help=True, rich_markup_mode=None)

_SHOWN = 4096
Sequences = Annotated[list[int], typer.Argument(help="Sequence numbers of `baton dead list`.", min=1, metavar="SEQ")]


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter, stored at `at_us`."""

    seq: int
    origin: str
    subject: str
    stream: str
    stream_seq: str
    reason: str
    at_us: int
    headers: dict[str, str]
    payload: bytes

    def plain(self) -> dict[str, object]:
        """The form for JSON and YAML."""
        return {
            "seq": self.seq, "origin": self.origin, "subject": self.subject, "stream": self.stream,
            "stream_seq": self.stream_seq, "reason": self.reason, "at_us": self.at_us, "headers": self.headers,
            "payload": self.payload.decode(errors="replace"),
        }  # fmt: skip


_COLUMNS = [
    Column("SEQ", lambda letter: letter.seq, right=True),
    Column("AGE", lambda letter: units.age(letter.at_us)),
    Column("ORIGIN", lambda letter: letter.origin),
    Column("SUBJECT", lambda letter: letter.subject),
    Column("BYTES", lambda letter: len(letter.payload), right=True, wide=True),
    Column("REASON", lambda letter: letter.reason),
]


@app.command("list")
def list_letters(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="The newest so many.")] = 100,
    url: Url = None,
    output: Output = Format.TABLE,
    no_header: NoHeader = False,
) -> None:
    """The newest dead letters, oldest of them first."""

    async def read(baton: Baton) -> list[Letter]:
        return [letter async for letter in _newest(baton, limit)][::-1]

    letters = run(read, OPERATOR, url)
    plain = [letter.plain() for letter in letters]
    show(letters, _COLUMNS, output, name=lambda letter: str(letter.seq), header=not no_header, whole=plain)


@app.command("show")
def show_letter(
    seq: Annotated[int, typer.Argument(help="A sequence number of `baton dead list`.", min=1, metavar="SEQ")],
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """One dead letter: why it is here, its headers, its payload."""
    letter = run(lambda baton: _one(baton, seq), OPERATOR, url)
    if output in (Format.JSON, Format.YAML):
        document(letter.plain(), output)
        return
    fields(
        [
            ("sequence", letter.seq),
            ("laid here", units.moment(letter.at_us)),
            ("by", letter.origin),
            ("reason", letter.reason),
            ("subject", letter.subject),
            ("from", f"{letter.stream} sequence {letter.stream_seq}"),
            *sorted((name, value) for name, value in letter.headers.items() if name.startswith("Baton-Orig-")),
            ("payload", f"{len(letter.payload)} bytes"),
        ]
    )
    say(clean(letter.payload[:_SHOWN].decode(errors="replace"), keep_newlines=True))


@app.command("replay")
def replay(seqs: Sequences, reason: MayReason = "", url: Url = None, output: Output = Format.TABLE) -> None:
    """Send messages again as they were, to be decided anew: when what was wrong outside of them has been mended.

    What goes to a pool is waited for: it may be refused again. A team's request is answered to its team.
    """

    async def send(baton: Baton) -> None:
        from libs.bus.outbox import Outbox

        letters = [await _one(baton, seq) for seq in seqs]  # all must exist before any is sent
        outbox = Outbox(baton.nats.jetstream(), give_up_s=15.0)
        rows: list[dict[str, Any]] = [
            {"seq": letter.seq, "subject": letter.subject, "replayed": False, "error": "not tried"}
            for letter in letters
        ]
        refusals: list[PoolRefused] = []
        try:
            for letter, row in zip(letters, rows, strict=True):
                row["error"] = "interrupted"
                try:
                    row |= {"subject": await _resend(baton, outbox, letter), "replayed": True, "error": ""}
                    if output.of_lines:
                        say(f"{letter.seq}\t{row['subject']}")
                except PoolRefused as error:
                    refusals.append(error)
                    row["error"] = str(error)
                except Exception as error:
                    row["error"] = str(error) or type(error).__name__
                    raise
        finally:
            done(rows, [], output, names=[str(row["seq"]) for row in rows if row["replayed"]])
        if refusals:
            raise refusals[0]

    with operator_action("dead.replay", ",".join(map(str, seqs)), reason, url=url):
        run(send, OPERATOR, url)


async def _resend(baton: Baton, outbox: "Outbox", letter: Letter) -> str:
    """Sends it, and waits for the pool's decision. Returns the subject. Raises PoolRefused; Failed when the letter
    lacks information."""
    from libs.bus.dead import replayed

    try:
        message = replayed(letter.headers, letter.payload, attempt=uuid.uuid4().hex)
    except KeyError as e:
        raise Failed(f"dead letter {letter.seq} does not say where it came from", f"no header {e}") from None
    except ValueError as e:
        raise Failed(f"dead letter {letter.seq} cannot be replayed", str(e)) from None
    if (pool := subjects.pool_of_input(message.subject)) is None:
        await outbox.publish(message)
    else:
        await sent_to_pool(baton, pool, outbox, message)
    return message.subject


async def _newest(baton: Baton, limit: int) -> AsyncIterator[Letter]:
    """Newest first. Sequences may have gaps, because the stream expires by age."""
    js = baton.nats.jetstream()
    state = (await js.stream_info(DEAD)).state
    seq, found = state.last_seq, 0
    while seq >= max(1, state.first_seq) and found < limit and state.messages:
        try:
            yield _letter(await js.get_msg(DEAD, seq))
            found += 1
        except NotFoundError:
            pass
        seq -= 1


async def _one(baton: Baton, seq: int) -> Letter:
    try:
        return _letter(await baton.nats.jetstream().get_msg(DEAD, seq))
    except NotFoundError:
        raise NotFound(f"there is no dead letter {seq}", fix="`baton dead list` shows those that are") from None


def _letter(message: RawStreamMsg) -> Letter:
    headers = dict(message.headers or {})
    return Letter(
        seq=message.seq or 0,
        origin=headers.get("Baton-Dead-Origin", ""),
        subject=headers.get("Baton-Dead-Subject", message.subject or ""),
        stream=headers.get("Baton-Dead-Stream", ""),
        stream_seq=headers.get("Baton-Dead-Seq", ""),
        reason=headers.get("Baton-Dead-Reason", ""),
        at_us=int(message.time.timestamp() * 1e6) if message.time else 0,
        headers=headers,
        payload=message.data or b"",
    )
