"""A node that says of others what is not so: what it says is refused, and theirs is as it was."""

from typing import Any

import pytest

from schemas import inbox, ledger
from schemas.resources import Device, DeviceKind, Inventory, MigBoard, MigProfile, Position, Runtime
from tests.core.builders import GIB, World, job, node

ONE_G = MigProfile(name="1g.10gb", compute_slices=1, memory_slices=1, memory_mib=9728, starts=(0, 1), limit=7)


def cut(name: str, board: str, *devices: str, told: bool = True) -> Inventory:
    """A node with one MIG board; not `told`: its instances alone name it."""
    one = MigBoard(id=board, index=0, model="H100", memory_mib=80 * GIB, profiles=(ONE_G,), dynamic=True)
    instances = tuple(
        Device(
            id=id, index=0, kind=DeviceKind.MIG, model="H100", memory_mib=9728, mig_profile="1g.10gb", parent=board,
            mig_start=n,
        )
        for n, id in enumerate(devices)
    )  # fmt: skip
    return Inventory(node=name, devices=instances, boards=(one,) if told else (), simulated=True)


def answer(w: World, inventory: Inventory, incarnation: int = 1) -> str:
    """Why it may not join; "" when it did."""
    (event,) = w.send(inbox.NodeRegistered(incarnation=incarnation, inventory=inventory, lease_s=10))
    return "" if isinstance(event, ledger.NodeJoined) else event.reason


def test_a_board_of_another_node_is_refused() -> None:
    """Its rows, its repartitions and its account are kept under its id: a node that named another's had them."""
    w = World(cut("n0", "board-0", "n0-a"), node("n1"))
    for liar in (
        cut("n9", "board-0", "n9-a"),
        cut("n9", "board-0", "n9-a", told=False),
        cut("n9", "n1-gpu3", "n9-a"),
        node("n9").model_copy(update={"devices": (node("n1").devices[0].model_copy(update={"id": "board-0"}),)}),
    ):
        assert "already belongs to node" in answer(w, liar)
    assert w.decider.state.fleet.boards["board-0"].node == "n0"
    assert "names board n9-a twice" in answer(w, cut("n9", "n9-a", "n9-a"))
    assert answer(w, cut("n9", "board-9", "n9-a")) == ""
    w.send(inbox.NodeLost(node="n0", incarnation=1, silent_s=30))
    assert answer(w, cut("n8", "board-0", "n8-a")) == "", "the board was moved from a machine that is gone"


@pytest.mark.parametrize(
    "lie",
    [
        {"fetch_mib_s": 2**63 - 1},
        {"devices": (Device(id="n9-a", index=2**62, model="H100", memory_mib=1),)},
        {"devices": (Device(id="n9-a", index=0, model="H100", memory_mib=1, memory_free_mib=2**63 - 1),)},
        {"labels": {"a" * 600: "b"}},
        {"position": Position(leaf="l" * 600)},
    ],
)
def test_numbers_and_names_beyond_any_machine_are_refused_with_a_word(lie: dict[str, Any]) -> None:
    """Arrays do not take them, so the decision failed, and the whole batch was decided again without it."""
    assert "node n9:" in answer(World(), node("n9").model_copy(update=lie))


def test_labels_take_so_much_room_in_each_list_of_nodes_and_no_more() -> None:
    """One node made each list 225 KB longer, and eighteen of them more than a broker's message takes: nobody had one."""
    w = World()

    def labelled(name: str, characters: int) -> Inventory:
        return node(name).model_copy(update={"labels": {f"k{n:03}": "x" * 508 for n in range(characters // 512)}})

    assert "its labels have 16896 characters together; 16384 is the most" in answer(w, labelled("n9", 16_896))
    assert answer(w, labelled("n8", 16_384)) == ""


def test_a_life_of_a_number_made_up_leaves_the_name_others() -> None:
    """2^63 - 1 is the last one there is: after it nobody could have used the name again."""
    w = World(node("n0"))
    assert "remove incarnations.json" in answer(w, node("n0"), incarnation=2**63 - 1)
    number = 1
    for _ in range(10):
        number += 2**32
        assert answer(w, node("n0"), incarnation=number) == ""
    assert number < 2**40, "at one a minute the others last for thousands of years"


def test_what_a_node_says_of_its_racks_power_ends_with_it() -> None:
    """A node that says it stands in another's rack, which may draw one watt, holds that rack up until it is cut off."""
    watts = [one.model_copy(update={"power_limit_w": 700}) for one in node("n0").devices]
    w = World(node("n0").model_copy(update={"devices": tuple(watts)}))
    assert answer(w, node("n9", 1).model_copy(update={"rack_power_w": 1})) == ""
    waits = w.submit(job("train", 8))
    assert w.state_of(waits) == "queued"
    w.send(inbox.NodeLost(node="n9", incarnation=1, silent_s=30))
    assert w.state_of(waits) == "granted"
    assert not w.checker.finish().violations


def test_names_that_are_kept_for_ever_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libs.core.scheduling.allowances.NAMES", 40)
    w = World()

    def anew(life: int) -> Inventory:
        told = [one.model_copy(update={"nvlink_domain": f"{life}-{one.index}"}) for one in node("n9").devices]
        return node("n9").model_copy(update={"devices": tuple(told)})

    said = [answer(w, anew(life), life) for life in range(1, 7)]
    assert [bool(why) for why in said] == [False] * 4 + [True] * 2
    assert "kept for ever" in said[-1]
    assert answer(w, anew(4), 8) == "", "what is known costs nothing"


def of(name: str, *devices: Device, **more: Any) -> Inventory:
    return Inventory(node=name, devices=devices, simulated=True, **more)


def device(name: str, index: int = 0, **more: Any) -> Device:
    return Device(id=f"{name}-{index}", index=index, memory_mib=1024, **more)


@pytest.mark.parametrize(
    "kinds", [("gpu", "H100"), ("cpu", "CPU")], ids=["which go to jobs that name none", "which are there twice"]
)
def test_processors_that_cannot_be_granted_beside_each_other_are_refused(kinds: tuple[str, str]) -> None:
    """Jobs of any team were planned there, and ended at their grant for what the node did not have."""
    kind, model = kinds
    own = [device("n9", n, kind=kind, model=model, runtime=Runtime.CPU) for n in range(2)]
    w = World()
    both = w.submit(job("both", 2, types=(model,)))
    assert "n9-0" in answer(w, of("n9", *own, cpus=8, memory_mib=1024))
    assert w.state_of(both) == "queued"
    assert answer(w, of("n9", device("n9", kind="cpu", model="CPU", runtime=Runtime.CPU), cpus=8)) == ""


@pytest.mark.parametrize("model", ["H100:1g.10gb", ":1g.10gb", "*", "H100*"])
def test_a_model_that_reads_as_another_kind_is_refused(model: str) -> None:
    """Of an instance of such a model the accounts had another part of its board than who verified them, for good."""
    w = World()
    assert "leave" in answer(w, of("n9", device("n9", kind="mig", model=model, mig_profile="3g.40gb", parent="b")))
    board = MigBoard(id="b", index=0, model=model, memory_mib=1024, profiles=())
    assert "leave" in answer(w, of("n9", boards=(board,)))
    assert "leave" in answer(w, of("n9", device("n9", kind="mig", model="H100", mig_profile="1g:x", parent="b")))


@pytest.mark.parametrize("model", ["h100", "H100-SXM5-80GB"])
def test_a_model_by_another_name_of_it_is_as_much_to_who_verifies(model: str) -> None:
    w = World(of("n9", device("n9", kind="mig", model=model, mig_profile="1g.10gb")))
    w.send(inbox.Tick(), after_us=1_000_000)
    w.check()


def test_an_instance_of_another_model_than_its_boards_is_refused() -> None:
    """More was told to be of no use to who waits than the accounts had idle: a violation that stays in the ledger."""
    w, told = World(node("n0")), cut("n9", "n9-b", "n9-a")
    strange = tuple(one.model_copy(update={"model": "A30"}) for one in told.devices)
    assert "an instance is of its board's model" in answer(w, told.model_copy(update={"devices": strange}))
    assert answer(w, told) == ""


def test_processors_by_another_name_are_no_accelerators_to_who_verifies() -> None:
    w = World(of("n9", device("n9", kind="cpu", model="cpu", runtime=Runtime.CPU)))
    w.send(inbox.QuotaChanged(team="research", limit_milli=0))
    assert w.state_of(w.submit(job("a", types=("cpu",)))) == "granted"
    w.check()


def test_a_node_that_says_twice_what_it_has_on_its_disk_can_come_again() -> None:
    """Its next life could not be decided, so all that came with it was decided twice."""
    w = World(node("n9").model_copy(update={"contents": ("image", "image")}))
    assert answer(w, node("n9").model_copy(update={"contents": ("other",)}), incarnation=2) == ""
    assert set(w.decider.state.fleet.content_nodes) == {"other"}
    w.check()


@pytest.mark.parametrize("model", ["CPU", "cpu"])
def test_processors_that_say_they_are_a_gpu_are_refused(model: str) -> None:
    """Jobs that name no model got them, whatever their team's limit on such devices: a violation that stays in the ledger."""
    assert "say its kind" in answer(World(), of("n9", device("n9", model=model)))


def test_a_chip_at_the_place_of_anothers_is_refused() -> None:
    """One was enough: nobody was granted a slice of that torus any more."""

    def host(name: str, *places: tuple[int, int]) -> Inventory:
        more = {"kind": "tpu", "model": "v5e", "runtime": Runtime.TPU, "torus": "pod", "torus_shape": (2, 4)}
        return of(name, *(device(name, n, torus_at=at, **more) for n, at in enumerate(places)))

    w = World(host("h0", (0, 0), (0, 1), (1, 0), (1, 1)), host("h1", (0, 2), (0, 3), (1, 2), (1, 3)))
    assert "where one of node h0 is" in answer(w, host("n9", (0, 0)))
    slice_ = job("slice", 4)
    asked = slice_.spec.resources.model_copy(update={"torus": (2, 2), "types": ("v5e",)})
    spec = slice_.spec.model_copy(update={"resources": asked})
    assert w.state_of(w.submit(slice_.model_copy(update={"spec": spec}))) == "granted"
    w.send(inbox.NodeLost(node="h1", incarnation=1, silent_s=30))
    said = answer(w, host("n9", (0, 2), (1, 3), (1, 3)))
    assert "at (1, 3) of torus" in said
    assert "where one of node n9 is" in said
    assert answer(w, host("n9", (0, 2), (0, 3), (1, 2), (1, 3))) == "", "it stands for the one that is gone"
    w.check()


def test_chips_that_lie_in_no_box_as_other_hosts_are_refused() -> None:
    """At places that nobody has, of hosts that are away: with them no box of hosts was seen in the whole torus."""

    def host(name: str, *places: tuple[int, int]) -> Inventory:
        more = {"kind": "tpu", "model": "v5e", "runtime": Runtime.TPU, "torus": "pod", "torus_shape": (4, 4)}
        return of(name, *(device(name, n, torus_at=at, **more) for n, at in enumerate(places)))

    w = World(host("h0", (2, 0), (2, 1), (3, 0), (3, 1)), host("h1", (2, 2), (2, 3), (3, 2), (3, 3)))
    assert "lie in no box" in answer(w, host("n9", (0, 0), (0, 3)))
    assert answer(w, host("n9", (0, 0), (0, 1), (1, 1))) == "", "a host may lack a chip"
