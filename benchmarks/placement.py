"""`python -m benchmarks.placement`: what a placement decision costs, in time and memory.

A decision is `find(...)` and `View.take` of what it answers. Measured in one process, one thread, on prepared fleets:

Scores come from a mix of requests; `Scorer.upkeep` learns it between decisions and is timed apart.

- *openb*: 6,212 GPUs of 1,213 nodes (the kinds of nodes and the requests of Alibaba's trace v2023, from
  `benchmarks/data`), filled to 90 %; then one job comes, one goes. Full scoring, the fast path (`Context(fast=True)`) and a
  plain numpy first-fit decide the same jobs from the same start. Jobs without GPUs are left out.
- *hundred thousand*: 12,500 nodes of 8 in leaves of 32 and spines of 16 leaves, one leaf in ten empty, the others filled
  at random to 60 %: one device each, and a gang of 512.
- *memory*: bytes per device of the arrays that a search reads, and of everything that a pool of that size keeps.
- *growth*: the same decision on 1,000 to 100,000 devices, and one cycle with 10 to 10,000 jobs waiting.

Writes `benchmarks/results/placement.json` and `docs/img/placement-cost.svg`.
"""

import argparse
import csv
import time
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import chart, machine
from libs.core.placement.answer import Placed
from libs.core.placement.find import find
from libs.core.placement.score.mix import Mix, kind_of
from libs.core.placement.score.scorer import Scorer
from libs.core.placement.view import Context, View
from libs.core.scheduling.cycle import plan
from libs.core.state.fleet import Fleet
from libs.core.state.job import Job
from libs.core.state.model import State
from libs.core.state.shape import Shape
from libs.core.state.waiting import enqueue
from schemas.jobs import JobSpec
from schemas.resources import WHOLE_MILLI, Device, Inventory, Level, Objective, Position

DATA = Path(__file__).resolve().parent / "data"
IMAGE = Path(__file__).resolve().parents[1] / "docs" / "img" / "placement-cost.svg"
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
QUEUES = (10, 100, 1_000, 10_000)
SEED = 42
ONE = Shape(devices=1, cpu_milli=8000, host_mib=32768, objective=Objective.ANY.value)

Rows = Any
"""Rows for a shape, or None when it does not fit."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=2000, help="timed decisions on openb")
    parser.add_argument("--largest", type=int, default=100_000, help="devices of the largest fleet")
    options = parser.parse_args()
    machine.show_progress()
    about = machine.describe()
    result: dict[str, Any] = {"machine": about, "seed": SEED}
    result["openb"] = _openb(options.decisions)
    result["largest"], result["memory"] = _largest(options.largest, max(100, options.decisions // 4))
    sizes = [n for n in SIZES if n <= options.largest]
    result["growth_devices"] = _growth(sizes, max(100, options.decisions // 10))
    result["growth_waiting"] = _cycles()
    print(f"written to {machine.write('placement', result)}")
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    IMAGE.write_text(_picture(result), encoding="utf-8")
    print(f"written to {IMAGE}")


# ---------------------------------------------------------------------------------------------------- who decides


class Full:
    """The engine as the service runs it: scores by what a placement costs the requests to come."""

    def __init__(self, view: View) -> None:
        self.scorer = view.scorer = learned()

    def __call__(self, view: View, shape: Shape) -> Rows:
        placed = find(view, shape)
        return placed.rows if isinstance(placed, Placed) else None

    def learn(self, view: View, shape: Shape) -> None:
        self.scorer.observe(shape)
        self.scorer.upkeep(view)


class Fast:
    """The engine for latency-critical jobs: the first good fit."""

    def __init__(self, view: View) -> None:
        self.context = Context(fast=True)

    def __call__(self, view: View, shape: Shape) -> Rows:
        placed = find(view, shape, context=self.context)
        return placed.rows if isinstance(placed, Placed) else None

    def learn(self, view: View, shape: Shape) -> None:
        pass


class FirstFit:
    """The floor: the first node, in order, with room for all of it; plain numpy over a (node, device) matrix."""

    def __init__(self, view: View) -> None:
        fleet = view.fleet
        rows = np.flatnonzero(fleet.up)
        nodes, slots = len(fleet.nodes), int(fleet.index[rows].max()) + 1
        self.row = np.full((nodes, slots), -1)
        self.row[fleet.node[rows], fleet.index[rows]] = rows
        self.missing = self.row < 0

    def __call__(self, view: View, shape: Shape) -> Rows:
        free = np.where(self.missing, -1, view.free_milli[self.row])
        fits, n = free >= shape.milli, len(free)
        good = (fits.sum(1) >= shape.devices) & (view.free_cpu[:n] >= shape.cpu_milli * shape.devices)
        good &= view.free_host[:n] >= shape.host_mib * shape.devices
        at = int(np.argmax(good))
        if not good[at]:
            return None
        if shape.whole:
            return self.row[at, np.flatnonzero(fits[at])[: shape.devices]]
        return self.row[at, [int(np.argmin(np.where(fits[at], free[at], 1 << 30)))]]

    def learn(self, view: View, shape: Shape) -> None:
        pass


Decider = Full | Fast | FirstFit
DECIDERS: dict[str, type[Decider]] = {"full": Full, "fast": Fast, "first_fit": FirstFit}


def learned() -> Scorer:
    """A scorer that knows openb's mix from the start."""
    shapes, shares = mix()
    return Scorer(Mix.expecting((kind_of(shape), float(share)) for shape, share in zip(shapes, shares, strict=True)))


# ---------------------------------------------------------------------------------------------------- pools and jobs


def openb_fleet() -> Fleet:
    """1,213 nodes, 6,212 GPUs. The trace names no device memory: 16 GiB everywhere."""
    fleet = Fleet()
    for kind in _table("openb_nodes.csv"):
        for _ in range(int(kind["count"])):
            name = f"n{len(fleet.nodes):04}"
            fleet.join(
                Inventory(
                    node=name,
                    devices=_devices(name, int(kind["devices"]), kind["model"]),
                    cpus=int(kind["cpu_milli"]) // 1000,
                    memory_mib=int(kind["memory_mib"]),
                ),
                1,
            )
    return fleet


def tree_fleet(devices: int) -> Fleet:
    """Nodes of 8 devices in leaves of 32 nodes and spines of 16 leaves."""
    fleet = Fleet()
    for i in range(devices // 8):
        name, leaf = f"n{i:05}", i // 32
        fleet.join(
            Inventory(
                node=name,
                position=Position(leaf=f"leaf-{leaf}", spine=f"spine-{leaf // 16}"),
                devices=_devices(name, 8, "H100"),
                cpus=128,
                memory_mib=1 << 20,
            ),
            1,
        )
    return fleet


def _devices(node: str, count: int, model: str) -> tuple[Device, ...]:
    return tuple(Device(id=f"{node}-{i}", index=i, model=model, memory_mib=16384) for i in range(count))


def mix() -> tuple[list[Shape], Any]:
    """The shapes of openb's requests for GPUs, and their shares. A request's processors and memory are spread over its
    devices."""
    table = _table("openb_mix.csv")
    shapes = [
        Shape(
            devices=int(r["devices"]),
            milli=int(r["milli"]),
            cpu_milli=int(r["cpu_milli"]) // int(r["devices"]),
            host_mib=int(r["memory_mib"]) // int(r["devices"]),
            required=True,
            objective=Objective.ANY.value,
        )
        for r in table
    ]
    counts = np.array([int(r["count"]) for r in table], dtype=float)
    return shapes, counts / counts.sum()


def arrivals(seed: int) -> Iterator[Shape]:
    """Requests drawn from the mix, for ever."""
    shapes, shares = mix()
    rng = np.random.default_rng(seed)
    while True:
        for i in rng.choice(len(shapes), size=1024, p=shares):
            yield shapes[int(i)]


def _table(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def fill(view: View, load: float, seed: int) -> list[tuple[Rows, Shape]]:
    """Takes jobs in by first-fit until `load` of the compute is in use; what does not fit is dropped."""
    capacity = WHOLE_MILLI * int(np.count_nonzero(view.fleet.up))
    first_fit, used, running = FirstFit(view), 0, []
    for shape in arrivals(seed):
        rows = first_fit(view, shape)
        if rows is None:
            continue
        view.take(rows, shape)
        running.append((rows, shape))
        used += shape.devices * shape.milli
        if used >= load * capacity:
            return running
    raise AssertionError("arrivals never end")


def scatter(view: View, load: float, seed: int) -> None:
    """One leaf in ten empty, the other nodes with a random number of their 8 devices in use, `load` on average."""
    rng = np.random.default_rng(seed)
    nodes = len(view.fleet.nodes)
    busy = rng.binomial(8, load, nodes)
    busy[(np.arange(nodes) // 32) % 10 == 3] = 0
    rows = np.flatnonzero(view.fleet.up)
    view.take(rows[view.fleet.index[rows] < busy[view.fleet.node[rows]]], Shape(devices=1))


# ---------------------------------------------------------------------------------------------------- measurements


def _openb(decisions: int) -> dict[str, Any]:
    print("openb: filling 6,212 GPUs to 90 %")
    start = View.of(openb_fleet())
    running = fill(start, 0.9, SEED)
    result: dict[str, Any] = {
        "devices": len(start.fleet),
        "nodes": len(start.fleet.nodes),
        "load": 0.9,
        "running": len(running),
        "decisions": decisions,
    }
    for name in DECIDERS:
        result[name] = _churn(name, start.copy(), list(running), decisions)
    return _with_ratios(result)


def _churn(name: str, view: View, running: list[tuple[Rows, Shape]], decisions: int) -> dict[str, float]:
    """Times `decisions`; after each, jobs end at random until the load is what it was."""
    rng = np.random.default_rng(SEED)
    coming, decide = arrivals(SEED + 1), DECIDERS[name](view)
    _warm(decide, view, next(coming))
    taken, placed, times, learning = 0, 0, Times(), Times()
    for _ in _progress(name, decisions):
        shape = next(coming)
        with times:
            rows = decide(view, shape)
            if rows is not None:
                view.take(rows, shape)
        with learning:
            decide.learn(view, shape)
        if rows is None:
            continue
        placed += 1
        running.append((rows, shape))
        taken += shape.devices * shape.milli
        while taken > 0:
            at = int(rng.integers(len(running)))
            running[at], running[-1] = running[-1], running[at]
            ended, what = running.pop()
            view.give_back(ended, what)
            taken -= what.devices * what.milli
    upkeep = {"upkeep_mean_ms": learning.spread()["mean_ms"]} if name == "full" else {}
    return {**times.spread(), **upkeep, "placed": placed}


def _warm(decide: Decider, view: View, shape: Shape) -> None:
    """Compiles what is compiled, and builds what is kept."""
    decide.learn(view, shape)
    decide(view, shape)


def _timed(label: str, name: str, view: View, shape: Shape, count: int) -> dict[str, float]:
    """Times the same request again and again; each one takes its devices."""
    decide = DECIDERS[name](view)
    _warm(decide, view, shape)
    times, placed = Times(), 0
    for _ in _progress(label, count):
        with times:
            rows = decide(view, shape)
            if rows is not None:
                view.take(rows, shape)
        placed += rows is not None
    return {**times.spread(), "placed": placed}


def _largest(devices: int, count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    print(f"building {devices:,} devices, counting bytes")
    tracemalloc.start()
    fleet = tree_fleet(devices)
    everything, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    view = View.of(fleet)
    scatter(view, 0.6, SEED)
    kept, peak = _kept(view.copy())
    n = len(fleet)
    memory = {
        "devices": n,
        "fleet_arrays_bytes_per_device": round(_array_bytes(fleet) / n, 1),
        "view_arrays_bytes_per_device": round(_array_bytes(view) / n, 1),
        "scorer_arrays_bytes_per_device": round(kept / n, 1),
        "peak_of_a_search_bytes_per_device": round(peak / n, 1),
        "fleet_with_names_and_inventories_bytes_per_device": round(everything / n, 1),
    }
    print("  " + ", ".join(f"{k} {v}" for k, v in memory.items()))
    gang = Shape(devices=512, level=Level.SPINE)
    result: dict[str, Any] = {"devices": n, "nodes": len(fleet.nodes), "load": 0.54, "decisions": count}
    for name in DECIDERS:
        result[name] = _timed(name, name, view.copy(), ONE, count)
    result = _with_ratios(result)
    for name in ("full", "fast"):
        result[f"gang_512_{name}"] = _timed(f"gang of 512, {name}", name, view.copy(), gang, 9)
    return result, memory


def _kept(view: View) -> tuple[int, int]:
    """Bytes of the arrays that the scorer keeps after one decision on each shape of the mix, and the peak that the last
    of them allocated beside."""
    decide = Full(view)
    for shape in mix()[0]:
        _warm(decide, view, shape)
    tracemalloc.start()
    decide(view, ONE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return _deep_bytes(decide.scorer), peak


def _growth(sizes: list[int], count: int) -> list[dict[str, Any]]:
    """A single device, and a gang of 64 on one spine, on fleets of growing size filled alike."""
    result = []
    for size in sizes:
        view = View.of(tree_fleet(size))
        scatter(view, 0.6, SEED)
        row: dict[str, Any] = {"devices": len(view.fleet)}
        for name in DECIDERS:
            row[name] = _timed(f"{size:,}, {name}", name, view.copy(), ONE, count)
        gang = Shape(devices=64, level=Level.SPINE)
        row["gang_64"] = _timed(f"{size:,}, gang of 64", "full", view.copy(), gang, 3 if size < 3_000 else 9)
        result.append(row)
    return result


def _cycles() -> list[dict[str, Any]]:
    """One cycle on openb at 90 % with many jobs of its mix waiting: 20 teams, 4 priorities."""
    fleet = openb_fleet()
    view = View.of(fleet)
    fill(view, 0.9, SEED)
    fleet.free_milli, fleet.free_mib = view.free_milli, view.free_mib
    fleet.free_cpu, fleet.free_host = view.free_cpu, view.free_host
    fleet.scorer = learned()
    fleet.scorer.upkeep(View.of(fleet))
    plan(_waiting(fleet, 1), 1)
    result = []
    for count in QUEUES:
        state = _waiting(fleet, count)
        times = Times()
        for _ in range(5 if count < 10_000 else 3):
            with times:
                decided = plan(state, 2)
        row = {"waiting": count, "queues": len(state.queues), "grants": len(decided.grants), **times.spread()}
        print(f"  {count:,} waiting: {row['p50_ms']} ms, {row['grants']} grants")
        result.append(row)
    return result


def _waiting(fleet: Fleet, count: int) -> State:
    spec = JobSpec(name="waits", command=("true",))
    state, coming = State(fleet=fleet), arrivals(SEED + 2)
    for i in range(count):
        shape = next(coming)
        team = f"team-{i % 20}"
        job = Job(f"job-{i:06}", team, spec, "", i % 4, False, submitted_us=i, queued_us=i, shape=shape)
        state.jobs[job.id] = job
        enqueue(state, job)
    return state


# ---------------------------------------------------------------------------------------------------- helpers


class Times:
    """Wall and CPU time of what runs in `with times:`, s. CPU time leaves out what others on the machine took."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def __enter__(self) -> None:
        self._cpu, self._wall = time.thread_time(), time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.wall.append(time.perf_counter() - self._wall)
        self.cpu.append(time.thread_time() - self._cpu)

    def spread(self) -> dict[str, float]:
        """Mean, quantiles and maximum of wall time, and CPU time, ms."""
        wall, cpu = [1000 * t for t in self.wall], [1000 * t for t in self.cpu]
        return {
            "mean_ms": round(sum(wall) / len(wall), 4),
            "p50_ms": round(machine.quantile(wall, 0.5), 4),
            "p99_ms": round(machine.quantile(wall, 0.99), 4),
            "max_ms": round(max(wall), 4),
            "cpu_mean_ms": round(sum(cpu) / len(cpu), 4),
            "cpu_p99_ms": round(machine.quantile(cpu, 0.99), 4),
        }


def _with_ratios(result: dict[str, Any]) -> dict[str, Any]:
    """Adds how many times first-fit's CPU time the engine takes."""
    floor = result["first_fit"]["cpu_mean_ms"]
    for name in ("full", "fast"):
        result[name]["times_first_fit"] = round(result[name]["cpu_mean_ms"] / floor, 2)
    return result


def _array_bytes(thing: Any) -> int:
    """Bytes of the numpy arrays that an object holds directly."""
    names = getattr(thing, "__slots__", None) or vars(thing)
    return sum(v.nbytes for name in names if isinstance(v := getattr(thing, name), np.ndarray))


def _deep_bytes(thing: Any) -> int:
    """Bytes of all numpy arrays that an object holds, also in its own objects, tuples, lists and dicts."""
    if isinstance(thing, np.ndarray):
        return int(thing.nbytes)
    if isinstance(thing, dict):
        return sum(map(_deep_bytes, thing.values()))
    if isinstance(thing, list | tuple):
        return sum(map(_deep_bytes, thing))
    names = list(getattr(thing, "__slots__", ())) + list(getattr(thing, "__dict__", ()))
    return sum(_deep_bytes(getattr(thing, name)) for name in names)


def _progress(name: str, count: int) -> Iterator[int]:
    """Counts, and says how far it is about once in three seconds."""
    began = said = time.monotonic()
    for i in range(count):
        yield i
        if time.monotonic() - said > 3:
            said = time.monotonic()
            print(f"    {name}: {i + 1} of {count}", flush=True)
    print(f"  {name}: {count} decisions in {time.monotonic() - began:.2f} s", flush=True)


def _picture(result: dict[str, Any]) -> str:
    growth = result["growth_devices"]

    def line(label: str, key: str, dashed: bool = False) -> chart.Line:
        return chart.Line(label, [(g["devices"], g[key]["cpu_mean_ms"]) for g in growth], dashed)

    by_size = partial(chart.log_log, 0, 50, 560, 380, "One decision, by devices of the pool")
    by_queue = partial(chart.log_log, 540, 50, 500, 380, "One cycle on 6,212 GPUs, by waiting jobs")
    left = by_size(
        axes=("devices", "ms of CPU, mean"),
        lines=[
            line("one device, full", "full"),
            line("one device, fast", "fast"),
            line("gang of 64", "gang_64"),
            line("first-fit (numpy)", "first_fit", dashed=True),
        ],
    )
    cycle = chart.Line("cycle", [(c["waiting"], c["cpu_mean_ms"]) for c in result["growth_waiting"]])
    right = by_queue(axes=("waiting jobs", "ms of CPU, mean"), lines=[cycle])
    cores = f"{result['machine']['cpu']}, {result['machine']['commit']}"
    return chart.page(1040, 440, f"What placement costs ({cores})", [left, right])


if __name__ == "__main__":
    main()
