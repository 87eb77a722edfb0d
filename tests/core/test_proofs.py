"""A team's lines, the sums over them, and what a team finds when something of them was changed."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import pytest

from libs.core.billing.metering import Meter
from libs.core.billing.own_part import OwnPart, narrowed
from libs.core.billing.posted import AppliedBook
from libs.core.billing.pricing import Prices, bill
from libs.core.billing.wall import DAY_US
from libs.core.proofs.chains import TeamChains
from libs.core.proofs.lines import TeamLine
from libs.core.proofs.sums import sum_hash, unlinked, way_back
from libs.core.proofs.tree import Tree, leaf_of, root_along, salt_of
from schemas import inbox
from schemas.billing import BillQuery, Price, PriceBook
from schemas.ledger import LedgerRecord, LedgerSummed
from schemas.prices import ListRate, RateBook
from schemas.proofs import Sum, TeamProof
from tests.core.builders import World, job, node

S = 1_000_000
PRICES = Prices(PriceBook(currency="USD", prices=(Price(model="H100", micros_per_device_hour=2_990_000),)))


@dataclass
class Kept:
    """What history would have of a ledger, made by the same fold."""

    chains: TeamChains = field(default_factory=TeamChains)
    lines: dict[str, list[TeamLine]] = field(default_factory=dict)
    sums: list[tuple[Sum, bytes, tuple[bytes, ...]]] = field(default_factory=list)

    def take(self, record: LedgerRecord, seq: int) -> None:
        told = self.chains.apply(record, seq)
        for line in told.lines:
            self.lines.setdefault(line.team, []).append(line)
        for one in told.sums:
            assert not one.problem, one.problem
            if not one.repeat:
                self.sums.append((one.sum, one.nonce, one.leaves))

    def proof(self, team: str, number: int) -> tuple[Sum, TeamProof | None]:
        one, nonce, leaves = self.sums[number - 1]
        mine = [line for line in self.lines[team] if line.seq <= one.upto_seq]
        if not mine:
            return one, None
        head, salt = bytes.fromhex(mine[-1].head), salt_of(nonce, team)
        try:
            place, path = Tree(leaves, nonce, one.depth).path(leaf_of(salt, team, mine[-1].count, head))
        except KeyError:
            return one, None
        return one, TeamProof(sum=one, count=mine[-1].count, head=mine[-1].head, salt=salt.hex(), place=place,
                              path=tuple(h.hex() for h in path))  # fmt: skip


def lived(sums: int = 6) -> tuple[World, Kept]:
    """Two teams run jobs on the same nodes, one of them is preempted, and now and then all is summed."""
    w, kept, at = World(node("a", 4), node("b", 4)), Kept(), 0
    teams = ("blue", "red")

    def follow() -> None:
        nonlocal at
        for seq, record in enumerate(w.records[at:], at + 1):
            kept.take(record, seq)
        at = len(w.records)

    w.send(inbox.QuotaChanged(team="blue", limit_milli=8000, user="olga", cause="REQUESTS:1", reason="for its thesis"))
    for n in range(sums):
        for team in teams:
            runs = w.submit(job(f"j{n}", 1 + n % 3, team=team))
            w.started(runs)
            w.send(inbox.Tick(), after_us=(n + 1) * 1_234_567)
            w.released(runs, exit_code=n % 3 == 2)
        follow()
        nonce = sha256(f"{n}".encode()).digest()
        w.send(inbox.SumProposed(sum=kept.chains.proposal(w.records[-1].pool, nonce), nonce=nonce.hex()))
    w.send(inbox.CancelRequested(job_id="job-" + "1" * 32, team="blue", reason="nobody", user="ana"))
    follow()
    return w, kept


def part_of(texts: list[str], team: str = "blue", book: RateBook | None = None) -> OwnPart:
    part = OwnPart("test", team, book)
    for text in texts:
        part.take(text)
    return part


def texts_of(kept: Kept, team: str = "blue") -> list[str]:
    return [line.text for line in kept.lines[team]]


def test_a_team_proves_all_its_lines_in_every_sum() -> None:
    world, kept = lived()
    for team in ("blue", "red"):
        part = part_of(texts_of(kept, team), team)
        assert part.findings == []
        assert part.whole
        for number in range(1, len(kept.sums) + 1):
            assert part.prove(*kept.proof(team, number)) == ""
    assert world.checker.finish().violations == []


def test_its_bill_by_its_lines_is_its_bill() -> None:
    world, kept = lived()
    meter = Meter()
    for seq, record in enumerate(world.records, 1):
        meter.apply(record, seq)
    part = part_of(texts_of(kept))
    for group in ("team", "day", "job", "attempt", "model"):
        query = BillQuery(group_by=group)
        told = bill(meter.usage("blue"), PRICES, query, meter.seq)
        assert told.total_cost_micros > 0
        assert part.against(told, query, PRICES) == []


def test_money_is_checked_by_the_newest_version_of_the_book() -> None:
    world, kept = lived()
    first, second = (
        RateBook(version=n, currency="USD", prices=(ListRate(device="H100", micros=micros, from_us=0),))
        for n, micros in ((1, 2_990_000), (2, 3_100_001))
    )
    meter = Meter()
    for seq, record in enumerate(world.records, 1):
        if seq in (len(world.records) // 3, len(world.records) - 1):
            book = first if seq < len(world.records) - 1 else second
            meter.money.apply(AppliedBook(seq - 1, (7 + seq) * DAY_US, book))
        meter.apply(record, seq)
    part = part_of(texts_of(kept), book=second)
    for group in ("team", "day", "job"):
        query = BillQuery(group_by=group)
        told = bill(meter.usage("blue"), PRICES, query, meter.seq, "USD")
        assert told.total_cost_micros > 0
        assert part.against(told, query) == []
        row = told.rows[0]
        dearer = (row.model_copy(update={"cost_micros": row.cost_micros + 1}), *told.rows[1:])
        forged = told.model_copy(update={"rows": dearer, "total_cost_micros": told.total_cost_micros + 1})
        assert any(one.startswith(f"{row.key}: billed") for one in part.against(forged, query))
    assert part_of(texts_of(kept), book=first).against(told, query) != []


def test_a_line_has_no_word_of_another_team_nor_of_an_operator() -> None:
    _, kept = lived()
    own = "".join(texts_of(kept))
    for word in ('"red"', "olga", "REQUESTS:1"):
        assert word not in own
    assert "for its thesis" in own


@pytest.mark.parametrize("teams", [1, 2, 5, 60])
def test_a_proof_says_nothing_of_how_many_teams_there_are(teams: int) -> None:
    nonce = b"n" * 32
    leaves = [leaf_of(salt_of(nonce, f"t{n}"), f"t{n}", 3, bytes(32)) for n in range(teams)]
    tree = Tree(leaves, nonce, 16)
    for leaf in leaves:
        place, path = tree.path(leaf)
        assert len(path) == 16
        assert len(set(path)) == 16
        assert root_along(leaf, place, path) == tree.root
    with pytest.raises(KeyError):
        tree.path(bytes(32))


def test_leaves_that_want_one_place_are_all_in_the_tree() -> None:
    nonce, leaves = b"n" * 32, [bytes([255] * 4) + bytes([n] * 28) for n in range(9)]
    tree = Tree(leaves, nonce, 16)
    assert all(root_along(leaf, *tree.path(leaf)) == tree.root for leaf in leaves)


def test_another_teams_salt_cannot_be_worked_out_from_ones_own() -> None:
    """What the leaf of a team says is tried by who knows its salt alone: salts are made of a nonce that no team is told."""
    _, kept = lived()
    _, proof = kept.proof("blue", 3)
    assert proof is not None
    told = proof.model_dump_json()
    _, nonce, _ = kept.sums[2]
    assert nonce.hex() not in told
    assert salt_of(nonce, "red").hex() not in told
    assert salt_of(nonce, "red") != salt_of(kept.sums[1][1], "red"), "another one in each sum"


def test_any_sum_leads_to_any_earlier_one_in_few_steps() -> None:
    sums: list[Sum] = []
    chains = TeamChains()
    world = World(node("a"))
    world.submit(job("one", team="blue"))
    for seq, record in enumerate(world.records, 1):
        chains.apply(record, seq)
    for number in range(1, 300):
        seq = len(world.records) + number
        nonce = sha256(f"{number}".encode()).digest()
        one = chains.proposal("test", nonce)
        record = world.records[-1].model_copy(
            update={"events": (LedgerSummed(sum=one, nonce=nonce.hex()),), "t_us": number * S}
        )
        (judged,) = chains.apply(record, seq + 1).sums
        assert (judged.problem, judged.repeat) == ("", False)
        sums.append(one)
    for newest, oldest in ((299, 1), (256, 255), (200, 77), (5, 5), (128, 1)):
        way = way_back(newest, oldest)
        assert (way[0], way[-1]) == (newest, oldest)
        assert len(way) <= newest.bit_length() ** 2 / 2 + 1
        links = [sums[number - 1] for number in way]
        assert unlinked(links) == ""
        for at in range(1, len(links)):
            forged = [*links[:at], links[at].model_copy(update={"root": "ab" * 32}), *links[at + 1 :]]
            assert unlinked(forged).startswith(f"sum {links[at - 1].number} does not name")


# ------------------------------------------------------------------------------------------------------------ tampering


def rewritten(texts: list[str], at: int, change: Callable[[dict[str, Any]], Any]) -> list[str]:
    """With one line changed as whoever has the store would do it."""
    said = json.loads(texts[at])
    change(said)
    return [*texts[:at], json.dumps(said, separators=(",", ":")), *texts[at + 1 :]]


def renumbered(texts: list[str]) -> list[str]:
    return [json.dumps(json.loads(text) | {"n": n}, separators=(",", ":")) for n, text in enumerate(texts, 1)]


def first_of(texts: list[str], kind: str) -> int:
    return next(at for at, text in enumerate(texts) if f'"kind":"{kind}"' in text)


def freed_later(said: dict[str, Any]) -> None:
    said["t_us"] += 5 * S


def other_device(said: dict[str, Any]) -> None:
    (granted,) = (e for e in said["events"] if e["kind"] == "job.granted")
    granted["claims"][0]["milli"] = 500


def changed_in(kept: Kept, kind: str, change: Callable[[dict[str, Any]], Any]) -> list[str]:
    texts = texts_of(kept)
    return rewritten(texts, first_of(texts, kind), change)


def moved(kept: Kept) -> list[str]:
    """One of red's lines among blue's, said to be blue's."""
    blue, red = texts_of(kept), texts_of(kept, "red")
    at = first_of(red, "job.queued")
    return renumbered([*blue[:2], red[at].replace('"red"', '"blue"'), *blue[2:]])


TAMPERED: dict[str, tuple[Callable[[Kept], list[str]], str]] = {
    "a line is left out": (lambda k: [*texts_of(k)[:4], *texts_of(k)[5:]], "line 5 is missing"),
    "the first line is left out": (lambda k: texts_of(k)[1:], "line 1 is missing"),
    "a line is left out and the others renumbered": (
        lambda k: renumbered([*texts_of(k)[:4], *texts_of(k)[5:]]), "are not those of sum 2"
    ),
    "the last lines are left out": (lambda k: texts_of(k)[:-6], "were told"),
    "two lines change places": (lambda k: [*texts_of(k)[:4], texts_of(k)[5], texts_of(k)[4], *texts_of(k)[6:]], "line 5"),
    "a line is told twice": (lambda k: [*texts_of(k)[:4], texts_of(k)[3], *texts_of(k)[4:]], "line 5 is missing"),
    "a line of another team is among them": (lambda k: [*texts_of(k)[:2], texts_of(k, "red")[2], *texts_of(k)[2:]], "red"),
    "a line of another team is said to be ours": (moved, "lines"),
    "devices were freed later": (lambda k: changed_in(k, "devices.freed", freed_later), "are not those of sum 1"),
    "half a device was granted": (lambda k: changed_in(k, "job.granted", other_device), "are not those of sum 1"),
    "a job was freed that was not granted": (
        lambda k: [t for t in texts_of(k) if '"kind":"job.granted"' not in t], "is not allowed"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TAMPERED)
def test_what_was_tampered_with_is_found_and_named(what: str) -> None:
    _, kept = lived()
    make, says = TAMPERED[what]
    part = part_of(make(kept))
    found = [*part.findings, *(part.prove(*kept.proof("blue", n)) for n in range(1, len(kept.sums) + 1))]
    assert any(says in one for one in found), found


async def test_the_sum_from_which_on_lines_differ_is_found_in_few_questions() -> None:
    _, kept = lived(12)
    texts = texts_of(kept)
    middle = next(line.seq for line in kept.lines["blue"] if line.seq > kept.sums[6][0].upto_seq)
    at = next(n for n, line in enumerate(kept.lines["blue"]) if line.seq == middle)
    part = part_of(rewritten(texts, at, lambda said: said.update(wall_us=7)))
    asked: list[int] = []

    async def ask(number: int) -> tuple[Sum, TeamProof | None]:
        asked.append(number)
        return kept.proof("blue", number)

    one, proof = kept.proof("blue", 12)
    assert part.prove(one, proof)
    good, bad = await narrowed(part, 1, one, ask)
    assert good is not None
    assert (good.number, bad.number) == (7, 8)
    assert len(asked) <= 4


BILLS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "more time": lambda row: {"milli_us": row.milli_us + 1},
    "more money": lambda row: {"cost_micros": row.cost_micros + 1},
    "another attempt": lambda row: {"key": "job-" + "2" * 32 + ".1"},
    "another team's": lambda row: {"team": "red"},
}


@pytest.mark.parametrize("what", BILLS)
def test_a_bill_that_was_altered_is_found_and_named(what: str) -> None:
    world, kept = lived()
    meter = Meter()
    for seq, record in enumerate(world.records, 1):
        meter.apply(record, seq)
    query = BillQuery(group_by="attempt")
    told = bill(meter.usage("blue"), PRICES, query, meter.seq)
    row = told.rows[2]
    wrong = row.model_copy(update=BILLS[what](row))
    forged = told.model_copy(update={"rows": (*told.rows[:2], wrong, *told.rows[3:])})
    found = part_of(texts_of(kept)).against(forged, query, PRICES)
    assert any(row.key in one or wrong.key in one for one in found), found
    part = part_of(texts_of(kept))
    assert "the bill's total is not the sum of its rows" in part.against(
        told.model_copy(update={"total_milli_us": 1}), query
    )


# --------------------------------------------------------------------------------------------------------------- the fold


def test_a_proof_of_other_lines_does_not_lead_to_the_root() -> None:
    _, kept = lived()
    part = part_of(texts_of(kept))
    one, proof = kept.proof("blue", 4)
    assert proof is not None
    for change in (
        {"count": proof.count - 1}, {"head": "ab" * 32}, {"salt": "ab" * 32}, {"place": proof.place ^ 1},
        {"path": proof.path[:-1]}, {"path": (*proof.path[:-1], "ab" * 32)},
    ):  # fmt: skip
        assert "does not lead to the root" in part.prove(one, proof.model_copy(update=change))
    assert "not of sum" in part.prove(kept.sums[1][0], proof)
    assert "has not the lines" in part.prove(one, None)


def records_and_numbers(world: World) -> Iterator[tuple[int, LedgerRecord]]:
    yield from enumerate(world.records, 1)


def test_a_fold_that_goes_on_from_its_dump_is_the_same() -> None:
    world, whole = lived()
    for cut in (7, 40, len(world.records) - 3):
        half = Kept()
        for seq, record in records_and_numbers(world):
            half.take(record, seq)
            if seq == cut:
                half.chains = TeamChains.load(half.chains.dump())
        assert half.lines == whole.lines
        assert half.sums == whole.sums
        assert list(half.chains.dump()) == list(whole.chains.dump())


@pytest.mark.parametrize("change", ["root", "prev", "skip", "number", "upto_seq", "depth"])
def test_a_wrong_sum_is_found_by_who_reads_the_ledger(change: str) -> None:
    world, kept = lived()
    nonce = b"n" * 32
    right = kept.chains.proposal("test", nonce)
    wrong = {"root": "ab" * 32, "prev": "ab" * 32, "skip": "ab" * 32, "number": right.number + 1, "depth": 17,
             "upto_seq": kept.sums[-1][0].upto_seq}[change]  # fmt: skip
    world.send(inbox.SumProposed(sum=right.model_copy(update={change: wrong}), nonce=nonce.hex()))
    (found,) = world.checker.finish().violations
    assert found.startswith("I14")
    world.send(inbox.SumProposed(sum=right, nonce=nonce.hex()))
    assert len(world.checker.finish().violations) == 1, "a wrong one counts for nothing, and the right one follows"


def test_a_sum_that_is_told_twice_counts_once() -> None:
    world, kept = lived()
    one, nonce, _ = kept.sums[-1]
    world.send(inbox.SumProposed(sum=one.model_copy(update={"root": "ab" * 32}), nonce=nonce.hex()))
    world.send(inbox.SumProposed(sum=one, nonce=nonce.hex()))
    assert world.checker.finish().violations == []


def test_a_calendar_that_moves_is_told_so_that_days_come_out_the_same() -> None:
    """A job that runs over midnight, while the broker's clock is set: the team splits its days as the bill does."""
    world = World(node("a", 4))
    runs = world.submit(job("over", 2, team="blue"))
    world.started(runs)
    world.send(inbox.Tick(), after_us=3600 * S)
    world.send(inbox.Tick(), after_us=3600 * S)
    world.released(runs)
    meter, kept = Meter(), Kept()
    for seq, record in records_and_numbers(world):
        wall = record.t_us + (0 if seq < 3 else 86_400 * S - 5400 * S if seq < len(world.records) - 1 else 7 * S)
        moved_ = record.model_copy(update={"wall_us": wall})
        meter.apply(moved_, seq)
        kept.take(moved_, seq)
    query = BillQuery(group_by="day")
    told = bill(meter.usage("blue"), PRICES, query, meter.seq)
    assert len(told.rows) == 2
    assert part_of(texts_of(kept)).against(told, query, PRICES) == []


def test_lines_of_before_are_not_needed_where_they_are_not_kept() -> None:
    _, kept = lived()
    rest = kept.lines["blue"][9:]
    part = OwnPart("test", "blue")
    part.begin(rest[0].count, bytes.fromhex(rest[0].before))
    for line in rest:
        part.take(line.text)
    assert part.findings == []
    assert part.prove(*kept.proof("blue", len(kept.sums))) == ""
    other = OwnPart("test", "blue")
    other.begin(rest[0].count, b"x" * 32)
    for line in rest:
        other.take(line.text)
    assert other.prove(*kept.proof("blue", len(kept.sums)))


def test_the_bytes_of_a_line_are_for_good() -> None:
    """A version that writes other bytes for the same record cannot check what was summed before it."""
    _, kept = lived(2)
    digest = kept.lines["blue"][-1].head
    assert sum_hash(replace_root(kept.sums[0][0]))[:12] == SUM_HASH
    assert digest[:12] == HEAD


def replace_root(one: Sum) -> Sum:
    return one.model_copy(update={"root": "0" * 64})


SUM_HASH = "713d4ca7d2fd"
HEAD = "953aef1d517e"
