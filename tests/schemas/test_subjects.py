"""Subjects: one token per key, and credentials that end at the team, the user, the node."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import subjects
from schemas.catalog import CATALOG, JOB_EVENTS, Message
from tests.kit.patterns import matches

ROOT = Path(__file__).parents[2]
tokens = st.from_regex(r"[A-Za-z0-9_-]{1,63}", fullmatch=True)
teams = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
OWN = [m for m in CATALOG if m.producer == "teams"]
EVENTS = [m for m in CATALOG if m.stream == subjects.EVENTS]


def allowed(patterns: list[str], subject: str) -> bool:
    return any(matches(pattern, subject) for pattern in patterns)


def filled(subject: str, **keys: str) -> str:
    return subject.format(**({"team": "t", "user": "u", "pool": "p", "node": "n", "service": "s"} | keys))


@given(tokens)
def test_a_token_is_itself(value: str) -> None:
    assert subjects.token(value) == value


@given(st.text(max_size=70))
def test_what_is_no_token_is_refused_by_name(value: str) -> None:
    if re.fullmatch(r"[A-Za-z0-9_-]{1,63}", value):
        return
    with pytest.raises(ValueError, match="cannot be a name") as refused:
        subjects.token(value)
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize("value", ["", "a.b", "*", ">", "a b", "a\n", "é", "a" * 64, "٣"])
def test_wildcards_dots_spaces_and_line_ends_are_no_tokens(value: str) -> None:
    for team, user in ((value, "ana"), ("research", value)):
        with pytest.raises(ValueError, match="cannot be a name"):
            subjects.submit(team, user)


@pytest.mark.parametrize("make", [subjects.heartbeat, subjects.sample, subjects.desired])
def test_a_key_is_one_token_or_every_key(make: object) -> None:
    assert callable(make)
    assert make("main") == make("main", "*")
    for pool, node in (("a.b", "n"), ("main", ">"), ("main", "a.b"), ("", "n")):
        with pytest.raises(ValueError, match="cannot be a name"):
            make(pool, node)


@given(teams, tokens, teams, tokens)
def test_a_user_reaches_the_own_subjects_and_no_other_users(team: str, user: str, rivals: str, other: str) -> None:
    publish, subscribe = subjects.user_may(team, user)
    mine = {"team": team, "user": user}
    assert [m.type for m in OWN if not allowed(publish, filled(m.subject, **mine))] == []
    assert [m.type for m in EVENTS if not allowed(subscribe, filled(m.subject, **mine))] == []
    assert allowed(subscribe, f"{subjects.reply_prefix(team, user)}.reply.1")
    for keys in ({"team": team, "user": other}, {"team": rivals, "user": user}, {"team": rivals, "user": other}):
        if keys == mine:
            continue
        for m in CATALOG:
            if "{user}" in m.subject:
                assert not allowed(publish + subscribe, filled(m.subject, **keys)), m.type
        assert not allowed(subscribe, f"{subjects.reply_prefix(**keys)}.reply.1")


@given(teams, tokens, teams)
def test_a_team_reaches_its_own_subjects_and_no_other_teams(team: str, user: str, other: str) -> None:
    publish, subscribe = subjects.user_may(team)
    assert [m.type for m in OWN if not allowed(publish, filled(m.subject, team=team, user=user))] == []
    assert [m.type for m in EVENTS if not allowed(subscribe, filled(m.subject, team=team))] == []
    assert allowed(subscribe, f"{subjects.reply_prefix(team, user)}.reply.1")
    if other != team:
        for m in CATALOG:
            if "{team}" in m.subject:
                assert not allowed(publish + subscribe, filled(m.subject, team=other, user=user)), m.type
        assert not allowed(subscribe, f"{subjects.reply_prefix(other, user)}.reply.1")


@given(teams)
def test_a_team_called_like_a_pool_or_node_reaches_nothing_of_it(team: str) -> None:
    publish, subscribe = subjects.user_may(team)
    for m in CATALOG:
        if "{team}" not in m.subject:
            assert not allowed(publish + subscribe, filled(m.subject, pool=team, node=team)), m.type
    for stream_subject in (subjects.dead(team), subjects.ledger(team), f"$JS.API.STREAM.INFO.{team}", f"_INBOX.{team}"):
        assert not allowed(publish + subscribe, stream_subject)
    assert not allowed(subscribe, f"{subjects.node_reply_prefix(team, team)}.reply.1")


@given(teams, tokens)
def test_a_team_cannot_set_quotas_nor_tell_events(team: str, user: str) -> None:
    publish, _ = subjects.user_may(team)
    quota = subjects.fill(subjects.POOL_COMMAND, entity="quota", what="set", pool="p", team=team, user=user)
    assert not allowed(publish, quota)
    assert not any(allowed(publish, subjects.event(what, team)) for what in JOB_EVENTS)


@given(teams, tokens, teams, tokens)
def test_a_node_speaks_for_itself_only(pool: str, node: str, other_pool: str, other: str) -> None:
    publish, subscribe = subjects.node_may(pool, node)
    says, hears_of_logs = subjects.log_readers_may(f"{pool}.{node}")
    assert says == []
    for m in CATALOG:
        asked_for_logs = m.type == "io.baton.log.piece.query.v1"
        for asked in ({"pool": pool, "node": node}, {"pool": pool, "node": other}, {"pool": other_pool, "node": node}):
            own = asked_for_logs and asked == {"pool": pool, "node": node}
            assert allowed(hears_of_logs, filled(m.subject, **asked)) == own, m.type
        if asked_for_logs:
            continue  # heard with the second credential
        if "{node}" not in m.subject:
            assert not allowed(publish + subscribe, filled(m.subject, pool=pool, node=node)), m.type
            continue
        mine = filled(m.subject, pool=pool, node=node)
        assert allowed(publish if m.producer == "agent" or "agent" not in m.consumers else subscribe, mine), m.type
        for keys in ({"pool": pool, "node": other}, {"pool": other_pool, "node": node}):
            if keys != {"pool": pool, "node": node}:
                assert not allowed(publish + subscribe, filled(m.subject, **keys)), m.type
    assert allowed(subscribe, f"{subjects.node_reply_prefix(pool, node)}.reply.1")
    assert not allowed(subscribe, f"{subjects.reply_prefix(pool, node)}.reply.1")


@given(teams, tokens)
def test_an_agent_of_every_node_stays_in_its_pool(pool: str, node: str) -> None:
    publish, subscribe = subjects.node_may(pool)
    for m in CATALOG:
        if "{node}" in m.subject and m.subject != subjects.LOG_QUESTION:
            assert allowed(publish + subscribe, filled(m.subject, pool=pool, node=node)), m.type
            assert not allowed(publish + subscribe, filled(m.subject, pool=f"{pool[:62]}x", node=node)) or pool[62:], (
                m.type
            )


@given(tokens)
def test_helpers_spell_what_the_catalogue_says(key: str) -> None:
    spelt = {
        subjects.submit(key, "u"), subjects.cancel(key, "u"), subjects.ledger(key), subjects.heartbeat(key, "n"),
        subjects.sample(key, "n"), subjects.desired(key, "n"), subjects.inbox("job", "admitted", key),
        subjects.node_inbox("observed", key, "n"), subjects.event("granted", key),
    }  # fmt: skip
    assert spelt <= {filled(m.subject, team=key, pool=key) for m in CATALOG}
    operators = subjects.set_quota(key, "u")
    assert operators in {filled(m.subject, team=subjects.OPERATOR, pool=key) for m in CATALOG}
    assert subjects.inbox_stream(key) == f"INBOX-{key}"
    assert subjects.ledger_stream(key) == f"LEDGER-{key}"


@pytest.mark.parametrize("message", CATALOG, ids=lambda m: m.type)
def test_a_subject_is_filled_and_read_back(message: Message) -> None:
    names = subjects.keys_in(message.subject)
    keys = {name: f"{name}-1" for name in names}
    subject = subjects.fill(message.subject, **keys)
    assert subject == filled(message.subject, **keys)
    assert subjects.read(message.subject, subject) == keys
    assert matches(subjects.anyone(message.subject), subject)
    assert not matches(subjects.anyone(message.subject, **{names[0]: "another"}), subject)
    assert subject.startswith(subjects.stem(message.subject) + ".")
    assert subjects.what_of(subject) == subjects.what_of(message.subject)


@pytest.mark.parametrize(
    "wrong",
    ["", "baton.cmd.job.v1.submit", "baton.cmd.job.v1.submit.t", "baton.cmd.job.v1.submit.t.u.x",
     "xbaton.cmd.job.v1.submit.t.u", "baton.cmd.job.v1.submit.t.*", "baton.cmd.job.v1.submit..u",
     "baton-cmd.job.v1.submit.t.u"],
)  # fmt: skip
def test_what_does_not_fit_a_pattern_is_told_with_its_form(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"<team>\.<user>"):
        subjects.read(subjects.COMMAND, wrong)


def test_a_key_that_a_pattern_lacks_is_named() -> None:
    with pytest.raises(ValueError, match="has no key 'node'"):
        subjects.fill(subjects.COMMAND, node="n1")


def test_nobody_else_spells_a_subject() -> None:
    """`schemas/subjects.py` is their one home: elsewhere they stand in docs and help texts only."""
    spelt = re.compile(r"""["']baton\.(cmd|qry|evt|tel|in|led|dead)\.""")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("libs", "services", "schemas", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != ROOT / "schemas/subjects.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if spelt.search(line)
    ]
    assert found == []


def test_subjects_follow_the_rule() -> None:
    rule = re.compile(r"baton\.(cmd|qry|evt|tel|in|led)\.[a-z]+\.v1\.[a-z-]+(\.\{(team|user|pool|node|service)\})+")
    assert [m.subject for m in CATALOG if not rule.fullmatch(m.subject)] == []
    assert [m.type for m in CATALOG if not re.fullmatch(r"io\.baton\.[a-z]+\.[a-z-]+(\.query)?\.v1", m.type)] == []


def test_who_speaks_is_in_the_subject() -> None:
    """The broker does not deliver the publisher's identity."""
    for m in CATALOG:
        names = subjects.keys_in(m.subject)
        if m.producer in ("teams", "operators"):
            assert names[-2:] == ("team", "user"), m.type
        elif m.producer == "agent" or m.subject.startswith("baton.in.node."):
            assert names == ("pool", "node"), m.type


@pytest.mark.parametrize("user", ["u" * 900, "\u202e", "a b"])
def test_a_name_of_ones_own_choice_does_not_hide_who_speaks(user: str) -> None:
    """The broker takes it, and the dead letter is still that team's."""
    assert subjects.sender_of(f"baton.cmd.job.v1.submit.blue.{user}") == "blue"
    assert subjects.sender_of(f"baton.cmd.quota.v1.set.main.blue.{user}") == "blue"
    assert subjects.sender_of(f"baton.cmd.job.v1.submit.{'t' * 70}.ana") == "-"
