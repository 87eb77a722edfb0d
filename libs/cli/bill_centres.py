"""Cost centres of an ERP, and bills by them. A file maps teams to centres; the pool does not know them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from libs.cli.exits import UsageFault
from libs.cli.files import read_yaml
from schemas.billing import BillRow
from schemas.yamlfile import Broken, Document, YamlProblem, read

NO_CENTRE = "(none)"


@dataclass(slots=True)
class CentreRow:
    """The sum of a centre's teams, with a bill's fields."""

    key: str
    jobs: int = 0
    attempts: int = 0
    milli_us: int = 0
    cost_micros: int = 0
    unpriced_milli_us: int = 0
    credit_micros: int = 0
    forecast_micros: int = 0


def by_centre(rows: Iterable[BillRow], centres: Mapping[str, str]) -> list[CentreRow]:
    """A bill by team, summed by cost centre."""
    found: dict[str, CentreRow] = {}
    for row in rows:
        key = centre_of(centres, row.team)
        line = found.get(key) or found.setdefault(key, CentreRow(key))
        for name in CentreRow.__slots__[1:]:
            setattr(line, name, getattr(line, name) + getattr(row, name))
    return [found[key] for key in sorted(found)]


def centre_of(centres: Mapping[str, str], team: str) -> str:
    """A team's cost centre."""
    return centres.get(team, NO_CENTRE)


def centres_of(path: Path) -> dict[str, str]:
    """Team -> cost centre. Raises UsageFault."""
    try:
        documents = read(read_yaml(path))
    except Broken as e:
        raise UsageFault(f"{path}:{e.problem.line}: {e.problem.problem}; {e.problem.fix}") from None
    found = documents[0] if documents else Document({}, {})
    wrong = found.problems[0] if found.problems else None
    if wrong is None and (len(documents) > 1 or not isinstance(found.data, dict)):
        wrong = YamlProblem(1, 1, "file", "is not one mapping", "write a line `team: cost centre` for each")
    for team, centre in found.data.items() if wrong is None else ():
        if isinstance(centre, dict | list) or centre is None:
            wrong = YamlProblem(
                *found.at((team,)), str(team), "has no cost centre", "write its name or number behind the team"
            )
            break
    if wrong is not None:
        raise UsageFault(f"{path}:{wrong.line}: {wrong.field}: {wrong.problem}; {wrong.fix}")
    return {str(team): found.texts.get((team,), str(centre)) for team, centre in found.data.items()}
