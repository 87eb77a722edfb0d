"""The fragmentation measure F against the paper's formula, by hand and on random nodes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.placement.score.fragmentation import fragmentation
from libs.core.placement.view import View
from libs.core.state.fleet import Fleet
from libs.core.state.shape import Shape
from schemas.resources import Device, Inventory
from tests.core.builders import GIB, node


def machine(name: str, devices: int, cpus: int, model: str = "T4") -> Inventory:
    offered = tuple(Device(id=f"{name}-{i}", index=i, model=model, memory_mib=16 * GIB) for i in range(devices))
    return Inventory(node=name, devices=offered, cpus=cpus)


def view_of(*nodes: Inventory) -> View:
    fleet = Fleet()
    for inventory in nodes:
        fleet.join(inventory, 1)
    return View.of(fleet)


def test_what_is_too_small_for_a_task_is_fragmented_for_it():
    view = view_of(machine("a", 2, 64))
    view.free_milli[:2] = [1000, 300]
    assert fragmentation(view, [(Shape(devices=1), 1.0)])[0] == 300
    assert fragmentation(view, [(Shape(devices=1, milli=200), 1.0)])[0] == 0
    assert fragmentation(view, [(Shape(devices=2), 1.0)])[0] == 1300, "it cannot run here: all that is free"
    mix = [(Shape(devices=1), 0.5), (Shape(devices=2), 0.25), (Shape(devices=1, milli=200), 0.25)]
    assert fragmentation(view, mix)[0] == pytest.approx(0.5 * 300 + 0.25 * 1300)


def test_devices_are_stranded_when_the_processors_are_gone():
    view = view_of(machine("a", 2, 8))
    task = [(Shape(devices=2, cpu_milli=4000), 1.0)]
    assert fragmentation(view, task)[0] == 0
    view.free_cpu[0] = 7999
    assert fragmentation(view, task)[0] == 2000


def test_devices_of_another_kind_and_jobs_without_one_leave_everything_unused():
    view = view_of(machine("a", 2, 8, "T4"), machine("b", 2, 8, "A10"))
    assert fragmentation(view, [(Shape(devices=1, types=("T4", "V100")), 1.0)])[:2].tolist() == [0, 2000]
    assert fragmentation(view, [(Shape(devices=1, types=("CPU",)), 1.0)])[:2].tolist() == [2000, 2000]
    assert fragmentation(view, [(Shape(devices=0, cpu_milli=1000), 1.0)])[:2].tolist() == [2000, 2000]


def test_a_gang_larger_than_any_node_uses_whole_nodes():
    view = view_of(node("a", 4), node("b", 4))
    view.free_milli[4] = 0
    assert fragmentation(view, [(Shape(devices=16), 1.0)])[:2].tolist() == [0, 3000]


def test_an_empty_pool_and_a_node_that_left_have_nothing_to_waste():
    assert not fragmentation(View.of(Fleet()), [(Shape(devices=1), 1.0)]).any()
    fleet = Fleet()
    fleet.join(machine("a", 2, 8), 1)
    fleet.leave("a")
    assert fragmentation(View.of(fleet), [(Shape(devices=1, types=("X",)), 1.0)])[0] == 0


TASKS = st.builds(
    lambda devices, milli, cpu, types: Shape(
        devices=devices, milli=milli if devices == 1 else 1000, cpu_milli=cpu, types=types
    ),
    st.integers(1, 3),
    st.sampled_from([200, 500, 1000]),
    st.sampled_from([0, 1000, 3000]),
    st.sampled_from([(), ("T4",), ("A10", "T4")]),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1000), min_size=3, max_size=3), st.integers(0, 9), st.sampled_from(["T4", "A10"])
        ),
        min_size=1,
        max_size=3,
    ),
    st.lists(TASKS, min_size=1, max_size=4),
)
def test_it_is_the_formula_of_the_paper(nodes, tasks):
    view = view_of(*(machine(f"n{i}", 3, 9, model) for i, (_, _, model) in enumerate(nodes)))
    expected = np.zeros(len(nodes))
    for i, (free, cpus, model) in enumerate(nodes):
        view.free_milli[3 * i : 3 * i + 3] = free
        view.free_cpu[i] = 1000 * cpus
        for task in tasks:
            fits = sum(g >= task.milli for g in free) >= task.devices and 1000 * cpus >= task.devices * task.cpu_milli
            runs = fits and (not task.types or model in task.types)
            expected[i] += sum(g for g in free if g < task.milli or not runs) / len(tasks)
    found = fragmentation(view, [(task, 1 / len(tasks)) for task in tasks])
    assert found[: len(nodes)] == pytest.approx(expected)
