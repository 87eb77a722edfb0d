"""Which commands of `baton` change something, and where each has its line for auditors. A new one fails until it is listed."""

import inspect
from importlib import import_module
from typing import Any

import pytest

from libs.cli.main import COMMANDS, load
from libs.core.projections.audit import lines

READS = "reads"
"""It changes nothing that Baton keeps; questions are not audited (docs/audit.md)."""
HERE = "here"
"""It starts processes on this machine, or writes files that the caller names."""

COMMAND, ACTION = "command", "action"
"""Of a command the pool's ledger has what it led to, or why it was refused; of an action a line of a book."""

LISTED: dict[str, tuple[str, str]] = {
    "submit": (COMMAND, "submit"),
    "cancel": (COMMAND, "cancel"),
    "quota set": (COMMAND, "quota.set"),
    "apply": (COMMAND, "queues.apply"),
    "prices apply": (COMMAND, "prices.apply"),
    "budget top-up": (COMMAND, "budget.top-up"),
    "boost": (COMMAND, "job.boost"),
    "bill close": (COMMAND, "bill.close"),
    "node declare-dead": (COMMAND, "node.declare-dead"),
    "node release": (COMMAND, "node.release"),
    "node cordon": (COMMAND, "node.cordon"),
    "node uncordon": (COMMAND, "node.uncordon"),
    "team suspend": (COMMAND, "team.suspend"),
    "team resume": (COMMAND, "team.resume"),
    "secret set": (ACTION, "services.vault.store: secret.set"),
    "secret remove": (ACTION, "services.vault.store: secret.remove"),
    "secret rekey": (ACTION, "services.vault.app: secret.rekey"),
    "team add": (ACTION, "libs.cli.team: team.add"),
    "team rotate": (ACTION, "libs.cli.team: team.rotate"),
    "team revoke": (ACTION, "libs.cli.team: team.revoke"),
    "team let-in": (ACTION, "libs.cli.team: team.let-in"),
    "finance add": (ACTION, "libs.cli.finance: finance.add"),
    "finance rotate": (ACTION, "libs.cli.finance: finance.rotate"),
    "finance revoke": (ACTION, "libs.cli.finance: finance.revoke"),
    "finance let-in": (ACTION, "libs.cli.finance: team.let-in"),
    "team erase": (ACTION, "libs.cli.team: team.erase"),
    "team offboard": (ACTION, "libs.cli.team_offboard: team.offboard"),
    "node add": (ACTION, "libs.cli.node: node.add"),
    "node rotate": (ACTION, "libs.cli.node: node.rotate"),
    "node revoke": (ACTION, "libs.cli.node: node.revoke"),
    "credentials": (ACTION, "libs.cli.credentials: credentials.make"),
    "provision": (ACTION, "libs.cli.provision: provision"),
    "dead replay": (ACTION, "libs.cli.dead: dead.replay"),
    "ledger roll": (ACTION, "libs.cli.ledger_segments: ledger.roll"),
    "ledger archive": (ACTION, "libs.cli.ledger_segments: ledger.archive"),
    "ledger restore": (ACTION, "libs.cli.ledger_segments: ledger.restore"),
    "ledger readers": (ACTION, "libs.cli.ledger: ledger.forget-reader"),
    "ledger upgrade": (ACTION, "libs.cli.ledger: ledger.upgrade"),
    "backup": (ACTION, "libs.cli.backup: backup"),
    "restore": (ACTION, "libs.cli.restore: restore"),
    "up": (ACTION, "libs.cli.up: up.insecure"),
    **dict.fromkeys(("team push", "team serve", "audit push"), (HERE, "it tells what has its line already")),
    **dict.fromkeys(("demo", "replay", "simulate", "scenario run", "placer", "prices check"), (HERE, "")),
    **dict.fromkeys(("team export", "bill export", "bill push", "bill used", "ledger export"), (HERE, "")),
    **dict.fromkeys(
        (
            "plan", "explain", "logs", "watch", "wait", "status", "top", "diff", "audit verify", "dead list", "dead show",
            "secret list", "team list", "ledger verify", "ledger credits", "ledger used", "ledger segments", "bill verify",
            "bill statement", "bill page", "describe job", "describe node", "budget show", "finance list",
        ),
        (READS, ""),
    ),
}  # fmt: skip


def commands(command: Any, path: str) -> list[str]:
    below = getattr(command, "commands", None)
    return [path] if below is None else [name for key, one in below.items() for name in commands(one, f"{path} {key}")]


def every() -> list[str]:
    found = [name for key, entry in COMMANDS.items() for name in commands(load(entry.module), key)]
    return [name for name in found if not name.startswith("get ")]


def test_every_command_is_listed() -> None:
    assert sorted(every()) == sorted(LISTED), "say in LISTED where a new command has its line for auditors"


@pytest.mark.parametrize("name", sorted(name for name, (kind, _) in LISTED.items() if kind == ACTION))
def test_an_action_has_a_line_of_a_book(name: str) -> None:
    module, _, what = LISTED[name][1].partition(": ")
    source = inspect.getsource(import_module(module))
    begins = "operator_action(" if "cli" in module else "note("
    assert f'operator_action("{what}"' in source or f'"{what}"' in source[source.index(begins) :]


@pytest.mark.parametrize("name", sorted(name for name, (kind, _) in LISTED.items() if kind == COMMAND))
def test_a_command_has_a_line_made_of_the_ledger(name: str) -> None:
    assert f'"{LISTED[name][1]}"' in inspect.getsource(lines)
