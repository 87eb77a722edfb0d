"""Where cgroups of version 2 are made that limit attempts. Folders play the kernel's part, with its rule: who limits those
below it has no processes, but for the root of all."""

import os
from pathlib import Path

import pytest

from services.agent import tree
from services.agent.keeper import proc
from services.agent.reserved import reserve


class Kernel:
    """`root`: the top is the machine's, not a container's. `others`: groups with processes of others. `ours`: where we are."""

    def __init__(self, top: Path, ours: Path) -> None:
        self.top, self.ours, self.root = top, ours, False
        self.others = set[Path]()
        self.asked: list[Path] = []

    def limits(self, group: Path) -> bool:
        self.asked.append(group)
        return (group != self.ours and group not in self.others) or (self.root and group == self.top)

    def write(self, path: str, text: str) -> None:
        assert (Path(path).name, text) == ("cgroup.procs", "0")
        self.ours = Path(path).parent


@pytest.fixture
def own(tmp_path: Path) -> Path:
    group = tmp_path / "system.slice" / "agent.service"
    group.mkdir(parents=True)
    (group / "cgroup.controllers").write_text("cpu memory pids\n")
    return group


@pytest.fixture
def kernel(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel(tmp_path, own)
    monkeypatch.setattr(proc, "write_text", kernel.write)
    return kernel


def test_root_makes_one_beside_those_of_the_machine(tmp_path: Path, own: Path, kernel: Kernel) -> None:
    kernel.root, kernel.others = True, {tmp_path}
    assert tree.divided(own, tmp_path, kernel.limits) == tmp_path / "baton"
    assert (tmp_path / "baton").is_dir()
    assert not (own / "baton-agent").exists()


def test_root_enables_what_nobody_has_enabled_below_the_top(tmp_path: Path, own: Path, kernel: Kernel) -> None:
    """As on a machine without systemd."""
    (own / "cgroup.controllers").write_text("")
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    kernel.root, kernel.others = True, {tmp_path}
    assert tree.divided(own, tmp_path, kernel.limits) == tmp_path / "baton"


def test_alone_in_a_container_it_moves_one_down(own: Path, kernel: Kernel) -> None:
    assert tree.divided(own, own, kernel.limits) == own
    assert kernel.ours == own / "baton-agent"
    assert kernel.ours.is_dir()


def test_one_that_has_moved_before_finds_the_same(own: Path, kernel: Kernel) -> None:
    tree.divided(own, own, kernel.limits)
    assert tree.divided(own / "baton-agent", own, kernel.limits) == own
    assert not (own / "baton-agent" / "baton-agent").exists()


def test_who_is_not_alone_and_not_root_stays_where_it_is(tmp_path: Path, own: Path, kernel: Kernel) -> None:
    kernel.others = {tmp_path, own}
    assert tree.divided(own, tmp_path, kernel.limits) == own
    assert kernel.ours == own
    assert not (own / "baton-agent").exists()
    assert not (tmp_path / "baton").exists()


def test_where_version_1_has_the_controllers_nothing_is_moved_or_made(
    tmp_path: Path, own: Path, kernel: Kernel
) -> None:
    (own / "cgroup.controllers").write_text("hugetlb\n")
    kernel.root = True
    assert tree.divided(own, tmp_path, kernel.limits) == own
    assert kernel.asked == []


def test_a_life_of_a_node_limits_as_what_it_is_made_in(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    tree.make_limited(tmp_path / "node" / "7", tmp_path)
    for folder in (tmp_path / "node", tmp_path / "node" / "7"):
        assert (folder / "cgroup.subtree_control").read_text() == "+memory +cpu"
    tree.make_limited(tmp_path / "node" / "7", tmp_path)


@pytest.mark.parametrize("refused", ["", "+cpu"])
def test_a_kernel_that_shares_no_processors_limits_all_the_same(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """A process with real-time priority somewhere is enough: it refuses the controller, and whatever else is asked with it."""
    on = list[str]()

    def write(path: str, text: str) -> None:
        if refused and refused in text:
            raise OSError(22, "Invalid argument", path)
        on.extend(text.split())

    monkeypatch.setattr(proc, "write_text", write)
    assert tree.divided(own, tmp_path) == own
    assert on == ["+memory", "+pids", *([] if refused else ["+cpu"])]


@pytest.mark.parametrize(
    ("name", "processors", "weight"),
    [("cpu.shares", 2, "2048"), ("cpu.weight", 2, "200"), ("cpu.shares", 256, "102400"), ("cpu.weight", 256, "10000")],
)
def test_all_attempts_together_weigh_as_the_machine_has_processors(
    tmp_path: Path, name: str, processors: int, weight: str
) -> None:
    (tmp_path / name).touch()
    tree.weigh_as_processors(tmp_path, processors)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {name: weight}


@pytest.mark.parametrize(
    ("reserved", "written"),
    [
        (0.4, ({"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "160000"}, {"cpu.max": "160000 100000"})),
        (0.0, ({"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1"}, {"cpu.max": "max 100000"})),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_all_attempts_together_leave_processors_to_everything_else(
    tmp_path: Path, version: int, reserved: float, written: tuple[dict[str, str], dict[str, str]]
) -> None:
    for name in written[version - 1]:
        (tmp_path / name).touch()
    reserve(reserved, tmp_path, processors=2)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == written[version - 1]


@pytest.mark.parametrize(
    ("reserved", "says"),
    [
        (2.0, "2, and this machine has 2 processors: say less"),
        (1.995, "1.995, and this machine has 2 processors: say less"),
        (300.0, "300, and this machine has 2 processors: say less"),
    ],
)
def test_who_reserves_all_processors_is_refused(tmp_path: Path, reserved: float, says: str) -> None:
    (tmp_path / "cpu.max").touch()
    with pytest.raises(ValueError, match=f"^BATON_AGENT_RESERVED_CPUS is {says}"):
        reserve(reserved, tmp_path, processors=2)
    assert (tmp_path / "cpu.max").read_text() == ""


@pytest.mark.parametrize("reserved", [0.4, 0.0])
def test_where_no_processors_can_be_reserved_the_agent_is_refused(tmp_path: Path, reserved: float) -> None:
    said = f"^BATON_AGENT_RESERVED_CPUS is {reserved:g}, and "
    with pytest.raises(ValueError, match=f"{said}BATON_AGENT_CGROUPS is false"):
        reserve(reserved, None, cgroups=False, processors=2)
    with pytest.raises(
        ValueError, match=f"{said}no cgroup with the cpu controller can be made here .*: run the agent as root"
    ):
        reserve(reserved, None, processors=2)
    with pytest.raises(ValueError, match=f"{said}the kernel does not bound {tmp_path / 'gone'} so .No such file"):
        reserve(reserved, tmp_path / "gone", processors=2)
    with pytest.raises(ValueError, match=r"or leave BATON_AGENT_RESERVED_CPUS unset$"):
        reserve(reserved, None, processors=2)


def test_a_group_that_has_the_agent_in_it_is_not_bounded(own: Path, kernel: Kernel) -> None:
    """Of version 2, alone in a container: attempts are made beside the group into which the agent moved."""
    group = tree.divided(own, own, kernel.limits)
    (group / "cpu.max").touch()
    (kernel.ours / "cgroup.procs").write_text(f"{os.getpid()}\n")
    with pytest.raises(
        ValueError, match=f"^BATON_AGENT_RESERVED_CPUS is 0.4, and jobs have .* in the agent's own .{group}"
    ):
        reserve(0.4, group, processors=2)
    assert (group / "cpu.max").read_text() == ""


def test_of_version_1_several_controllers_may_be_in_one_tree() -> None:
    told = "9:name=systemd:/agent\n4:cpu,cpuacct:/system.slice/agent.service\n3:memory:/a:b\n0::/user.slice\n"
    found = tree.own_groups(told)
    assert (found["cpu"], found["cpuacct"]) == ("/system.slice/agent.service",) * 2
    assert (found["memory"], found[""]) == ("/a:b", "/user.slice")


def test_limits_are_of_version_2_only_where_they_were_switched_on(tmp_path: Path) -> None:
    assert tree.limit_base("no-such-controller", tmp_path) is None
    (tmp_path / "cgroup.subtree_control").write_text("memory\n")
    assert tree.limit_base("no-such-controller", tmp_path) is None
    (tmp_path / "cgroup.subtree_control").write_text("memory no-such-controller\n")
    assert tree.limit_base("no-such-controller", tmp_path) == tmp_path
