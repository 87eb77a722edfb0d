"""`baton ledger credits`: time that attempts paid for without benefit, by the ledger and a policy."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from libs.cli.exits import Ended, Exit, UsageFault
from libs.cli.files import read_yaml
from libs.cli.options import ArchiveFolder, Output, Url
from libs.cli.output import Column, Format, document, hint, show
from libs.cli.session import run
from libs.client import Baton
from schemas.subjects import OPERATOR
from schemas.yamlfile import Broken, Document, YamlProblem, read

if TYPE_CHECKING:
    from libs.core.billing.credits import Credit, CreditCause

_COLUMNS = [
    Column("TEAM", lambda r: r["team"]),
    Column("JOB", lambda r: r["job_id"]),
    Column("ATTEMPT", lambda r: r["attempt"], right=True),
    Column("CAUSE", lambda r: r["cause"]),
    Column("SHARE", lambda r: f"{r['share'] / 10:g}%", right=True),
    Column("DEVICE-SECONDS", lambda r: f"{r['unit_us'] / 7e9:.3f}", right=True),
    Column("UNIT-US", lambda r: r["unit_us"], right=True, wide=True),
    Column("RECORD", lambda r: r["closed_seq"], right=True, wide=True),
    Column("WHY", lambda r: r["why"]),
]


def credits_of(
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", help="Of a file of `baton ledger export`; no server is asked. Several: in order."),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", help="YAML: cause -> thousandths that are credited; without it all of each."),
    ] = None,
    team: Annotated[str | None, typer.Option("--of", help="Only this team's.")] = None,
    archive: ArchiveFolder = None,
    *,
    pool: Annotated[str | None, typer.Option("--pool", help="Whose ledger (BATON_POOL).")] = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """What attempts are credited, each with its cause (docs/billing.md). The whole ledger is read and checked for it."""
    from libs.core.billing.credits import EVERYTHING, Credits
    from libs.ledger.audited import AuditedLedger
    from libs.ledger.verify import verify, verify_files

    audited = AuditedLedger(credit=Credits(read_policy(policy) if policy is not None else EVERYTHING))
    if file:
        report = verify_files(file, audited=audited)
    else:

        async def work(baton: Baton) -> Any:
            return await verify(baton.nats.jetstream(), baton.place.pool, archive, audited=audited)

        report = run(work, OPERATOR, url, pool=pool)
    if not report.ok:
        hint(f"violated: {report.violations[0]}; run `baton ledger verify` for the rest")
        raise Ended(Exit.FAILED)
    rows = [row for row in _rows(audited.credits) if team in (None, row["team"])]
    if output in (Format.JSON, Format.YAML):
        document(rows, output)
    else:
        show(rows, _COLUMNS)
        hint(f"{len(rows)} credits, up to record {report.last_seq}")


def read_policy(path: Path) -> "Mapping[CreditCause, int]":
    """Cause -> thousandths. Raises UsageFault with line, field and fix."""
    from libs.core.billing.credits import WHOLE, CreditCause

    try:
        documents = read(read_yaml(path))
    except Broken as error:
        raise _fault(path, error.problem) from None
    found = documents[0] if documents else Document({}, {})
    if len(documents) > 1 or found.problems or not isinstance(found.data, dict):
        problem = YamlProblem(1, 1, "policy", "is not one map of causes", "write e.g. node-lost: 1000")
        raise _fault(path, found.problems[0] if found.problems else problem)
    causes = {cause.value: cause for cause in CreditCause}
    for name, share in found.data.items():
        line, column = found.at((name,))
        if name not in causes:
            raise _fault(path, YamlProblem(line, column, str(name), "is no cause", f"write one of {', '.join(causes)}"))
        if not isinstance(share, int) or isinstance(share, bool) or not 0 <= share <= WHOLE:
            said = f"is {share!r}: not thousandths"
            raise _fault(path, YamlProblem(line, column, name, said, f"write a whole number from 0 to {WHOLE}"))
    return {causes[name]: share for name, share in found.data.items()}


def _fault(path: Path, problem: YamlProblem) -> UsageFault:
    return UsageFault(f"{path}:{problem.line}: {problem.field}: {problem.problem}; {problem.fix}")


def _rows(found: "list[Credit]") -> list[dict[str, Any]]:
    """One row per attempt and cause."""
    sums: Counter[tuple[str, str, int, str, int, int, str]] = Counter()
    for one in found:
        p = one.posting
        sums[p.team, p.job_id, p.attempt, one.cause.value, one.share, one.closed_seq, one.why] += one.unit_us
    names = ("team", "job_id", "attempt", "cause", "share", "closed_seq", "why")
    return [dict(zip(names, key, strict=True)) | {"unit_us": amount} for key, amount in sums.items()]
