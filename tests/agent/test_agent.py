"""A whole agent in this process, against a real NATS server, with a placement and a telemetry that do what we say."""

import asyncio
import contextlib
import time
from contextlib import asynccontextmanager

import pytest

from libs.adapters.devices.simulated import SimulatedLayer
from libs.bus.cancel import cancel
from libs.bus.connect import close, connect
from schemas.inbox import CheckpointTaken, Refused, Released, Started
from schemas.jobs import CheckpointPolicy, SecretUse
from schemas.nodes import Action
from schemas.queries import LogQuery
from services.agent.app import build, prepare
from services.agent.keeper import zygote
from services.agent.node import NodeCounts
from services.agent.nodes import Hosted
from services.agent.settings import AgentSettings
from services.agent.state import AgentState, StateInUse
from tests.agent.build import but, inventory, part, rank, simulated, spec
from tests.agent.conftest import until
from tests.agent.test_processes import FOREVER, SAVES
from tests.agent.world import World


@pytest.fixture
async def world(nats, pool):
    return await World(nats, pool).open()


@pytest.fixture
def start(world, nats_url, tmp_path):
    """Runs an agent for simulated nodes; settings are quick, so that a test is."""

    @asynccontextmanager
    async def running(nodes: int = 1, **fields):
        quick = {"lease_s": 10.0, "ask_s": 0.2, "repeat_s": 0.3, "sample_s": 0.2} | fields
        settings = AgentSettings(nats_url=nats_url, pool=world.pool, state_dir=tmp_path, **quick)
        found = [Hosted(i, SimulatedLayer(i.devices)) for i in (inventory(f"n{k}") for k in range(nodes))]
        own = await connect(nats_url, name="agent")
        agent = await build(settings, own, prepare(settings, found), NodeCounts())
        await agent.subscribe()
        loops = ("heartbeats", "watch_leases", "ask", "samples")
        tasks = [asyncio.create_task(getattr(agent, f"run_{loop}")()) for loop in loops]
        tasks.append(asyncio.create_task(agent.reports.run()))
        try:
            await world.joined("n0")
            await until(lambda: all(n.known and n.lease.valid(n.now()) for n in agent.nodes.values()))
            yield agent
        finally:
            await cancel(*tasks)
            await agent.close()
            await close(own)

    return running


async def test_a_node_registers_with_what_it_has(world, start):
    async with start(nodes=3):
        await until(lambda: len(world.lives) == 3)
        registered = world.inventories["n2"]
        assert len(registered.inventory.devices) == 8
        assert registered.inventory.simulated
        assert registered.lease_s == 10.0


async def test_a_simulated_job_runs_and_ends(world, start):
    async with start():
        wanted = part(simulated(0.05, exit_code=4))
        await world.want("n0", wanted)
        await world.sees(wanted, Started)
        released = await world.sees(wanted, Released)
        assert (released.exit_code, released.own_exit) == (4, True)


async def test_without_the_program_simulated_jobs_run_and_processes_fail_with_the_reason(
    world, start, monkeypatch, caplog
):
    monkeypatch.setattr(zygote, "PROGRAM", "/nowhere/baton-shim")
    async with start():
        assert "only simulated work runs here: /nowhere/baton-shim is missing" in caplog.text
        timed, process = part(simulated(0.05)), part(spec(FOREVER), rank("n0-gpu1"))
        await world.want("n0", timed, process)
        assert (await world.sees(timed, Released)).exit_code == 0
        assert "/nowhere/baton-shim is missing" in (await world.sees(process, Released)).reason


async def test_an_end_is_repeated_until_the_state_shows_that_it_was_heard(world, start):
    async with start() as agent:
        wanted = part(simulated(0.01))
        await world.want("n0", wanted)
        await until(lambda: len(world.of(wanted, Released)) >= 3)
        assert len(world.of(wanted, Started)) == 1, "and it is not started again meanwhile"
        await world.want("n0")
        await until(lambda: not agent.nodes["n0"].view.parts)


async def test_a_lost_push_is_repaired_by_the_next_question(world, start):
    async with start():
        wanted = part()
        world.seq += 1
        world.wanted["n0"] = (wanted,)
        await world.sees(wanted, Started)


async def test_states_of_another_life_or_the_past_change_nothing(world, start):
    async with start():
        wanted, other = part(), part(None, rank(epoch=9))
        await world.want("n0", wanted)
        await world.sees(wanted, Started)
        life = world.lives["n0"][0]
        await world.push(world.change("n0", other, since=0, seq=world.seq + 5, incarnation=life + 1))
        await world.push(world.change("n0", other, since=0, seq=world.seq - 1, incarnation=life))
        await world.want("n0", but(wanted, Action.STOP))
        await world.sees(wanted, Released)
        assert world.of(other, Started) == world.of(other, Refused) == []


async def test_a_start_is_reported_until_the_ledger_shows_it(world, start):
    """Without it no time limit applies: it must not depend on one message."""
    async with start(repeat_s=0.1) as agent:
        wanted, world.hears_starts = part(), False
        await world.want("n0", wanted)
        await until(lambda: len(world.of(wanted, Started)) >= 3)
        world.hears_starts = True
        await until(lambda: not agent.nodes["n0"]._unconfirmed.starts)
        told = len(world.of(wanted, Started))
        await world.want("n0", but(wanted, Action.STOP))
        await world.sees(wanted, Released)
        assert len(world.of(wanted, Started)) <= told + 1


async def test_a_stale_epoch_is_refused(world, start):
    async with start():
        first, late = part(None, rank(epoch=5)), part(None, rank(epoch=4))
        await world.want("n0", first)
        await world.sees(first, Started)
        await world.want("n0", late)
        assert "stale: 5 was seen" in (await world.sees(late, Refused)).reason
        assert world.of(late, Started) == []


async def test_a_preempted_process_saves_and_the_next_attempt_resumes(world, start):
    async with start() as agent:
        job = spec(SAVES, checkpoint=CheckpointPolicy(grace_s=20))
        first = part(job)
        await world.want("n0", first)
        await world.sees(first, Started)
        await until(lambda: "up" in (agent.read_log(LogQuery(job_id=first.job_id), "blue") or first).text)
        await world.want("n0", but(first, Action.CHECKPOINT))
        taken = await world.sees(first, CheckpointTaken)
        assert not (await world.sees(first, Released)).own_exit
        resume = taken.checkpoint.model_copy(update={"step": 5_000})
        again = first.model_copy(update={"attempt": 2, "ranks": (rank(epoch=2),), "resume": resume})
        await world.want("n0", again)
        await world.sees(again, Started)
        await until(lambda: "up" in agent.read_log(LogQuery(job_id=first.job_id), "blue").text)
        await world.want("n0", but(again, Action.CHECKPOINT))
        assert (await world.sees(again, CheckpointTaken)).checkpoint.step >= 5_000


async def test_a_forbidden_variable_fails_the_job_with_its_name(world, start):
    async with start():
        wanted = part(spec("pass", env={"LD_PRELOAD": "/tmp/x.so"}))
        await world.want("n0", wanted)
        released = await world.sees(wanted, Released)
        assert released.own_exit
        assert released.exit_code != 0
        assert "LD_PRELOAD" in released.reason


async def test_where_nothing_holds_processes_one_trusted_team_is_served(world, start):
    async with start(containment="none", trusted_team="blue"):
        mine, other = part(spec("pass")), part(spec("pass"), rank("n0-gpu1"), team="green")
        await world.want("n0", mine, other)
        assert (await world.sees(mine, Released)).exit_code == 0
        refused = await world.sees(other, Released)
        assert (refused.exit_code, refused.category) == (126, "hardware")
        assert "serves team 'blue' alone: BATON_AGENT_TRUSTED_TEAM" in refused.reason
        assert world.of(other, Started) == []


async def test_output_is_for_its_own_team(world, start):
    async with start() as agent:
        wanted = part(spec("print('loss 0.1')"))
        await world.want("n0", wanted)
        await world.sees(wanted, Released)
        query = LogQuery(job_id=wanted.job_id)
        assert agent.read_log(query, "blue").text == "loss 0.1\n"
        assert agent.read_log(query, "green") is None


async def test_a_node_that_is_cut_off_stops_its_work_and_begins_a_new_life(world, start):
    async with start(lease_s=3.0) as agent:
        process, timer = part(spec(FOREVER)), part(None, rank("n0-gpu1"))
        await world.want("n0", process, timer)
        await world.sees(process, Started)
        await world.sees(timer, Started)
        world.grants = False
        second = await world.joined("n0", lives=2)
        assert second > world.lives["n0"][0]
        assert world.of(process, Released) == world.of(timer, Released) == [], "the new life is the evidence"
        assert not agent.nodes["n0"].parts
        world.grants = True
        await until(lambda: agent.nodes["n0"].lease.valid(agent.nodes["n0"].now()))
        again = part(simulated(0.01), rank(epoch=2))
        await world.want("n0", again)
        await world.sees(again, Released)


async def test_a_short_lease_ends_its_part_alone_and_the_node_goes_on_in_its_life(world, start):
    async with start(lease_s=60.0, heartbeat_s=0.2) as agent:
        short, long = part(spec(FOREVER), lease_s=1.0), part(spec(FOREVER), rank("n0-gpu1"), lease_s=60.0)
        simulated_short = part(None, rank("n0-gpu2"), lease_s=1.0)
        await world.want("n0", short, long, simulated_short)
        for one in (short, long, simulated_short):
            await world.sees(one, Started)
        world.grants = False
        for one in (short, simulated_short):
            released = await world.sees(one, Released)
            assert not released.own_exit
            assert "its lease ended" in released.reason
        assert (long.job_id, 1) in agent.nodes["n0"].parts
        world.grants = True
        again = part(simulated(0.01), rank(epoch=2))
        await world.want("n0", again, long)
        await world.sees(again, Released)
        assert len(world.lives["n0"]) == 1
        assert world.of(long, Released) == []


async def test_a_short_lease_is_renewed_three_times_in_its_length_however_long_the_nodes_is(world, start):
    async with start(lease_s=600.0, heartbeat_s=60.0) as agent:
        node, short = agent.nodes["n0"], part(simulated(60), lease_s=9.0)
        await world.want("n0", short)
        await world.sees(short, Started)
        for _ in range(2):
            before = node.lease.deadline
            await until(lambda before=before: node.lease.deadline > before)
        assert world.of(short, Released) == []


async def test_no_silence_ends_work_that_is_kept(world, start):
    """Everything else ends with the node's lease, nothing new starts, and the life goes on when the node is heard."""
    async with start(lease_s=1.5, heartbeat_s=0.2) as agent:
        kept, other = part(spec(FOREVER), lease_s=0.0), part(spec(FOREVER), rank("n0-gpu1"))
        await world.want("n0", kept, other)
        for one in (kept, other):
            await world.sees(one, Started)
        node = agent.nodes["n0"]
        world.grants = False
        await world.sees(other, Released)
        assert not node.lease.valid(node.now())
        late = part(simulated(0.01), rank("n0-gpu2"))
        await world.want("n0", kept, late)
        await asyncio.sleep(2.0)  # longer than the lease, once more
        assert world.of(late, Started) == world.of(kept, Released) == []
        world.grants = True
        await world.sees(late, Released)
        assert (kept.job_id, 1) in node.parts
        assert len(world.lives["n0"]) == 1


async def test_a_life_without_a_lease_ends_once_it_has_nothing_more_to_keep(world, start):
    """Who grants leases may have given it up, where an older reader lets no ledger say that it keeps work: then nothing was
    ever started there again (simulation, seed 844)."""
    async with start(lease_s=1.5, heartbeat_s=0.2) as agent:
        kept, late = part(spec(FOREVER), lease_s=0.0), part(simulated(0.01), rank("n0-gpu1"))
        await world.want("n0", kept)
        await world.sees(kept, Started)
        world.grants = False
        await until(lambda: agent.nodes["n0"].lease.deadline is None)
        assert len(world.lives["n0"]) == 1
        await world.want("n0")
        await world.joined("n0", lives=2)
        world.grants = True
        await world.want("n0", late)
        await world.sees(late, Released)


async def test_kept_work_that_was_not_started_yet_lets_no_life_go_on(world, start):
    """It waits for a secret that nobody delivers. The keeper holds nothing that is kept, so it lets nothing start any more."""
    async with start(lease_s=1.5, heartbeat_s=0.2) as agent:
        kept = part(spec(FOREVER, secrets=(SecretUse(secret="token"),)), lease_s=0.0)
        other = part(spec(FOREVER), rank("n0-gpu1"))
        await world.want("n0", kept, other)
        await world.sees(other, Started)
        world.grants = False
        await until(lambda: not agent.nodes["n0"].lease.valid(agent.nodes["n0"].now()))
        world.grants = True
        await world.joined("n0", lives=2)
        late = part(simulated(0.01), rank("n0-gpu2"))
        await world.want("n0", late)
        await world.sees(late, Released)
        assert [seen.exit_code for seen in world.of(late, Released)] == [0]
        assert world.of(kept, Released) == []


async def test_jobs_are_asked_to_save_before_a_lease_ends(world, start):
    async with start(lease_s=3.0) as agent:
        wanted = part(spec(SAVES, checkpoint=CheckpointPolicy()))
        await world.want("n0", wanted)
        await world.sees(wanted, Started)
        await until(lambda: "up" in (agent.read_log(LogQuery(job_id=wanted.job_id), "blue") or wanted).text)
        world.grants = False
        await world.sees(wanted, CheckpointTaken)
        await world.joined("n0", lives=2)


async def test_nothing_starts_before_the_first_lease_and_what_waits_for_it_starts_then(world, start):
    async with start(lease_s=3.0, ask_s=60.0) as agent:
        world.grants = False
        await world.joined("n0", lives=2)
        wanted = part()
        await world.want("n0", wanted)
        await until(lambda: agent.nodes["n0"].view.ledger_seq == world.seq)
        assert not agent.nodes["n0"].view.parts
        world.grants = True
        await world.sees(wanted, Started)


async def test_a_node_that_placement_took_for_lost_comes_back(world, start):
    async with start():
        wanted = part()
        await world.want("n0", wanted)
        await world.sees(wanted, Started)
        world.disowned.add("n0")
        await world.joined("n0", lives=2)
        again = part(None, rank(epoch=2))
        await world.want("n0", again)
        await world.sees(again, Started)


async def test_what_runs_ends_at_once_when_another_agent_has_begun_a_life_under_the_nodes_name(world, start):
    """A machine that was copied with its credential: what ran here was given away with that life, and went on for a lease."""
    async with start(lease_s=60.0) as agent:
        wanted = part(spec(FOREVER))
        await world.want("n0", wanted)
        await world.sees(wanted, Started)
        mine = await world.joined("n0")
        world.lives["n0"].append(mine + 1)
        await until(lambda: not agent.nodes["n0"].parts)
        assert agent.nodes["n0"].incarnation == mine, "it does not take the name from the other one"
        assert world.of(wanted, Released) == []


async def test_samples_tell_how_busy_devices_are(world, start):
    async with start():
        await world.want("n0", part())
        await until(lambda: any(s.devices[0].utilization_pct > 80 for s in world.samples))
        assert world.samples[-1].devices[1].utilization_pct == 0
        assert world.samples[-1].incarnation == world.lives["n0"][0]


async def test_devices_that_cannot_be_read_end_nothing(world, start, monkeypatch):
    """An agent whose driver said what no sample may say ended with its first one, after each start."""
    read, asked = SimulatedLayer.sample, []

    def fails(layer, busy):
        asked.append(layer)
        if len(asked) < 3:
            raise RuntimeError("the driver is ill")
        return read(layer, busy)

    monkeypatch.setattr(SimulatedLayer, "sample", fails)
    async with start():
        await until(lambda: world.samples)
    assert len(asked) >= 3


async def test_draining_saves_what_runs_and_then_all_nodes_leave_together(world, start):
    async with start(nodes=2) as agent:
        wanted = part(simulated(600, checkpoint=CheckpointPolicy()))
        await world.want("n0", wanted)
        await world.sees(wanted, Started)
        await agent.drain(10)
        assert not agent.reports.backlog()
        await world.sees(wanted, CheckpointTaken)
        await until(lambda: len(world.farewells) == 2)
        assert {(left.node, left.incarnation) for left in world.farewells} == {
            (name, world.lives[name][0]) for name in ("n0", "n1")
        }
        assert all(left.planned for left in world.farewells)
        assert world.of(wanted, Released) == []


async def test_a_gang_over_two_nodes_of_one_agent_meets_on_loopback(world, start):
    code = "import os; print(*(os.environ[n] for n in ('MASTER_ADDR', 'MASTER_PORT', 'RANK', 'NODE_RANK')))"
    async with start(nodes=2) as agent:
        nodes = ("n0", "n1")
        halves = [
            part(spec(code), rank(f"n{i}-gpu0", number=i), key="gang", world_size=2, node_rank=i, nodes=nodes)
            for i in range(2)
        ]
        for i, half in enumerate(halves):
            await world.want(f"n{i}", half)
        await until(lambda: len(world.of(halves[0], Released)) >= 2)
        lines = [agent.read_log(LogQuery(job_id=halves[0].job_id, rank=i), "blue").text.split() for i in range(2)]
        assert [line[0] for line in lines] == ["127.0.0.1"] * 2
        assert lines[0][1] == lines[1][1]
        assert [line[2:] for line in lines] == [["0", "0"], ["1", "1"]]


async def test_a_full_disk_delays_the_next_life_and_ends_nothing_else(world, start, tmp_path):
    async with start(nodes=2) as agent:
        node, other = agent.nodes["n0"], agent.nodes["n1"]
        in_the_way = tmp_path / "agent" / "incarnations.json.new"
        in_the_way.mkdir()  # as good as a full disk: it cannot be opened for writing
        before = node.incarnation
        waits = asyncio.create_task(agent.new_lives([node], "a test"))
        await until(lambda: node.dying)
        await agent.new_lives([node], "somebody else's reason")
        assert node.incarnation == before, "a second reason begins no second life"
        wanted = part(simulated(0.01), rank("n1-gpu0"), nodes=("n1",))
        await world.want("n1", wanted)
        await world.sees(wanted, Released)
        assert not waits.done()
        in_the_way.rmdir()
        await waits
        assert node.incarnation > before == other.incarnation
        assert not node.dying


def test_incarnations_grow_over_restarts_and_over_the_loss_of_the_state(tmp_path):
    first = AgentState(tmp_path / "a")
    (one,) = first.next_incarnations(["n0"]).values()
    first.close()
    again = AgentState(tmp_path / "a")
    assert again.next_incarnations(["n0"])["n0"] > one
    again.close()
    lost = AgentState(tmp_path / "b")
    assert lost.next_incarnations(["n0"])["n0"] >= one
    lost.close()


def test_a_state_that_came_back_from_an_old_copy_gives_no_number_a_second_time(tmp_path):
    """The pool took the node's next life for the one that it knew, and what had run in that was started again (the
    simulation, with disks that come back)."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "incarnations.json").write_text('{"n0": 1700000000}')
    state = AgentState(tmp_path)
    assert state.next_incarnations(["n0"])["n0"] >= int(time.time()) - 5
    state.close()


@pytest.mark.parametrize(
    "found", ["", "null", "[]", '"n0"', '{"n0": "x"}', '{"n0": null}', '{"n0": NaN}', '{"n0": 1e300}', f'{{"n0": {10**30}}}']
)  # fmt: skip
def test_what_is_no_list_of_incarnations_is_taken_for_a_lost_one(tmp_path, found):
    """An agent did not start any more, or began a life of a number that no pool takes."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "incarnations.json").write_text(found)
    state = AgentState(tmp_path)
    number = state.next_incarnations(["n0"])["n0"]
    assert type(number) is int
    assert int(time.time()) - 5 <= number < 2**62
    assert state.incarnations() == {"n0": number}
    state.close()


def test_two_agents_may_not_share_a_state_directory(tmp_path):
    first = AgentState(tmp_path)
    with pytest.raises(StateInUse, match="another agent runs on"):
        AgentState(tmp_path)
    first.close()
    AgentState(tmp_path).close()


async def test_a_dropped_cancellation_does_not_keep_an_agent_from_ending(start):
    """As a request of nats-py drops it in Python 3.11."""

    async def deaf() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    async with start() as agent:
        agent.asker.run = deaf
        asking = asyncio.create_task(agent.run_ask())
        await asyncio.sleep(0.05)
        async with asyncio.timeout(20):
            await cancel(asking)
