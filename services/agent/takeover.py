"""What a starting agent finds of its predecessor: a keeper whose work may continue, or remains to be removed first."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from libs.ports.clock import boot_s as now
from schemas.nodes import DesiredPart
from services.agent.keeper import find
from services.agent.keeper.find import Found
from services.agent.keeper.table import GONE
from services.agent.node import EarlierLife
from services.agent.state import AgentState

log = logging.getLogger("baton.agent")


@dataclass(frozen=True, slots=True)
class Predecessor:
    """A keeper with lives that may continue. What else it holds (`others`: ids of attempts) must be killed."""

    keeper: Found
    lives: Mapping[str, EarlierLife]
    others: Sequence[str]


def look(state: AgentState, nodes: Sequence[str], roots: Sequence[str], group_base: Path | None) -> Predecessor | None:
    """Finds an earlier agent's keeper, or kills what is left. Blocks until one of both is done.

    A life continues when this state folder has it as the node's last, its lease has not ended, no agent was about to end
    it, and the keeper holds all its work (not simulated work). Without such a life the keeper is ended with all that it holds.

    Raises NotEmpty when something does not die.
    """
    found = None
    try:
        found = find.connect(state.path)
    except find.NoKeeper as e:
        log.warning("%s; it is ended, with what it holds", e)
    if found is not None:
        lives, others = _sorted(found.welcome, state.incarnations(), nodes)
        if lives:
            return Predecessor(found, lives, others)
        found.sock.close()
    sweep(state, roots, group_base)
    return None


def sweep(state: AgentState, roots: Sequence[str], group_base: Path | None) -> None:
    """Ends the keeper with its shims, and then whatever is left of these nodes. Blocks until nothing is.

    Raises NotEmpty when something does not die."""
    find.kill(state.path)
    if killed := state.kill_leftovers(roots, group_base):
        log.warning("killed %d processes that an earlier agent left", killed)


def is_over(note: Mapping[str, Any]) -> bool:
    """Whether no agent goes on with a life of this note (`launcher.TIMED`, `launcher.OVER`)."""
    return bool(note.get("timed") or note.get("over"))


def _sorted(
    welcome: Mapping[str, Any], incarnations: Mapping[str, int], nodes: Sequence[str]
) -> tuple[dict[str, EarlierLife], list[str]]:
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in welcome["attempts"]:
        rows.setdefault(row["node"], []).append(row)
    lives: dict[str, EarlierLife] = {}
    for node, life in welcome["lives"].items():
        until, incarnation = life["until"], life["incarnation"]
        keeps = any(
            row["incarnation"] == incarnation and row["state"] != GONE and row.get("early", 0.0) is None
            for row in rows.get(node, ())
        )
        note = life["note"]
        ended = (until is not None and until <= now() and not keeps) or is_over(note)
        if node in nodes and incarnations.get(node) == incarnation and not ended:
            mine = [row for row in rows.get(node, ()) if row["incarnation"] == incarnation]
            try:
                parts = [(DesiredPart.model_validate_json(row["about"]["part"]), row) for row in mine]
            except (ValidationError, KeyError, TypeError) as e:
                log.warning("what an earlier agent started on %s cannot be read, it is ended: %s", node, str(e)[:300])
                continue
            lives[node] = EarlierLife(incarnation, until, note, parts)
    kept = {row["id"] for life in lives.values() for _, row in life.parts}
    return lives, [row["id"] for row in welcome["attempts"] if row["id"] not in kept]
