"""Subjects: one token per key, and a team's credential that ends at the team."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import subjects
from schemas.catalog import CATALOG, JOB_EVENTS

tokens = st.from_regex(r"[A-Za-z0-9_-]{1,63}", fullmatch=True)
teams = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
OWN = [m for m in CATALOG if m.producer == "teams"]
EVENTS = [m for m in CATALOG if m.stream == subjects.EVENTS]


def matches(pattern: str, subject: str) -> bool:
    """NATS: `*` is one token, a last `>` is one or more."""
    wanted, given_ = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        return len(given_) >= len(wanted) and all(w in ("*", s) for w, s in zip(wanted[:-1], given_, strict=False))
    return len(wanted) == len(given_) and all(w in ("*", s) for w, s in zip(wanted, given_, strict=True))


def allowed(patterns: list[str], subject: str) -> bool:
    return any(matches(pattern, subject) for pattern in patterns)


def filled(subject: str, **keys: str) -> str:
    return subject.format(**({"team": "t", "pool": "p", "node": "n"} | keys))


@given(tokens)
def test_a_token_is_itself(value: str) -> None:
    assert subjects.token(value) == value


@given(st.text(max_size=70))
def test_what_is_no_token_is_refused_by_name(value: str) -> None:
    if re.fullmatch(r"[A-Za-z0-9_-]{1,63}", value):
        return
    with pytest.raises(ValueError, match="cannot be a subject token") as refused:
        subjects.token(value)
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize("value", ["", "a.b", "*", ">", "a b", "a\n", "é", "a" * 64, "٣"])
def test_wildcards_dots_spaces_and_line_ends_are_no_tokens(value: str) -> None:
    with pytest.raises(ValueError, match="cannot be a subject token"):
        subjects.submit(value)


@pytest.mark.parametrize("make", [subjects.heartbeat, subjects.sample, subjects.desired])
def test_a_key_is_one_token_or_every_key(make: object) -> None:
    assert callable(make)
    assert make("main") == make("main", "*")
    for pool, node in (("a.b", "n"), ("main", ">"), ("main", "a.b"), ("", "n")):
        with pytest.raises(ValueError, match="cannot be a subject token"):
            make(pool, node)


@given(teams, teams)
def test_a_team_reaches_its_own_subjects_and_no_other_teams(team: str, other: str) -> None:
    publish, subscribe = subjects.team_may(team)
    assert [m.type for m in OWN if not allowed(publish, filled(m.subject, team=team))] == []
    assert [m.type for m in EVENTS if not allowed(subscribe, filled(m.subject, team=team))] == []
    assert allowed(subscribe, f"_INBOX_{team}.reply.1")
    if other != team:
        for m in CATALOG:
            if "{team}" in m.subject:
                assert not allowed(publish + subscribe, filled(m.subject, team=other)), m.type
        assert not allowed(subscribe, f"_INBOX_{other}.reply.1")


@given(teams)
def test_a_team_called_like_a_pool_or_node_reaches_nothing_of_it(team: str) -> None:
    publish, subscribe = subjects.team_may(team)
    for m in CATALOG:
        if "{team}" not in m.subject:
            assert not allowed(publish + subscribe, filled(m.subject, pool=team, node=team)), m.type
    for stream_subject in (subjects.dead(team), subjects.ledger(team), f"$JS.API.STREAM.INFO.{team}", f"_INBOX.{team}"):
        assert not allowed(publish + subscribe, stream_subject)


@given(teams)
def test_a_team_cannot_set_quotas_nor_tell_events(team: str) -> None:
    publish, _ = subjects.team_may(team)
    assert not allowed(publish, f"baton.cmd.quota.v1.set.{team}")
    assert not any(allowed(publish, subjects.event(what, team)) for what in JOB_EVENTS)


@given(tokens)
def test_helpers_spell_what_the_catalogue_says(key: str) -> None:
    spelt = {
        subjects.submit(key), subjects.cancel(key), subjects.ledger(key), subjects.heartbeat(key, "n"),
        subjects.sample(key, "n"), subjects.desired(key, "n"), subjects.inbox("job", "admitted", key),
        subjects.event("granted", key), subjects.query("job", "get", key),
    }  # fmt: skip
    assert spelt <= {filled(m.subject, team=key, pool=key) for m in CATALOG}
    assert subjects.inbox_stream(key) == f"INBOX-{key}"
    assert subjects.ledger_stream(key) == f"LEDGER-{key}"


def test_the_key_of_every_subject_is_found() -> None:
    for m in CATALOG:
        assert subjects.key_of(filled(m.subject)) in ("t", "p")
    with pytest.raises(ValueError, match="has no key"):
        subjects.key_of("baton.cmd.job.v1.submit")


def test_subjects_follow_the_rule() -> None:
    rule = re.compile(r"baton\.(cmd|qry|evt|tel|in|led)\.[a-z]+\.v1\.[a-z-]+(\.\{(team|pool|node)\})+")
    assert [m.subject for m in CATALOG if not rule.fullmatch(m.subject)] == []
    assert [m.type for m in CATALOG if not re.fullmatch(r"io\.baton\.[a-z]+\.[a-z-]+(\.query)?\.v1", m.type)] == []
