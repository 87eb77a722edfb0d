"""What the agent decides, without any I/O: each rule by name, then random histories over a lossy, reordering network."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.nodes import Action, DesiredPart, DesiredState
from schemas.resources import Device, Inventory
from services.agent.node import NodeCounts, NodeRunner
from services.agent.reconcile import Forget, HeldPart, Phase, Refuse, Running, Save, Start, Stop, concerns, follow, plan
from tests.agent.build import but, part, rank, simulated, spec, state

DEVICES = frozenset({"n0-gpu0", "n0-gpu1"})


def view(**fields) -> Running:
    return Running(**{"node": "n0", "incarnation": 1, "devices": DEVICES, "simulated": True} | fields)


def step(seen: Running, desired: DesiredState, lease_valid: bool = True):
    actions = plan(desired, seen, lease_valid)
    follow(seen, desired, actions)
    return actions


def key(wanted: DesiredPart):
    return wanted.job_id, wanted.attempt


def test_a_new_part_is_started_once():
    seen, wanted = view(), part()
    assert step(seen, state(wanted)) == [Start(wanted)]
    assert step(seen, state(wanted)) == []
    assert step(seen, state(wanted, seq=2)) == []


def test_an_ended_part_is_not_started_again_and_forgotten_when_the_state_drops_it():
    seen, wanted = view(), part()
    step(seen, state(wanted))
    seen.parts[key(wanted)].phase = Phase.ENDED
    assert step(seen, state(wanted, seq=2)) == []
    assert step(seen, state(seq=3)) == [Forget(key(wanted))]
    assert seen.parts == {}


def test_states_of_another_life_or_an_older_ledger_do_not_concern_the_node():
    seen = view(ledger_seq=5)
    assert concerns(state(seq=5), seen)
    assert not concerns(state(seq=4), seen)
    assert not concerns(state(seq=6, incarnation=2), seen)
    assert not concerns(state(seq=6, node="n1"), seen)


def test_a_stale_epoch_is_refused():
    seen = view(epochs={"n0-gpu0": 7})
    wanted = part(None, rank(epoch=7))
    (refused,) = step(seen, state(wanted))
    assert isinstance(refused, Refuse)
    assert "epoch 7 of device n0-gpu0 is stale: 7 was seen" in refused.reason
    assert step(seen, state(wanted)) == []  # remembered until the state drops it


def test_two_new_shares_of_one_device_in_one_state_both_start():
    seen = view()
    parts = part(None, rank(epoch=2, milli=400)), part(None, rank(epoch=1, milli=600))
    assert step(seen, state(*parts)) == [Start(parts[0]), Start(parts[1])]


def test_what_was_granted_later_on_a_device_waits_for_a_part_without_a_lease():
    """Else the earlier one would be stale once it has a lease again."""
    seen = view()
    short, long = part(None, rank(milli=400), lease_s=5.0), part(None, rank(epoch=2, milli=400))
    elsewhere = part(None, rank("n0-gpu1"))
    wanted = state(short, long, elsewhere)
    actions = plan(wanted, seen, lease_left=lambda one: one.lease_s != 5.0)
    follow(seen, wanted, actions)
    assert actions == [Start(elsewhere)]
    assert step(seen, state(short, long, elsewhere)) == [Start(short), Start(long)]


def test_a_device_that_is_still_occupied_is_not_granted_twice():
    seen, first, second = view(), part(), part(None, rank(epoch=2))
    step(seen, state(first))
    actions = step(seen, state(second, seq=2))
    assert actions[0] == Stop(key(first))
    assert isinstance(actions[1], Refuse)
    assert "still occupied" in actions[1].reason


def test_unknown_devices_are_refused():
    (refused,) = step(view(), state(part(None, rank("n9-gpu0"))))
    assert "n9-gpu0 is not on this node" in refused.reason


def test_a_simulation_is_refused_on_real_devices():
    (refused,) = step(view(simulated=False), state(part(simulated())))
    assert "the devices of this node are real" in refused.reason
    assert isinstance(step(view(simulated=False), state(part(spec("pass"))))[0], Start)


def test_without_a_lease_nothing_starts_and_nothing_is_refused():
    seen, wanted = view(), part()
    assert step(seen, state(wanted), lease_valid=False) == []
    assert step(seen, state(wanted)) == [Start(wanted)]


def test_a_part_whose_own_lease_is_over_is_not_started_and_not_refused():
    """It was started and killed at once, twenty times in three seconds, until its job had no tries left (simulation)."""
    now, seen = 0.0, []
    inventory = Inventory(
        node="n0", devices=(Device(id="n0-gpu0", index=0, model="V100", memory_mib=1),), simulated=True
    )
    node = NodeRunner(
        inventory=inventory, layer=None, lease_s=12.0, now=lambda: now, make_part=lambda *a: seen.append("started"),
        adopt_part=None, report=lambda *a: seen.append(type(a[2]).__name__), counts=NodeCounts(),
    )  # fmt: skip
    node.begin(1)
    node.renewed(0.0)
    wanted = state(part(lease_s=5.0))
    now = 6.0
    node.follow(wanted)
    assert seen == ["NodeRegistered"]
    node.renewed(6.0)
    node.follow(wanted)
    assert seen == ["NodeRegistered", "started"]


def test_orders_only_grow_from_run_over_save_to_stop():
    seen, wanted = view(), part()
    step(seen, state(wanted))
    assert step(seen, state(but(wanted, Action.CHECKPOINT), seq=2)) == [Save(key(wanted))]
    assert step(seen, state(but(wanted, Action.CHECKPOINT), seq=3)) == []
    assert step(seen, state(but(wanted, Action.STOP), seq=4)) == [Stop(key(wanted))]
    assert step(seen, state(but(wanted, Action.CHECKPOINT), seq=5)) == []
    assert step(seen, state(seq=6)) == []  # it is still on its way out
    assert seen.parts[key(wanted)].phase is Phase.STOPPING


def test_what_never_started_is_given_back_when_it_should_stop():
    (refused,) = step(view(), state(but(part(), Action.STOP)))
    assert "never started" in refused.reason


def test_a_missing_part_is_stopped():
    seen, wanted = view(), part()
    step(seen, state(wanted))
    assert step(seen, state(seq=2)) == [Stop(key(wanted))]


# ------------------------------------------------------------------------------- random histories, lossy network


@st.composite
def histories(draw):
    """What placement publishes: whole-device grants on two devices, stops, frees; some parts end by themselves."""
    running: dict[str, DesiredPart] = {}
    epochs = dict.fromkeys(sorted(DEVICES), 0)
    published: list[DesiredState] = []
    for seq in range(1, draw(st.integers(2, 14))):
        device = draw(st.sampled_from(sorted(DEVICES)))
        if device not in running:
            epochs[device] += 1
            running[device] = part(None, rank(device, epochs[device]), key=f"{device}/{epochs[device]}")
        elif draw(st.booleans()):
            running[device] = but(running[device], draw(st.sampled_from([Action.CHECKPOINT, Action.STOP])))
        else:
            del running[device]
        published.append(state(*running.values(), seq=seq))
    return published


@settings(max_examples=300, deadline=None)
@given(histories(), st.data())
def test_over_any_network_each_attempt_starts_once_and_no_device_is_overfilled(published, data):
    """States are lost, repeated and reordered; parts end when they like; yet the last state is what runs."""
    seen = view()
    starts: dict[tuple[str, int], int] = {}
    delivered = data.draw(st.lists(st.sampled_from(published), max_size=25))
    for desired in [*delivered, published[-1], published[-1]]:
        if not concerns(desired, seen):
            continue
        actions = step(seen, desired, lease_valid=data.draw(st.booleans()) or desired is published[-1])
        for action in actions:
            if isinstance(action, Start):
                starts[key(action.part)] = starts.get(key(action.part), 0) + 1
        for device in DEVICES:
            held = [h for h in seen.parts.values() if device in h.milli and h.phase is not Phase.ENDED]
            assert len(held) <= 1, "two attempts on one device"
        if data.draw(st.booleans()):
            for stopping in [h for h in seen.parts.values() if h.phase > Phase.RUNNING]:
                stopping.phase = Phase.ENDED
    assert all(times == 1 for times in starts.values()), starts
    wanted = {key(p) for p in published[-1].parts}
    assert all(k in wanted for k, held in seen.parts.items() if held.phase is Phase.RUNNING)
    assert wanted <= seen.parts.keys()


@given(st.lists(st.sampled_from([1, 2, 3]), max_size=6))
def test_planning_changes_nothing(epochs):
    seen = view(parts={("job-" + "0" * 32, 1): HeldPart({"n0-gpu1": 1000})})
    before = replace(seen, parts=dict(seen.parts), epochs=dict(seen.epochs))
    plan(state(*(part(None, rank(epoch=epoch, milli=100)) for epoch in epochs)), seen)
    assert (seen.parts, seen.epochs, seen.ledger_seq) == (before.parts, before.epochs, before.ledger_seq)
