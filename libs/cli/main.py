"""The `baton` command: every command, in the order in which people need them.

Each has its own module, imported when it is called, so that `baton --help` is instant.
"""

import gc
import logging
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

try:
    import typer
    from typer.core import TyperCommand, TyperGroup

    from libs.cli import foreign_names
    from libs.cli.exits import Exit, code_of, tell
    from libs.cli.output import open_stdout, say
except KeyboardInterrupt:  # imports take most of a command's start; `main` handles later ones
    sys.exit(130)


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command: `module` has a function `command`, or `app` with subcommands."""

    module: str
    help: str
    serves: bool = False
    """It starts services."""


COMMANDS: dict[str, CommandEntry] = {
    "demo": CommandEntry("demo", "Show Baton at work on this machine, with simulated GPUs", serves=True),
    "up": CommandEntry("up", "Run Baton on this machine: servers, services, agents", serves=True),
    "submit": CommandEntry("submit", "Ask for jobs to be run, from a file or a command line"),
    "plan": CommandEntry("plan", "What would become of a job: where, when, at what price; nothing is submitted"),
    "get": CommandEntry("get", "List jobs, waiting jobs, nodes, devices, queues, quotas or pools"),
    "describe": CommandEntry("describe", "Everything about one job or node"),
    "explain": CommandEntry("explain", "Why a job is where it is, and what would let it run"),
    "logs": CommandEntry("logs", "What a job wrote"),
    "watch": CommandEntry("watch", "Events as they happen, of one job or of all"),
    "wait": CommandEntry("wait", "Wait until a job has ended; its outcome is the exit code"),
    "cancel": CommandEntry("cancel", "End jobs"),
    "bill": CommandEntry("bill", "GPU-seconds and money"),
    "status": CommandEntry("status", "The pool's figures at a glance"),
    "top": CommandEntry(
        "top", "The pool as it is now, again and again: queues, running jobs with their progress, who is next"
    ),
    "replay": CommandEntry("replay", "Run a trace of a real cluster through Baton"),
    "simulate": CommandEntry("simulate", "What would become of a workload under several orders, in virtual time"),
    "scenario": CommandEntry("scenario", "Play scenario files: given, when, expect; in virtual time or live"),
    "placer": CommandEntry("placer", "Score the placement engine: requests as JSON lines in, placements out"),
    "ledger": CommandEntry("ledger", "Verify, export and archive the ledger; who reads it, and how far (operators)"),
    "audit": CommandEntry("audit", "Who did what: list and verify commands and operators' actions (operators)"),
    "dead": CommandEntry("dead", "Messages that could not be processed (operators)"),
    "apply": CommandEntry("apply", "Give the pool the queues, or the budgets, of a file (operators)"),
    "boost": CommandEntry("boost", "Raise a job above its class for a time (operators)"),
    "diff": CommandEntry("diff", "What applying a file of queues or budgets would change (operators)"),
    "prices": CommandEntry("prices", "Check and apply the pool's price book (operators)"),
    "budget": CommandEntry("budget", "What is spent and held of budgets; give one more (operators)"),
    "quota": CommandEntry("quota", "Set a team's quota (operators)"),
    "secret": CommandEntry("secret", "What jobs need and nobody else may know: set, list, remove"),
    "finance": CommandEntry("finance", "Who reads all bills and does nothing: add, revoke, list (operators)"),
    "node": CommandEntry(
        "node", "Add nodes, rotate and revoke their credentials; cordon one, or declare it dead (operators)"
    ),
    "team": CommandEntry(
        "team", "Teams and users: add, rotate, revoke, suspend, offboard, export (operators, team admins)"
    ),
    "credentials": CommandEntry("credentials", "Accounts and credentials for a NATS server of your own (operators)"),
    "backup": CommandEntry("backup", "Write all that cannot be made again into a folder (operators)"),
    "restore": CommandEntry("restore", "Make a state directory out of a backup (operators)"),
    "provision": CommandEntry("provision", "Create streams and consumers on a NATS server (operators)"),
}

_HELP = """Baton gives the accelerators of many machines to the jobs of many teams, and bills them per GPU-second.

Start with `baton demo`, or `baton up` and, in another terminal, `baton submit --gpus 1 -- python train.py`.

Where Baton is: --url or BATON_NATS_URL, else the instance of `baton up` under BATON_STATE_DIR or ./.baton.
Who you are: the credential of BATON_NATS_CREDS, else the instance's: of --team or BATON_TEAM, else of its only team, and of
the team's user --user or BATON_USER, else this session's.

Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 denied or rejected, 5 conflict, 6 nobody answers; docs/cli.md has all."""


class Lazy(TyperCommand):
    """Represents a command until it is called."""

    def __init__(self, name: str, entry: CommandEntry) -> None:
        super().__init__(name=name, help=entry.help, short_help=entry.help)
        self._module, self._serves = entry.module, entry.serves

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        context = load(self._module, serves=self._serves).make_context(info_name, args, parent, **extra)
        if self._serves:
            from libs.cli import forking

            forking.early()
        return context


def load(module: str, *, serves: bool = False) -> Any:
    """The command in `libs.cli.<module>`: its `app` of subcommands, or its one function `command`. `serves`: it starts
    services, so nothing that it imports may start a thread."""
    gc.disable()  # imports leave next to nothing to collect, but collection takes a tenth of their time
    try:
        if serves:
            from libs.embedded.forkserver import one_thread

            with one_thread():
                loaded = import_module(f"libs.cli.{module}")
        else:
            loaded = import_module(f"libs.cli.{module}")
    finally:
        gc.enable()
    if hasattr(loaded, "app"):
        return typer.main.get_group(loaded.app)
    one = typer.Typer(add_completion=False, rich_markup_mode=None)
    one.command()(loaded.command)
    return typer.main.get_command(one)


class Commands(TyperGroup):
    """The group of all commands above."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: Lazy(name, entry) for name, entry in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and (meant := foreign_names.COMMANDS.get(args[0])) is not None:
            ctx.fail(f"No such command {args[0]!r}. Did you mean '{meant}'?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 120,
    },  # the default is 80, however wide a terminal is
)


def _tell_version(asked: bool) -> None:
    if asked:
        from libs.cli.release import tool

        say(tool())
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show which release this is.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point."""
    open_stdout()
    logging.getLogger("baton").setLevel(logging.CRITICAL)  # people get libraries' warnings as errors of ours
    # But for what is waited for meanwhile, and a credential that ends soon:
    logging.getLogger("baton.client").setLevel(logging.WARNING)
    try:
        code = _run(sys.argv[1:])
    except BaseException as error:
        code = _ended(error)
    sys.exit(code if isinstance(code, int) else Exit.OK)


def _run(arguments: list[str]) -> Any:
    """Like `app(...)`, which would turn a closed pipe into a failure (1) before we see it."""
    with typer.main.get_command(app).make_context("baton", arguments) as context:
        return context.command.invoke(context)


def _ended(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(Exit.FAILED)
    if callable(getattr(error, "show", None)):  # a usage error of the command line
        if isinstance(said := getattr(error, "message", None), str):
            error.message = foreign_names.told(error)  # type: ignore[attr-defined]
            if error.message != said and hasattr(error, "possibilities"):  # type: ignore[attr-defined]
                error.possibilities = None
        error.show()  # type: ignore[attr-defined]
        return int(getattr(error, "exit_code", Exit.USAGE))
    if type(error).__name__ in ("Exit", "Abort"):
        return int(getattr(error, "exit_code", Exit.INTERRUPTED))
    code = code_of(error)
    if code is None:
        raise error
    tell(error)
    return code
