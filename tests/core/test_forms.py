"""What a job that waits is kept as: its spec comes back as it was, and a hundred thousand of them are small."""

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.scheduling.decider import Decider
from libs.core.state import snapshot
from libs.core.state.by_job import packed_id, unpacked_id
from libs.core.state.forms import form_of, hash_of, kept, name_of, spec_of
from libs.core.state.job import Job
from libs.core.state.model import State
from libs.core.state.shape import shape_of
from libs.core.state.waiting import enqueue
from schemas.ids import content_hash, job_id
from schemas.jobs import JobSpec, RetryPolicy, Simulation
from schemas.ledger import JobQueued, LedgerRecord
from schemas.resources import Resources

words = st.text("abcxyz_", min_size=1, max_size=4)
specs = st.builds(
    JobSpec,
    name=words.filter(lambda name: name[0] != "_"),
    command=st.lists(words, min_size=1, max_size=3).map(tuple),
    env=st.dictionaries(words.map(str.upper).filter(lambda name: not name.startswith("_")), words, max_size=3),
    workdir=words,
    priority_class=st.sampled_from(("experiment", "serving")),
    resources=st.builds(Resources, devices=st.integers(1, 3)),
    retry=st.builds(RetryPolicy, on_failure=st.integers(0, 1)),
    time_limit_s=st.sampled_from((0, 7.5)),
    simulation=st.none() | st.builds(Simulation, duration_s=st.sampled_from((0, 2.5)), exit_code=st.integers(0, 1)),
)


@settings(max_examples=60, deadline=None)
@given(specs=st.lists(specs, min_size=1, max_size=12), hash_=st.sampled_from(("", "h", "ab" * 32, "AB" * 32, "é" * 64)))
def test_a_spec_comes_back_letter_by_letter_also_through_a_snapshot(specs: list[JobSpec], hash_: str) -> None:
    state = State()
    for number, spec in enumerate(specs):
        form = form_of(spec)
        own = kept(form, spec, hash_)
        assert spec_of(form, own) == spec
        assert spec_of(form, own).model_dump_json() == spec.model_dump_json()
        assert (hash_of(own), name_of(own)) == (hash_, spec.name)
        one = Job(
            job_id("a", str(number)), "a", spec, hash_, 100, False, submitted_us=number, queued_us=7,
            shape=shape_of(spec), user="u", by_user=state.tree.by_user("a"),
        )  # fmt: skip
        state.jobs[one.id] = one
        enqueue(state, one)
    parts = list(snapshot.dump(state))
    again = snapshot.load(iter(parts)).state
    assert again.jobs == state.jobs
    assert [one.spec.model_dump_json() for one in again.jobs.values()] == [one.model_dump_json() for one in specs]
    assert list(snapshot.dump(again)) == parts


def test_ids_are_told_apart_however_they_are_written() -> None:
    for name in (job_id("a", "1"), "j1", "job-" + "0" * 32, "job-" + "F" * 32, "job-" + "1_" * 16, "job- " + "1" * 31):
        assert unpacked_id(packed_id(name)) == name
    assert len({packed_id("job-" + "f" * 32), packed_id("job-" + "F" * 32)}) == 2


def test_a_job_that_only_waits_is_small() -> None:
    """Jobs with names of their own: a name that is written once is not kept in a spec of its own (1,950 bytes before)."""
    decider, jobs = Decider(), 2000
    records = [_record(start) for start in range(0, 2 * jobs, 100)]
    for seq, record in enumerate(records, 1):
        if seq > len(records) // 2 and not tracemalloc.is_tracing():
            tracemalloc.start()
        decider.apply(LedgerRecord.model_validate_json(record), seq)
    took = tracemalloc.get_traced_memory()[0] / jobs
    tracemalloc.stop()
    assert len(decider.state.jobs) == 2 * jobs
    assert took < 1000


def _record(start: int) -> bytes:
    queued = []
    for number in range(start, start + 100):
        spec = JobSpec(name=f"waits-{number}", resources=Resources(), simulation=Simulation(duration_s=0))
        hash_ = content_hash(spec.name.encode())
        queued.append(
            JobQueued(
                job_id=job_id("a", spec.name),
                team=f"team{number % 10}",
                spec=spec,
                spec_hash=hash_,
                user="u",
                client_key=spec.name,
                priority=100,
                preempts=False,
                submitted_us=10**15 + number,
            )
        )
    return (
        LedgerRecord(
            pool="p", prev_seq=start, prev_hash="", inbox_seq=start + 1, t_us=10**15 + start, writer="w",
            events=tuple(queued),
        ).model_dump_json().encode()
    )  # fmt: skip
