"""Memory cgroups that the kernel keeps of ended attempts. All but the last test write what it says into files."""

from pathlib import Path

import pytest

from services.agent.kept_groups import MOST, KeptGroups


@pytest.fixture
def dropped(tmp_path: Path) -> Path:
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    return tmp_path / "proc/sys/vm/drop_caches"


def _has(root: Path, count: int) -> None:
    (root / "proc/cgroups").write_text(
        f"#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t9\t1\nmemory\t4\t{count}\t1\nmemoryless\t5\t7\t1\n"
    )


def test_nothing_is_dropped_while_half_of_the_room_is_left(tmp_path: Path, dropped: Path) -> None:
    _has(tmp_path, MOST // 2)
    KeptGroups(tmp_path).look()
    assert not dropped.exists()


def test_the_page_cache_is_dropped_when_more_than_half_is_taken(tmp_path: Path, dropped: Path) -> None:
    _has(tmp_path, MOST // 2 + 1)
    KeptGroups(tmp_path).look()
    assert dropped.read_text() == "1"


def test_where_that_frees_nothing_it_is_done_again_only_when_half_of_the_rest_is_taken(
    tmp_path: Path, dropped: Path
) -> None:
    kept = KeptGroups(tmp_path)
    _has(tmp_path, 45_535)
    kept.look()
    dropped.unlink()
    for count in (45_536, 55_535):
        _has(tmp_path, count)
        kept.look()
        assert not dropped.exists()
    _has(tmp_path, 55_536)
    kept.look()
    assert dropped.read_text() == "1"


def test_a_kernel_with_version_2_alone_is_asked_there(tmp_path: Path, dropped: Path) -> None:
    (tmp_path / "proc/cgroups").write_text("#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t0\t9\t1\n")
    (tmp_path / "sys/fs/cgroup/cgroup.stat").write_text("nr_descendants 40000\nnr_dying_descendants 100\n")
    KeptGroups(tmp_path).look()
    assert dropped.read_text() == "1"


def test_a_kernel_that_says_nothing_is_left_alone(tmp_path: Path, dropped: Path) -> None:
    KeptGroups(tmp_path).look()
    assert not dropped.exists()


def test_an_agent_that_may_not_says_what_its_operator_can_do(
    tmp_path: Path, dropped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dropped.mkdir()
    _has(tmp_path, 40_000)
    kept = KeptGroups(tmp_path)
    kept.look()
    kept.look()
    (said,) = (record.getMessage() for record in caplog.records)
    assert "40000 memory cgroups" in said
    assert "echo 1 > /proc/sys/vm/drop_caches" in said


def test_this_machines_kernel_is_understood() -> None:
    assert KeptGroups()._count() > 0
