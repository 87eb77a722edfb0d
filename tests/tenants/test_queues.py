"""`baton apply`, `baton diff` and `baton get queues` against real services: all or nothing, and what they change."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from libs.cli.budget import overdrawn
from libs.cli.queuesfile import QueueFileError, read_tree
from libs.client import connect
from schemas import inbox, subjects
from schemas.ids import job_id
from schemas.jobs import JobEvent, JobRejected
from schemas.ledger import (
    BoostEnded,
    BudgetsApplied,
    InputRejected,
    JobBoosted,
    JobGranted,
    JobQueued,
    QueuesApplied,
)
from tests.cli.test_command import Result, baton
from tests.core.builders import node
from tests.kit.waiting import stored, until
from tests.services.pool import Pool
from tests.tenants.serving import Serving

Said = Callable[..., Awaitable[Result]]

FILE = """\
version: {version}
queues:
  - name: lab
    guaranteed: 3
    limit: {{"*": {limit}}}
  - name: {blue}
    parent: lab
    guaranteed: 2
    classes: [experiment]
    longest_time_limit: 2h
  - name: {red}
    parent: lab
    weight: 2.5
"""


async def submit(world: Pool, team: str, key: str, devices: int = 1, klass: str = "experiment") -> str:
    body = {"client_key": key, "job": {"command": ["true"], "priority_class": klass, "resources": {"devices": devices}}}
    await world.js.publish(subjects.submit(team, "ana"), json.dumps(body).encode())
    return job_id(team, key)


async def test_queues_are_applied_compared_shown_and_held_to(
    world: Pool, serving: Serving, team: str, nats_url: str, tmp_path: Path
) -> None:
    blue, red, path = f"{team}-blue", f"{team}-red", tmp_path / "queues.yaml"

    async def said(*words: str) -> Result:
        return await baton(*words, "--pool", world.name, url=nats_url)

    async with serving():
        await world.put(inbox.NodeRegistered(incarnation=1, inventory=node("n1", 5), lease_s=600))
        path.write_text(FILE.format(version=1, limit=3, blue=blue, red=red))
        differs = await said("diff", "-f", str(path))
        assert differs.code == 1
        assert "+ lab  weight 1, guaranteed.* 3, limit.* 3" in differs.out
        read = await said("diff", "-f", str(path), "-o", "json")
        program = json.loads(read.out)
        first = {"name": "lab", "field": "", "before": "", "after": "weight 1, guaranteed.* 3, limit.* 3"}
        assert (read.code, program["what"], program["applied"], program["version"]) == (1, "queues", 0, 1)
        assert (program["changes"][0], program["warnings"]) == (first, [])
        beyond = tmp_path / "beyond.yaml"
        beyond.write_text("version: 1\nqueues:\n  - {name: lab, guaranteed: 9}\n")
        warned = await said("diff", "-f", str(beyond), "-o", "json")
        (warning,) = json.loads(warned.out)["warnings"]
        assert "9 accelerators are guaranteed, and 5 of the pool are up" in warning
        assert warning in warned.err
        applied = await said("apply", "-f", str(path), "--reason", "spring", "--user", "olga", "-o", "json")
        assert applied.code == 0, applied.err
        done = json.loads(applied.out)
        seq = done.pop("ledger_seq")
        assert done == {**program, "pool": world.name, "done": "applied"}
        event = await world.event(QueuesApplied)
        assert (event.user, event in await world.events_of(seq)) == ("olga", True)
        same = await said("diff", "-f", str(path), "-o", "json")
        assert (same.code, json.loads(same.out)["applied"], json.loads(same.out)["changes"]) == (0, 1, []), same.err
        again = await said("apply", "-f", str(path), "-o", "json")
        assert again.code == 0, "said again it is as it was"
        assert (json.loads(again.out)["done"], json.loads(again.out)["ledger_seq"]) == ("nothing differs", None)

        await world.event(JobGranted, job_id=await submit(world, blue, "one", 2))
        waits = await submit(world, red, "two", 2)
        await world.event(JobQueued, job_id=waits)
        serving_class = await submit(world, blue, "three", 1, "serving")
        (told,) = await until(lambda: stored(world.js, subjects.EVENTS, subjects.event("rejected", blue)))
        refused = JobRejected.model_validate_json(told.data)
        assert (refused.job_id, refused.reasons[0].field) == (serving_class, "job.priority_class")
        assert "experiment" in refused.reasons[0].fix
        assert (await world.event(JobQueued, job_id=job_id(blue, "one"))).spec.time_limit_s == 7200

        away = await said("boost", waits, "--to", "servin", "--for", "1h", "--reason", "late")
        assert (away.code, "there are serving, production, experiment" in away.err) == (2, True), away.err
        raised = await said(
            "boost", waits, "--to", "production", "--for", "1h", "--reason", "late", "--user", "olga", "-o", "json"
        )
        assert raised.code == 0, raised.err
        boosted = await world.event(JobBoosted, job_id=waits)
        done = json.loads(raised.out)
        assert (boosted.user, boosted in await world.events_of(done.pop("ledger_seq"))) == ("olga", True)
        how = {"class": "production", "for_s": 3600, "done": "boosted"}
        assert done == {"pool": world.name, "job_id": waits, **how}
        (news,) = await until(lambda: stored(world.js, subjects.EVENTS, subjects.event("boosted", red)))
        assert "late" in JobEvent.model_validate_json(news.data).reason
        ended = await said("boost", waits, "--end", "--reason", "moved", "-o", "json")
        assert (ended.code, json.loads(ended.out)["done"]) == (0, "boost ended"), ended.err
        assert (await world.event(BoostEnded, job_id=waits)).reason == "moved"
        assert (await said("boost", waits, "--reason", "x")).code == 2

        shown: dict[str, Any] = {}

        async def as_decided() -> bool:  # queries is a moment behind
            rows = json.loads((await said("get", "queues", "--team", "operator", "-o", "json")).out)
            assert [row["queue"]["name"] for row in rows] == ["lab", blue, red]
            shown.update({row["queue"]["name"]: row for row in rows})
            return bool(shown[red]["boosts_left"] == 3)

        await until(as_decided)
        assert (shown["lab"]["held_milli"], shown[red]["waiting_jobs"]) == (2000, 1)
        table = (await said("get", "queues", "--team", "operator")).out
        assert f"  {red}" in table
        assert "GUARANTEED" in table

        path.write_text(FILE.format(version=1, limit=5, blue=blue, red=red))
        outdated = await said("apply", "-f", str(path), "-o", "json")
        assert (outdated.code, outdated.out) == (4, ""), "as if the pool had refused it"
        assert "version: 2" in outdated.err
        path.write_text(FILE.format(version=2, limit=5, blue=blue, red=red))
        assert "limit.*: 3 -> 5" in (await said("apply", "-f", str(path))).out
        await world.event(JobGranted, job_id=waits)

        await budgets_are_applied_shown_held_to_and_topped_up(world, said, red, tmp_path / "budgets.yaml", nats_url)

        await world.put(inbox.ApplyQueues(version=1, queues=(), user="olga"))
        assert "version 1 is not above 2" in (await world.event(InputRejected)).reason
        long = await said("boost", waits, "--to", "serving", "--for", "2d", "--reason", "late")
        assert (long.code, "86400 s at the most" in long.err) == (4, True), long.err
        path.write_text("version: 3\nqueues: []\n")
        kept = await said("apply", "-f", str(path))
        assert (kept.code, "because: queue lab goes, and the budget of queue lab" in kept.err) == (4, True), kept.err
        (tmp_path / "budgets.yaml").write_text("version: 3\nbudgets: []\n")
        assert (await said("apply", "-f", str(tmp_path / "budgets.yaml"))).code == 0
        assert (await said("apply", "-f", str(path))).out.count("- ") == 3


async def budgets_are_applied_shown_held_to_and_topped_up(
    world: Pool, said: Said, team: str, path: Path, url: str
) -> None:
    """Four devices of the lab are held, by jobs without a limit: an hour of GPUs in the next quarter."""
    path.write_text("version: 1\nbudgets: [{queue: lab, unit: gpu-hours, period: month, soft: 1, hard: 2}]\n")
    differs = await said("diff", "-f", str(path))
    assert (differs.code, differs.out) == (1, "+ queue lab, gpu-hours a month  soft 1, hard 2, when_spent stop\n")
    read = await said("diff", "-f", str(path), "-o", "json")
    change = {
        "name": "queue lab, gpu-hours a month", "field": "", "before": "", "after": "soft 1, hard 2, when_spent stop",
    }  # fmt: skip
    told = {"what": "budgets", "applied": 0, "version": 1, "changes": [change], "warnings": []}
    assert (read.code, json.loads(read.out)) == (1, told), read.err
    applied = await said("apply", "-f", str(path), "--reason", "spring", "--user", "olga", "-o", "json")
    assert applied.code == 0, applied.err
    done = json.loads(applied.out)
    event = await world.event(BudgetsApplied)
    assert (event.user, event in await world.events_of(done.pop("ledger_seq"))) == ("olga", True)
    assert done == {**told, "pool": world.name, "done": "applied"}
    assert (await said("diff", "-f", str(path))).code == 0, "nothing differs"
    (row,) = json.loads((await said("budget", "show", "--team", "operator", "-o", "json")).out)
    assert (row["jobs"], row["budget"]["queue"], row["available"] <= 1_000_000) == (2, "lab", True)
    body = {"command": ["true"], "priority_class": "experiment", "resources": {"devices": 1}, "time_limit_s": 7200}
    await world.js.publish(subjects.submit(team, "ana"), json.dumps({"client_key": "long", "job": body}).encode())
    long = job_id(team, "long")
    await world.event(JobQueued, job_id=long)
    why = await said("explain", long, "--team", team)
    assert "the budget of queue lab, gpu-hours a month, has" in why.out, why.err
    assert "gpu-hours a month" in (await said("get", "queues", "--team", "operator")).out
    unknown = await said("budget", "top-up", "vision", "--gpu-hours", "3", "--reason", "a deadline")
    assert unknown.code == 2
    assert "team:vision has no budget of gpu-hours" in unknown.err
    more = await said("budget", "top-up", "queue:lab", "--gpu-hours", "3", "--reason", "a deadline", "--user", "olga")
    assert (more.code, more.out) == (0, "queue:lab:gpu-hours:month has 3 more until its period ends\n"), more.err
    top_up = ("budget", "top-up", "queue:lab", "--gpu-hours", "0.5", "--reason", "a deadline", "-o")
    told = json.loads((await said(*top_up, "json")).out)
    assert await world.events_of(told.pop("ledger_seq"))
    key = "queue:lab:gpu-hours:month"
    assert told == {"pool": world.name, "budget": key, "amount": 500_000, "done": "topped up"}
    assert (await said(*top_up, "name")).out == f"{key}\n"
    await world.event(JobGranted, job_id=long)
    path.write_text("version: 2\nbudgets: [{queue: lab, unit: gpu-hours, period: day, hard: 0}]\n")
    assert (await said("apply", "-f", str(path))).code == 0
    async with await connect(url, subjects.OPERATOR, pool=world.name) as operator:
        (line,) = await overdrawn(operator)
    said_of, _, by = line.rpartition(", by ")
    assert said_of == "overdrawn: the budget of queue lab, gpu-hours a day"
    assert 0 < float(by) <= 3, "what runs holds three hours, less what it has spent before"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("version: 1\nqueues:\n  - name: a\n    parent: b\n  - name: b\n    parent: a\n", 4, "cycle: a -> b -> a"),
        ("version: 1\nqueues:\n  - name: a\n    parent: nobody\n", 4, "is no queue of this tree"),
        ("version: 1\nqueues:\n- name: a\n  guaranteed: 4\n- name: b\n  parent: a\n  guaranteed: 5\n", 7, "parent's to 5"),
        ("version: 1\nqueues:\n  - name: a\n    weight: 0\n", 4, "weight 0"),
        ("version: 1\nqueues:\n  - name: a\n    guaranteed: {H10O: 4}\n", 4, "did you mean H100"),
        ("version: 1\nqueues:\n  - name: a\n    classes: [servin]\n", 4, "did you mean serving"),
        ("version: 1\nqueues:\n  - name: a\n    wieght: 2\n", 4, "weight"),
        ("version: 1\nqueues:\n  - name: a\n    guaranteed: -1\n", 4, "0"),
        ("version: 1\nqueues:\n  - name: a\n    guaranteed: 0.0001\n", 4, "three decimals"),
        ("version: 1\nqueues:\n  - name: A B\n", 3, "name"),
        ("version: 1\nqueues:\n  - name: a\n    min_run: soon\n", 4, "is not a duration"),
        ("version: 1\npreemption:\n  per_job: {most: 0}\nqueues: []\n", 3, "1"),
        ("version: 1\npreemption:\n  per_pool: {within: 2h}\nqueues: []\n", 3, "3600"),
        ("queues: []\n", 1, "version"),
        ("version: 1_0\nqueues: []\n", 1, "'1_0' is not a number"),
        ("version: 1\nqueues:\n  - name: a\n   bad\n", 4, "not YAML"),
        ("version: 1\nqueues: &x []\n", 2, "anchors"),
        ("", 1, "not one mapping"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_line_field_and_fix(text: str, line: int, words: str) -> None:
    with pytest.raises(QueueFileError) as refused:
        read_tree(text, "q.yaml", ["serving", "experiment"])
    told = str(refused.value)
    assert words in told
    assert f"q.yaml:{line}:" in told
