"""Options that many commands share."""

from pathlib import Path
from typing import Annotated

import typer

from libs.cli.output import Format

Team = Annotated[str | None, typer.Option("--team", "-t", help="Speak as this team (BATON_TEAM).", show_default=False)]
UserOption = Annotated[
    str | None, typer.Option("--user", help="Which user of the team speaks (BATON_USER).", show_default=False)
]
Pool = Annotated[str | None, typer.Option("--pool", help="Which pool is asked (BATON_POOL).", show_default=False)]
ArchiveFolder = Annotated[
    Path | None, typer.Option("--archive", help="The folder of segments that are not on the broker any more.")
]
NAME_THE_ARCHIVE = "or name the folder where their files are: --archive FOLDER"
Url = Annotated[str | None, typer.Option("--url", help="NATS URL (BATON_NATS_URL).", show_default=False)]
Output = Annotated[Format, typer.Option("--output", "-o", help="How the result is written.")]
KeysFolder = Annotated[
    Path | None, typer.Option("--state-dir", help="Where keys and credentials are kept (BATON_STATE_DIR).")
]
NoHeader = Annotated[bool, typer.Option("--no-header", help="Leave the headings out.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")]
JobArgument = Annotated[str, typer.Argument(help="A job: its id, the beginning of it, or its name.", metavar="JOB")]
