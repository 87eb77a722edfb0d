"""Draws docs/lifecycle.md from the code: `python -m tests.architecture.lifecycle_pictures` writes its pictures and tables.

What they show is `libs.core.state.lifecycle.TABLE` and `libs.core.scheduling.retry.POLICY`.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from libs.core.scheduling.retry import POLICY, Budget
from libs.core.state.lifecycle import ACTIVE, OPEN, TABLE, Moves, Rule
from tests.architecture.picture import ROOT, filled, mermaid

PAGE = ROOT / "docs/lifecycle.md"
_PAID_BY = {
    Budget.USER: "`retry.on_failure`",
    Budget.INFRASTRUCTURE: "nobody: after a wait, unless it was lost too often in a row",
    Budget.FREE: "nobody: always",
    Budget.NEVER: "no further attempt",
}


def wanted(page: str) -> str:
    """The page with its pictures and tables as the code is now."""
    jobs = {kind(event): rule.job for event, rule in TABLE.items() if rule.job is not None}
    attempts = {kind(event): rule.attempt for event, rule in TABLE.items() if rule.attempt is not None}
    page = filled(page, "job", mermaid(diagram(jobs, ACTIVE, "active", "an attempt is open")))
    page = filled(page, "attempt", mermaid(diagram(attempts, OPEN, "open", "it holds devices")))
    page = filled(page, "events", "".join(f"{line}\n" for line in events()))
    return filled(page, "retry", "".join(f"{line}\n" for line in retries()))


def kind(event: type) -> str:
    name: str = event.model_fields["kind"].default  # type: ignore[attr-defined]
    return name


def diagram(rules: Mapping[str, Moves], inner: frozenset[StrEnum], name: str, title: str) -> Iterator[str]:
    """A state diagram; states of `inner` stand in one box, and what may happen in all of them leaves from the box."""
    arrows = sorted({arrow for event, moves in rules.items() for arrow in _arrows(event, moves, inner, name)})
    inside = [arrow for arrow in arrows if arrow[0] in inner and arrow[1] in inner]
    ends = {target for _, target, _ in arrows} - {source for source, _, _ in arrows} - inner
    yield "stateDiagram-v2"
    yield f'    state "{title}" as {name} {{'
    yield from (f"        {before} --> {after}: {event}" for before, after, event in inside)
    yield "    }"
    yield from (
        f"    {before} --> {after}: {event}" for before, after, event in arrows if (before, after, event) not in inside
    )
    yield from (f"    {end} --> [*]" for end in sorted(ends))


def _arrows(event: str, moves: Moves, inner: frozenset[StrEnum], name: str) -> Iterator[tuple[str, str, str]]:
    """What moves: events that leave a state as it is are in the table of events alone."""
    together = {target for target in set().union(*moves.values()) if all(target in moves.get(s, ()) for s in inner)}
    for before, targets in moves.items():
        for after in targets:
            if after is not None and after != before:
                source = "[*]" if before is None else name if before in inner and after in together else str(before)
                yield source, str(after), event


def events() -> Iterator[str]:
    yield "| event | the job | its attempt |"
    yield "|---|---|---|"
    for event, rule in TABLE.items():
        if rule == Rule():
            yield f"| `{kind(event)}` | - | - |"
        else:
            yield f"| `{kind(event)}` | {_words(rule.job, ACTIVE)} | {_words(rule.attempt, OPEN)} |"


def _words(moves: Moves | None, all_of_them: frozenset[StrEnum]) -> str:
    """`from -> to` for each set of sources that has the same targets."""
    assert moves is not None
    if moves == {None: frozenset({None})}:
        return "none is open"
    if all(targets == {before} for before, targets in moves.items()):
        return f"{_sources(moves, all_of_them)}: stays"
    by_target: dict[frozenset[StrEnum | None], list[StrEnum | None]] = {}
    for before, targets in moves.items():
        by_target.setdefault(targets, []).append(before)
    return "; ".join(
        f"{_sources(sources, all_of_them)} → {' or '.join(sorted(map(str, targets)))}"
        for targets, sources in by_target.items()
    )


def _sources(sources: Mapping | list, all_of_them: frozenset[StrEnum]) -> str:
    if None in sources:
        return "(new)"
    return "any open" if set(sources) == all_of_them else ", ".join(sorted(map(str, sources)))


def retries() -> Iterator[str]:
    yield "| category | who pays for a further attempt | booked as | else the job is |"
    yield "|---|---|---|---|"
    for category, rule in POLICY.items():
        final = "-" if rule.budget is Budget.FREE else rule.final.value
        yield f"| `{category}` | {_PAID_BY[rule.budget]} | {rule.outcome} | {final} |"


if __name__ == "__main__":
    PAGE.write_text(wanted(PAGE.read_text()))
