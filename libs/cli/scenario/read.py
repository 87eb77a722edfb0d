"""Reads a scenario file: all problems at once, with line, field and fix."""

from collections.abc import Iterator
from typing import Any

from libs.cli.queuesfile import QueueFile, wrong_queues
from libs.cli.scenario.schema import Expected, ScenarioFile
from libs.core.admission.priority_class import DEFAULT_CLASSES
from schemas.subjects import OPERATOR
from schemas.yamlfile import Document, Path, YamlProblem
from schemas.yamlmodel import WrongFile, problem_at, read_model

CLASSES = tuple(one.name for one in DEFAULT_CLASSES)


class ScenarioError(WrongFile):
    """Raised by `read_scenario`."""


def read_scenario(text: str, name: str = "scenario") -> ScenarioFile:
    """The scenario of a YAML text. Raises ScenarioError."""
    document, found = read_model(
        text, name, ScenarioFile, ScenarioError, "write `scenario:`, `given:`, `when:` and `expect:`"
    )
    if problems := [*document.problems, *_Look(document, found).problems()]:
        raise ScenarioError(name, problems)
    return found


class _Look:
    """Consistency of the parts of a scenario."""

    def __init__(self, document: Document, scenario: ScenarioFile) -> None:
        self._document, self._scenario = document, scenario

    def problems(self) -> Iterator[YamlProblem]:
        scenario = self._scenario
        if OPERATOR in scenario.given.teams:
            yield self._wrong(("given", "teams", OPERATOR), "the operator is no team", "call the team otherwise")
        if scenario.given.queues is not None:
            yield from self._queues(scenario.given.queues, ("given", "queues"))
        known: set[str] = set()
        for number, step in enumerate(scenario.when):
            here: Path = ("when", number)
            yield from self._submitted(number, known)
            if step.apply is not None:
                yield from self._queues(step.apply, (*here, "apply"))
            if step.once is not None:
                yield from self._expected(step.once, (*here, "once"), known)
            yield from self._names(step.cancel or (), (*here, "cancel"), known)
            if step.boost is not None:
                yield from self._names((step.boost.job,), (*here, "boost", "job"), known)
                yield from self._class(step.boost.to, (*here, "boost", "to"))
            for place, expected in enumerate(step.expect):
                yield from self._expected(expected, (*here, "expect", place), known)
        for place, expected in enumerate(scenario.expect):
            yield from self._expected(expected, ("expect", place), known)

    def _submitted(self, number: int, known: set[str]) -> Iterator[YamlProblem]:
        teams = self._scenario.given.teams
        for place, job in enumerate(self._scenario.when[number].submit or ()):
            here: Path = ("when", number, "submit", place)
            if job.team not in teams:
                fix = f"use one of {', '.join(teams)}, or add it there"
                yield self._wrong((*here, "team"), f"given.teams has no team {job.team!r}", fix)
            elif job.user is not None and job.user not in teams[job.team]:
                fix = f"write `{job.team}: [{job.user}]` in given.teams"
                yield self._wrong((*here, "user"), f"team {job.team} has no user {job.user!r}", fix)
            yield from self._class(job.priority_class, (*here, "priority_class"))
            for name in job.names:
                if name in known:
                    yield self._wrong((*here, "name"), f"there is a job {name!r} already", "give each job its own name")
                known.add(name)

    def _expected(self, expected: Expected, here: Path, known: set[str]) -> Iterator[YamlProblem]:
        said: Any = getattr(expected, expected.what)
        here = (*here, expected.what)
        if expected.what in _OF_QUEUES:
            queues = self._known_queues()
            for name in [name for name in said if name not in queues]:
                yield self._wrong(
                    (*here, name), f"there is no queue {name!r}", f"use one of {', '.join(sorted(queues))}"
                )
        elif isinstance(said, str):
            yield from self._names((said,), here, known)
        elif isinstance(said, tuple | dict):
            yield from self._names(said, here, known)
        else:
            for field in ("job", "by", "behind", "first", "then"):
                if (name := getattr(said, field, None)) is not None:
                    yield from self._names((name,), (*here, field), known)

    def _known_queues(self) -> set[str]:
        files = [self._scenario.given.queues, *(step.apply for step in self._scenario.when)]
        return {*self._scenario.given.teams, *(item.name for file in files if file is not None for item in file.queues)}

    def _names(self, names: Any, here: Path, known: set[str]) -> Iterator[YamlProblem]:
        for place, name in enumerate(names):
            if name not in known:
                fix = f"there are {', '.join(sorted(known)) or 'none yet'}"
                yield self._wrong((*here, place), f"no job {name!r} was submitted before", fix)

    def _class(self, name: str, here: Path) -> Iterator[YamlProblem]:
        if name not in CLASSES:
            yield self._wrong(here, f"there is no priority class {name!r}", f"use one of {', '.join(CLASSES)}")

    def _queues(self, file: QueueFile, here: Path) -> list[YamlProblem]:
        return wrong_queues(self._document, file, CLASSES, (self._scenario.given.fleet.model,), here)

    def _wrong(self, path: Path, problem: str, fix: str) -> YamlProblem:
        return problem_at(self._document, path, problem, fix)


_OF_QUEUES = ("holds", "shares", "never_above")
