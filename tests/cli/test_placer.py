"""`baton placer` over its real pipe: placements, releases, refusals, bad lines."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from tests.kit.commands import fork

ROOT = Path(__file__).parents[2]

NODES = [
    {"node": "big", "cpu_milli": 16_500, "memory_mib": 64_000, "gpu": 2, "model": "A"},
    {"node": "small", "cpu_milli": 8_000, "memory_mib": 16_000, "gpu": 1, "model": "B"},
]


def pod(name: str, gpus: int = 1, milli: int = 1000, **more: Any) -> dict[str, Any]:
    base = {"pod": name, "cpu_milli": 1000, "memory_mib": 1000, "num_gpu": gpus, "gpu_milli": milli, "gpu_spec": ""}
    return base | {"prev": None} | more


def talk(*lines: Any, args: tuple[str, ...] = ()) -> tuple[list[dict[str, Any]], str]:
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    code, out, err = asyncio.run(fork().run(("placer", *args), os.environ, ROOT, text.encode()))
    assert code == 0, err.decode()
    return [json.loads(line) for line in out.splitlines()], err.decode()


def cluster(*workload: dict[str, Any]) -> dict[str, Any]:
    return {"type": "cluster", "nodes": NODES, "workload": list(workload)}


def test_pods_are_placed_until_nothing_fits_and_again_when_one_left() -> None:
    told, _ = talk(
        cluster({"cpu_milli": 1000, "num_gpu": 1, "gpu_milli": 1000, "gpu_spec": "", "share": 1.0}),
        pod("gang", 2),
        pod("one", gpu_spec="A|B"),
        pod("two"),
        {"type": "release", "pod": "gang", "node": "big", "gpus": [0, 1]},
        pod("three", gpu_spec="A"),
        pod("half", milli=500),
    )
    assert told[0] == {"node": "big", "gpus": [0, 1]}
    assert told[1] == {"node": "small", "gpus": [0]}
    assert told[2]["node"] is None
    assert told[2]["reason"]
    assert (told[3]["node"], len(told[3]["gpus"])) == ("big", 1)
    assert told[4]["node"] == "big"
    assert told[4]["gpus"] != told[3]["gpus"]


def test_processors_alone_are_placed_and_count() -> None:
    told, _ = talk(
        cluster(), pod("a", 0, 0, cpu_milli=16_500), pod("b", 1, gpu_spec="A"), pod("c", 0, 0, cpu_milli=8_000)
    )
    assert told[0] == {"node": "big", "gpus": []}
    assert told[1]["node"] is None
    assert told[2] == {"node": "small", "gpus": []}


def test_what_was_rejected_is_free_again() -> None:
    told, _ = talk(cluster(), pod("a", gpu_spec="B"), pod("b", gpu_spec="B", prev="rejected"), pod("c", gpu_spec="B"))
    assert [answer["node"] for answer in told] == ["small", "small", None]


def test_a_bad_line_is_answered_with_what_is_wrong_and_the_next_is_served() -> None:
    told, err = talk(
        pod("early"),
        cluster(),
        "not json\n",
        pod("a", -1),
        pod("b", 2, 500),
        {"pod": "c", "num_gpu": 1, "gpu_milli": 1000},
        pod("d"),
    )
    assert [answer["node"] for answer in told[:-1]] == [None] * 5
    assert "first line" in told[0]["error"]
    assert "num_gpu: -1" in told[2]["error"]
    assert "set num_gpu to 1" in told[3]["error"]
    assert "cpu_milli" in told[4]["error"]
    assert told[-1]["node"] is not None
    assert err.count("baton placer:") == 5


def test_the_fast_path_places_without_scores() -> None:
    told, _ = talk(cluster(), pod("a", 2), pod("b", milli=300), args=("--fast",))
    assert [answer["node"] for answer in told] == ["big", "small"]


def test_a_node_without_gpus_serves_what_asks_for_none() -> None:
    nodes = [*NODES, {"node": "plain", "cpu_milli": 4000, "memory_mib": 4000, "gpu": 0, "model": ""}]
    asked = [pod(f"p{i}", 0, 0, cpu_milli=4000, memory_mib=4000) for i in range(8)]
    workload = [{"cpu_milli": 4000, "num_gpu": 0, "gpu_milli": 0, "gpu_spec": "", "share": 1.0}]
    told, _ = talk({"type": "cluster", "nodes": nodes, "workload": workload}, *asked)
    assert sorted(answer["node"] or "" for answer in told) == ["", *["big"] * 4, "plain", *["small"] * 2]
    assert told[-1]["node"] is None


def test_totals_that_do_not_divide_lose_nothing() -> None:
    node = {"node": "n", "cpu_milli": 1000, "memory_mib": 10, "gpu": 8, "model": "A"}
    told, _ = talk(
        {"type": "cluster", "nodes": [node]},
        pod("three", 3, cpu_milli=500, memory_mib=5),
        pod("five", 5, cpu_milli=500, memory_mib=5),
    )
    assert [answer["node"] for answer in told] == ["n", "n"]


def test_of_two_pods_of_one_name_the_one_on_those_gpus_is_released() -> None:
    told, _ = talk(
        cluster(),
        pod("twin", gpu_spec="A"),
        pod("twin", gpu_spec="A"),
        {"type": "release", "pod": "twin", "node": "big", "gpus": [0]},
        {"type": "release", "pod": "stranger", "node": "big", "gpus": [1]},
        pod("next", gpu_spec="A"),
    )
    assert [answer["gpus"] for answer in told] == [[0], [1], [0]]


def test_lines_that_ask_for_no_answer_get_none_when_they_are_wrong() -> None:
    told, complaints = talk(
        {"type": "cluster", "nodes": NODES, "workload": [{"cpu_milli": 1, "num_gpu": 0, "gpu_milli": 0}]},
        {"type": "cluster", "nodes": [{"node": "n", "cpu_milli": 2**70, "memory_mib": 1, "gpu": 1, "model": "A"}]},
        {"type": "cluster", "nodes": NODES, "workload": [7]},
        cluster(),
        {"type": "release"},
        '{"pod": ' + "[" * 100_000 + "\n",
        pod("whole", cpu_milli=1000.0),
        pod("half", cpu_milli=0.5),
    )
    assert len(told) == 3
    assert told[1]["node"] is not None
    assert "cpu_milli: 0.5" in told[2]["error"]
    for wrong in ("share: missing", f"cpu_milli: {2**70}", "workload: must be a list", "pod: missing"):
        assert wrong in complaints
