"""The filters of system calls, read as the kernel reads them: of every number, on both architectures, what is refused."""

import errno
import struct
from collections.abc import Iterator

import pytest

from services.agent.keeper import callfilter

ALLOW, REFUSE = 0x7FFF_0000, 0x0005_0000
OTHER_MACHINE = 0x4000_0003
MACHINES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
NEW_USER, NEW_TIME = 0x1000_0000, 0x80


def told(machine: str, number: int, first: int = 0, second: int = 0, architecture: int = 0, *, third: int = 0) -> int:
    """What becomes of a call behind walls: the kernel takes the stricter filter's word, or that of the one that came last."""
    found = [
        one_of(of(machine), machine, number, first, second, architecture, third)
        for of in (callfilter.last, callfilter.common)
    ]
    return min(found, key=lambda word: word & 0xFFFF_0000)


def one_of(
    program: bytes, machine: str, number: int, first: int = 0, second: int = 0, architecture: int = 0, third: int = 0
) -> int:
    """What one filter returns."""
    steps = list(struct.iter_unpack("=HBBI", program))
    call = struct.pack("<II7Q", number, architecture or MACHINES[machine], 0, first, second, third, 0, 0, 0)
    at = value = 0
    while True:
        code, if_so, if_not, operand = steps[at]
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("<I", call, operand)
        elif code == 0x06:
            return int(operand)
        else:
            so = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            at += if_so if so else if_not


def refused(machine: str) -> set[int]:
    column = list(MACHINES).index(machine)
    return {numbers[column] for numbers in (callfilter._CALLS | callfilter._OF_WALLS).values()}


def special(machine: str) -> dict[str, int]:
    column = list(MACHINES).index(machine)
    named = ["unshare", "clone", "ioctl", "clone3", "socket", "socketpair", "prlimit64", "setrlimit"]
    named += ["setsockopt", "seccomp", "prctl", "fcntl"]
    waits = zip(("poll", "ppoll", "select", "pselect6"), (numbers for numbers, _ in callfilter._WAITING), strict=True)
    found = {name: getattr(callfilter, f"_{name.upper()}")[column] for name in named}
    return found | {name: numbers[column] for name, numbers in waits if numbers[column] >= 0}


def by_arguments() -> Iterator[tuple[str, int, int, int]]:
    """Call, its first two arguments, and the errno that it gets; 0: it is allowed."""
    yield "unshare", 0, 0, 0
    yield "unshare", NEW_USER, 0, errno.EPERM
    yield "unshare", NEW_TIME, 0, errno.EPERM
    yield "clone", 17, 0, 0
    yield "clone", 17 | NEW_USER, 0, errno.EPERM
    yield "clone3", 0, 0, errno.ENOSYS
    yield "ioctl", 0, 0x5401, 0
    yield "ioctl", 0, 0x5412, errno.EPERM
    yield "ioctl", 0, 0x541C, errno.EPERM
    yield "ioctl", 0, 0x5423, errno.EPERM
    yield from (("fcntl", 3, command, 0) for command in (3, 4, 6, 7, 36, 1024))
    yield from (("fcntl", 3, command, errno.EINVAL) for command in (37, 38, 1026))
    for count, error in ((0, 0), (4095, 0), (4096, 0), (4097, errno.EINVAL), (2**32 - 1, errno.EINVAL)):
        yield from ((call, 0x7000, count, error) for call in ("poll", "ppoll"))
        yield from ((call, count, 0x7000, error) for call in ("select", "pselect6"))
    yield from (("socket", family, 0, 0) for family in (1, 2, 10, 16))
    yield from (
        (call, family, 0, errno.EAFNOSUPPORT) for call in ("socket", "socketpair") for family in (0, 17, 30, 38, 40)
    )


def by_three_arguments() -> Iterator[tuple[str, tuple[int, int, int], int]]:
    """Likewise. Kinds of sockets are 1 to 3."""
    for family in (2, 10):
        yield from (("socket", (family, 1, protocol), 0) for protocol in (0, 6, 17))
        yield from (("socket", (family, 2, protocol), errno.EPROTONOSUPPORT) for protocol in (1, 58, 132, 136, 262))
    yield from (("socket", (16, 3, protocol), 0) for protocol in (0, 4, 15, 16, 20))
    yield from (("socket", (16, 3, protocol), errno.EPROTONOSUPPORT) for protocol in (2, 6, 9, 12, 21))
    yield from (("socketpair", (1, kind, 0), 0) for kind in (1, 2))
    yield from (("setsockopt", (3, 1, option), errno.ENOPROTOOPT) for option in (26, 51))
    kept = [(6, 14), (6, 32), (6, 38), (41, 6), (41, 20), (41, 32), (41, 42), (41, 46), (41, 48)]
    yield from (("setsockopt", (3, level, option), errno.ENOPROTOOPT) for level, option in kept)
    usual = [(1, 2), (1, 8), (1, 6), (1, 14), (1, 32), (6, 1), (6, 26), (0, 51), (0, 35), (41, 26), (41, 16)]
    yield from (("setsockopt", (3, level, option), 0) for level, option in usual)
    yield from (("seccomp", (operation, 0, 0), errno.EINVAL * (operation == 1)) for operation in (0, 1, 2, 3))
    yield from (("prctl", (22, mode, 0), errno.EINVAL * (mode == 2)) for mode in (1, 2))
    yield from (("prctl", (option, 2, 0), 0) for option in (4, 15, 38))
    yield from (("prctl", (62, operation, 0), errno.EINVAL) for operation in range(4))


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_of_the_table_is_refused_and_no_other(machine: str) -> None:
    beyond = set(special(machine).values())
    found = {number for number in range(1024) if number not in beyond and told(machine, number) != ALLOW}
    assert found == refused(machine) - {-1}
    assert {told(machine, number) for number in found} == {REFUSE | errno.EPERM}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("call", "first", "second", "error"), list(by_arguments()))
def test_some_are_refused_by_what_they_are_told(machine: str, call: str, first: int, second: int, error: int) -> None:
    numbers = special(machine)
    assert call in numbers or machine == "aarch64", "which has no poll and no select"
    if call in numbers:
        assert told(machine, numbers[call], first, second) == (REFUSE | error if error else ALLOW)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("call", "arguments", "error"), list(by_three_arguments()))
def test_sockets_and_filters_are_of_few_kinds(
    machine: str, call: str, arguments: tuple[int, int, int], error: int
) -> None:
    first, second, third = arguments
    found = told(machine, special(machine)[call], first, second, third=third)
    assert found == (REFUSE | error if error else ALLOW)


@pytest.mark.parametrize("machine", MACHINES)
def test_who_sets_the_limit_of_cores_is_told_that_it_is_done_and_nothing_is(machine: str) -> None:
    set_limit, any_limit, done = special(machine)["setrlimit"], special(machine)["prlimit64"], REFUSE
    core, open_files, somewhere, far = 4, 7, 0x1000, 0x7FFF_0000_0000
    assert told(machine, set_limit, core, somewhere) == done
    assert told(machine, set_limit, open_files, somewhere) == ALLOW
    assert [told(machine, any_limit, 0, core, third=new) for new in (0, somewhere, far)] == [ALLOW, done, done]
    assert told(machine, any_limit, 0, open_files, third=somewhere) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_of_another_architecture_are_refused(machine: str) -> None:
    """As unknown ones; but for those that `LAST`, which does not look at the architecture, refuses by their number."""
    words = {REFUSE | errno.ENOSYS, REFUSE | errno.EPERM}
    common = callfilter.common(machine)
    assert {told(machine, number, architecture=OTHER_MACHINE) for number in range(1024)} <= words
    assert {one_of(common, machine, number, architecture=OTHER_MACHINE) for number in range(1024)} == {max(words)}
    if machine == "x86_64":
        assert {told(machine, 0x4000_0000 | number) for number in range(1024)} == {max(words)}


@pytest.mark.parametrize("machine", MACHINES)
def test_what_makes_walls_may_mount_and_make_namespaces_and_no_more(machine: str) -> None:
    """The zygote has this filter, and with it bubblewrap and the shims until their walls are up."""
    of_walls = {numbers[list(MACHINES).index(machine)] for numbers in callfilter._OF_WALLS.values()}
    makes = {special(machine)[call] for call in ("unshare", "clone")}
    for number in range(1024):
        found = one_of(callfilter.common(machine), machine, number, NEW_USER)
        assert (found == ALLOW) is (number in of_walls | makes or told(machine, number, NEW_USER) == ALLOW)
