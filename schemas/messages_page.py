"""docs/messages.md: the catalogue as a page, with a picture of who says what to whom."""

from collections.abc import Callable, Iterable
from itertools import pairwise

from schemas import subjects
from schemas.catalog import CATALOG, Message

INTRO = """# Messages

<!-- Written by `python -m schemas.generate` (`./dev schemas`) from schemas/catalog.py: change that, not this. -->

Every message of Baton once. A subject is `baton.<kind>.<entity>.v1.<what>.<keys>`, and its keys say who speaks: team and
user, pool and node; [schemas/subjects.py](../schemas/subjects.py) has the rule and every pattern. `-` in the column
*stream* is core NATS: nothing keeps the message. The payloads are in [schemas/generated](../schemas/generated) as JSON
Schema, all of it together as [AsyncAPI](../schemas/generated/asyncapi.json); how to add a message is in
[schemas](../schemas/README.md).
"""
SECTIONS: tuple[tuple[str, str, Callable[[Message], bool]], ...] = (
    ("Commands", "A team asks, one service owns the answer.", lambda m: m.stream == "REQUESTS"),
    ("Inbox", "All that placement reads, in one order per pool.", lambda m: m.stream.startswith("INBOX")),
    ("Ledger", "All that placement decides.", lambda m: m.stream.startswith("LEDGER")),
    ("Nodes", "Desired state, leases and samples.", lambda m: ".node." in m.subject and not _asked(m)),
    ("Events", "What teams are told about their jobs.", lambda m: m.stream == "EVENTS"),
    (
        "Questions",
        "Request and reply; the answer's schema is named like the question, with `reply`.",
        lambda m: _asked(m),
    ),
)
PEOPLE = ("teams", "operators")


def page() -> str:
    """The whole page. Raises ValueError naming a message that no section shows."""
    left = list(CATALOG)
    parts = [INTRO, _picture()]
    for title, text, belongs in SECTIONS:
        rows = [m for m in left if belongs(m)]
        left = [m for m in left if m not in rows]
        parts.append(f"## {title}\n\n{text}\n\n{_table(rows)}")
    if left:
        raise ValueError(f"no section of docs/messages.md shows {left[0].type}: add one to messages_page.SECTIONS")
    return "\n".join(parts)


def _asked(m: Message) -> bool:
    return subjects.is_question(m.subject)


def _table(rows: list[Message]) -> str:
    asked = any(m.reply for m in rows)
    head = ["type", "subject", "stream", "from", "to", *(["answer"] if asked else []), "what it says"]
    lines = [head, ["---"] * len(head)]
    for m in rows:
        answer = [f"`{m.reply.__name__}`" if m.reply else "-"] if asked else []
        link = f"[`{m.type}`](../schemas/generated/{m.type}.json)"
        to = ", ".join(m.consumers)
        lines.append([link, f"`{m.subject}`", m.stream or "-", m.producer, to, *answer, m.about])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _picture() -> str:
    """A mermaid flow chart: boxes are services, rounded ones people, cylinders streams, dotted arrows core NATS."""
    edges: dict[tuple[str, str, str], list[str]] = {}
    for m in CATALOG:
        what = m.type.removeprefix("io.baton.").removesuffix(".v1").removesuffix(".query")
        middle = [m.stream] if m.stream else []
        arrow = "-->" if m.stream else "-.->"
        for consumer in m.consumers:
            path = [m.producer, *middle, consumer]
            for number, (start, end) in enumerate(pairwise(path)):
                # What is in a stream is said once, where it is written; readers of one stream need no second label.
                edges.setdefault((start, arrow, end), []).extend([what] if number == 0 else [])
    names = _unique(name for start, _, end in edges for name in (start, end))
    lines = [f"    {_id(name)}{_shape(name)}" for name in names]
    lines += [f"    {_id(start)} {arrow}{_label(what)} {_id(end)}" for (start, arrow, end), what in edges.items()]
    return "```mermaid\nflowchart LR\n" + "\n".join(lines) + "\n```\n"


def _label(whats: list[str]) -> str:
    """At most four names, then how many more there are: a picture is for the overview."""
    names = _unique(whats)
    more = [f"and {len(names) - 4} more"] if len(names) > 4 else []
    return f'|"{"<br>".join(names[:4] + more)}"|' if names else ""


def _shape(name: str) -> str:
    if name in PEOPLE:
        return f'(["{name}"])'
    return f'[("{name}")]' if name.split("-")[0].isupper() else f'["{name}"]'


def _id(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
