"""What all processes of a machine share: one job may not have it all."""

import errno
import fcntl
import os
import resource
import secrets
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from libs.ports import sockdiag
from libs.ports.sockdiag import BOUND, CONNECTED, LISTENING, end_what_is_left, held_ports, is_free, tells
from schemas.ids import FIRST_TEAM_UID
from services.agent import filelocks, gangports, neighbours, netlinks, shared
from services.agent.gangports import GangPorts, PortsHad, given_out, local_ports
from services.agent.keeper import proc
from services.agent.shared import SharedLook, SharedUse
from services.agent.tables import files_of, sockets_of
from services.agent.variables import GANG_PORTS

SELDOM_S = 1e9


@pytest.fixture
def me(monkeypatch: pytest.MonkeyPatch) -> SharedUse:
    """This process as an attempt of a team, whose user nobody else here is."""
    monkeypatch.setattr(proc, "descendants", lambda of: {os.getpid()})
    return SharedUse(PortsHad(uid=FIRST_TEAM_UID), shim=1)


def quiet(looks: SharedLook, *uses: SharedUse) -> SharedLook:
    """It has looked, and would not soon look again by itself."""
    looks.look(uses)
    looks._next_thorough = sys.maxsize
    return looks


@contextmanager
def free_ports(count: int, bind: Callable[[socket.socket, int], None]) -> Iterator[dict[int, socket.socket]]:
    """So many ports of gangs in a row that were free, each with a socket."""
    with ExitStack() as all_of_them:
        found: dict[int, socket.socket] = {}
        for port in reversed(GANG_PORTS):
            if len(found) == count:
                break
            one = all_of_them.enter_context(socket.socket())
            try:
                if is_free(port):
                    bind(one, port)
                    found[port] = one
                    continue
            except OSError as e:  # a test beside has it
                if e.errno != errno.EADDRINUSE:
                    raise
            for other in found.values():
                other.close()
            found.clear()
        assert len(found) == count
        yield found


def bound(one: socket.socket, port: int) -> None:
    one.bind(("127.0.0.1", port))


def listening(one: socket.socket, port: int) -> None:
    bound(one, port)
    one.listen()


def connected(one: socket.socket, port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        bound(one, port)
        one.connect(server.getsockname())
        server.accept()[0].detach()


ONLY_BOUND = pytest.param(
    bound,
    marks=pytest.mark.skipif(
        not tells(BOUND), reason="before Linux 6.8 the kernel does not tell, and the agent says so"
    ),
)


# ------------------------------------------------------------------------------------------- outgoing connections, files


def test_a_socket_counts_once_however_many_have_it_open() -> None:
    mine = [os.getpid()]
    before = sockets_of(mine)
    with ExitStack() as opened:
        pairs = [socket.socketpair() for _ in range(5)]
        unbound = socket.socket()
        for one in (*sum(pairs, ()), unbound, unbound.dup()):
            opened.enter_context(one)
        assert len(sockets_of([*mine, *mine]) - before) == 11
    assert sockets_of(mine) == before


def test_who_takes_very_many_ports_is_looked_at_before_its_time(me: SharedUse) -> None:
    """A job takes all ports of a machine in a tenth of a second."""
    me.sockets = max(100, shared.sockets_of_machine())
    looks = quiet(SharedLook(SELDOM_S))
    assert not looks.due()
    with ExitStack() as taken:
        for _ in range(me.sockets + 1):
            taken.enter_context(socket.socket())
        assert looks.due()
        assert looks.look([me])[me].startswith("socket limit: it had ")
        looks._next_thorough = 0.0
        assert not looks.look([me]), "it is being ended"
    me.ending = False
    looks._next_thorough = 0.0
    assert not looks.look([me])


@pytest.mark.parametrize("address", ["127.0.0.1", "::"])
def test_who_takes_very_many_ports_of_udp_is_looked_at_before_its_time(me: SharedUse, address: str) -> None:
    """IPv6 counts them apart: a job had all ports of UDP, and nobody on that machine could ask for a name."""
    me.sockets = max(100, shared.sockets_of_machine())
    looks = quiet(SharedLook(SELDOM_S))
    assert not looks.due()
    with ExitStack() as taken:
        for _ in range(me.sockets + 1):
            kind = socket.AF_INET6 if ":" in address else socket.AF_INET
            taken.enter_context(socket.socket(kind, socket.SOCK_DGRAM)).bind((address, 0))
        assert looks.due()
        assert looks.look([me])[me].startswith("socket limit: it had ")


@contextmanager
def ports_of_udp(count: int) -> Iterator[dict[int, socket.socket]]:
    """So many in a row, of IPv6 and IPv4, by their inode."""
    with ExitStack() as opened:
        while True:
            first = GANG_PORTS.start + secrets.randbelow(len(GANG_PORTS) - count)
            with suppress(OSError), ExitStack() as these:
                found = {}
                for port in range(first, first + count):
                    one = these.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
                    one.bind(("::", port))
                    found[port] = one
                opened.push(these.pop_all())
                break
        yield found


def test_of_two_who_take_half_of_all_ports_of_udp_each_the_larger_ends(
    me: SharedUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ports_of_udp(50) as held:
        inodes = [os.fstat(one.fileno()).st_ino for one in held.values()]
        have = {1: set(inodes[:26]), 2: set(inodes[26:])}
        monkeypatch.setattr(proc, "descendants", tuple)
        monkeypatch.setattr(shared, "sockets_of", lambda pids: set(have[pids[0]]))
        monkeypatch.setattr(shared, "local_ports", lambda: range(min(held), max(held) + 1))
        monkeypatch.setattr(shared, "sockets_of_machine", lambda: 1_000)
        uses = [SharedUse(PortsHad(uid=2**31), sockets=45, shim=number) for number in (2, 1)]
        (ended,) = SharedLook(SELDOM_S).look(uses).items()
    assert ended[0] is uses[1]
    assert ended[1].startswith("socket limit: it had 26 ports of UDP, more than any other, when 50 were taken: ")


def test_sockets_of_udp_that_are_sent_and_not_received_are_their_teams(
    me: SharedUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "sockets_of", lambda pids: set())
    monkeypatch.setattr(shared, "sockets_of_machine", lambda: 1_000)
    me.ports.uid, me.sockets = os.getuid(), 30
    others = SharedUse(PortsHad(uid=me.ports.uid + 1), sockets=30)
    with ports_of_udp(31) as held:
        monkeypatch.setattr(shared, "local_ports", lambda: range(min(held), max(held) + 1))
        assert SharedLook(SELDOM_S).look([me, others])[me].startswith("socket limit: it had ")
    assert not others.ending


def test_sockets_that_are_sent_and_not_received_are_their_teams(me: SharedUse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "local_ports", lambda: GANG_PORTS)
    monkeypatch.setattr(shared, "sockets_of", lambda pids: set())
    me.ports.uid, me.sockets = os.getuid(), 2
    others = SharedUse(PortsHad(uid=me.ports.uid + 1), sockets=2)
    looks = SharedLook(SELDOM_S)
    with free_ports(3, listening):
        assert looks.look([me, others])[me].startswith("socket limit: it had ")
    assert not others.ending


def test_of_two_who_take_half_of_all_ports_each_the_larger_ends_before_none_is_left(
    me: SharedUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    with free_ports(100, listening) as held:
        inodes = [os.fstat(one.fileno()).st_ino for one in held.values()]
        have = {1: set(inodes[:52]), 2: set(inodes[52:])}
        monkeypatch.setattr(proc, "descendants", tuple)
        monkeypatch.setattr(shared, "sockets_of", lambda pids: set(have[pids[0]]))
        uses = [SharedUse(PortsHad(uid=2**31), sockets=90, shim=number) for number in (2, 1)]
        monkeypatch.setattr(shared, "local_ports", lambda: range(min(held), max(held) + 1))
        looks = SharedLook(SELDOM_S)
        looks._next_thorough = 0.0
        (ended,) = looks.look(uses).items()
        assert ended[0] is uses[1]
        assert ended[1].startswith("socket limit: it had 52 ports of TCP, more than any other, when ")
        looks._next_thorough = 0.0
        assert not looks.look(uses)


def test_who_opens_very_many_files_is_looked_at_before_its_time(me: SharedUse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: a job had all 2,466,193 open files of a machine for a minute, since the looks lay minutes apart, and the other
    team's could open none."""
    monkeypatch.setattr(shared, "open_files_of_machine", lambda: 4 * 2_000)
    looks = SharedLook(SELDOM_S)
    monkeypatch.setattr(shared, "open_on_machine", lambda: 500)
    quiet(looks)
    assert not looks.due()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as taken:
        taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        for _ in range(2_000):
            taken.enter_context(open(os.devnull))
        monkeypatch.setattr(shared, "open_on_machine", lambda: 2_500)
        assert looks.due()
        why = looks.look([me])[me]
    assert why.startswith("file limit: it had 2,0")
    assert why.endswith(", and may have 2,000: all processes of the machine have 8,000 together (sysctl fs.file-max)")


def test_of_several_who_have_less_than_a_quarter_the_largest_end_before_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uses = [SharedUse(PortsHad(uid=1), shim=number) for number in (24, 23, 22, 21, 2)]
    monkeypatch.setattr(proc, "descendants", set)
    monkeypatch.setattr(shared, "files_of", sum)  # of the process number n: n hundredths of all
    monkeypatch.setattr(shared, "open_files_of_machine", lambda: 100)
    monkeypatch.setattr(shared, "open_on_machine", lambda: 92)
    looks = SharedLook(SELDOM_S)
    assert list(looks.look(uses)) == uses[:1], "92 are open, and without it 68"
    looks._next_thorough = 0.0
    assert not looks.look(uses), "it has not given back what it had, and no other is ended for that"
    looks._next_thorough = 0.0
    monkeypatch.setattr(shared, "open_on_machine", lambda: 24 + 76)
    assert list(looks.look(uses)) == uses[1:2]


def filled(one: socket.socket) -> socket.socket:
    """Sends until nobody takes more."""
    one.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            one.send(bytes(1 << 16))
    return one


def unread(protocol: str, opened: ExitStack, accepted: bool = True) -> list[socket.socket]:
    """A server and who sends to it, of which nobody reads: together megabytes of TCP, and some hundred KiB of UDP."""
    server = socket.socket(type=socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM)
    client = opened.enter_context(socket.socket(type=server.type))
    opened.enter_context(server).bind(("127.0.0.1", 0))
    if protocol == "TCP":
        server.listen()
    client.connect(server.getsockname())
    got = [opened.enter_context(server.accept()[0])] if protocol == "TCP" and accepted else []
    if protocol == "UDP":
        for _ in range(100):
            client.send(bytes(1 << 10))
        return [server]
    return [server, filled(client), *got]


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
def test_who_leaves_very_much_unread_in_sockets_is_looked_at_before_its_time(
    me: SharedUse, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """200 connections that nobody reads had all 2.2 GB which the sockets of a machine may have; no cgroup counted them, and
    others' sent 1 MB in a second in place of 2 ms."""
    total = {"TCP": 0, "UDP": 0}
    monkeypatch.setattr(shared, "memory_of_sockets", lambda: dict(total))
    monkeypatch.setattr(shared, "memory_for_sockets", lambda name: 200_000)
    looks = quiet(SharedLook(SELDOM_S))
    with ExitStack() as opened:
        unread(protocol, opened)
        looks.due()
        total[protocol] = 120_000
        assert looks.due()
        why = looks.look([me])[me]
    assert why.startswith(f"memory of sockets: its {protocol} had ")
    assert why.endswith(f"(sysctl net.ipv4.{protocol.lower()}_mem)")


def test_memory_of_sockets_that_grew_is_reason_for_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"TCP": 0, "UDP": 90}
    monkeypatch.setattr(shared, "sockets_of_machine", lambda: 0)
    monkeypatch.setattr(shared, "memory_of_sockets", lambda: dict(now))
    monkeypatch.setattr(shared, "memory_for_sockets", lambda name: 100)
    looks = quiet(SharedLook(SELDOM_S))
    for tcp, wanted in ((50, False), (51, True)):
        now["TCP"] = tcp
        assert looks.due() is wanted, "of what all have together a half is one's own"


@pytest.mark.parametrize("accepted", [True, False])
def test_what_the_kernel_holds_for_a_job_is_its_own_whoever_has_the_socket(me: SharedUse, accepted: bool) -> None:
    """Of a connection that was not accepted no process has the socket."""
    others = SharedUse(PortsHad(uid=2**31), shim=0)
    with ExitStack() as opened:
        mine = {os.fstat(one.fileno()).st_ino for one in unread("TCP", opened, accepted)}
        held = sockdiag.buffered(socket.IPPROTO_TCP)
        sent = sum(one.bytes for one in held if one.inode in mine)
        me.ports.uid = 2**31 + 1
        counts = shared._memory_by_use([others, me], held)
        assert counts[me] >= sent > 1 << 20
        assert counts[others] == 0
        if not accepted:
            port = next(one.port for one in held if one.inode in mine and one.listens)
            (waiting,) = [one for one in held if one.port == port and not one.listens]
            assert waiting.inode == 0
            assert waiting.bytes
            assert counts[me] >= sent + waiting.bytes


@contextmanager
def unread_answers(count: int) -> Iterator[list[socket.socket]]:
    """Sockets of netlink, asked for what interface there is until they have no room for the answer."""
    with ExitStack() as opened:
        made = [opened.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)) for _ in range(count)]
        for one in made:
            one.bind((0, 0))
            for _ in range(200):
                one.send(struct.pack("=IHHIIBxHiII", 32, 18, 1, 1, 0, 0, 0, 1, 0, 0))
        yield made


@pytest.mark.parametrize("sent", [False, True])
def test_who_leaves_answers_of_netlink_unread_is_ended(
    me: SharedUse, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    """A job with 200 MB had 3 GB more, which no cgroup counted. Also where none of its processes has the sockets."""
    monkeypatch.setattr(shared, "memory_for_sockets", lambda name: 4 << 20)
    monkeypatch.setattr(netlinks, "SHARE", 0)
    looks = quiet(SharedLook(SELDOM_S))
    looks.due()
    assert not looks.look([me])
    here, there = socket.socketpair()
    with here, there, unread_answers(20) as asked:
        if sent:
            socket.send_fds(here, [b"x"], [one.fileno() for one in asked])
            for one in asked:
                one.close()
        assert looks.due()
        why = looks.look([me])[me]
    assert why.startswith("memory of sockets: its netlink had ")
    assert why.endswith(" MiB, and may have 2 MiB: no limit of its memory counts that")


def test_who_has_very_many_sockets_of_netlink_is_ended(me: SharedUse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at what they have would cost more."""
    others = SharedUse(PortsHad(uid=2**31), shim=0)
    monkeypatch.setattr(shared, "MOST_NETLINKS", 5)
    with unread_answers(0), ExitStack() as opened:
        for _ in range(6):
            opened.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)).bind((0, 0))
        ended = SharedLook(SELDOM_S).look([others, me])
    assert ended == {me: "socket limit: it had 6 of netlink, and may have 5"}


def test_what_netlink_has_is_asked_a_twentieth_of_the_time() -> None:
    total = netlinks.NetlinkTotal()
    before = total.now([])
    with unread_answers(3):
        total._next = sys.maxsize
        assert total.now([]) == before
        total._next = 0.0
        assert total.now([]) > before


@contextmanager
def locks(count: int) -> Iterator[None]:
    with tempfile.TemporaryFile() as file:
        for at in range(count):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * at)
        yield


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone is told how many locks there are")
def test_who_locks_very_many_parts_of_files_is_looked_at_before_its_time(
    me: SharedUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with 64 MB had 600 MB of locks in five seconds, which no cgroup counted."""
    monkeypatch.setattr(shared, "LOCKS", 4 * (2 * filelocks.locks_on_machine() + 2_000))
    looks = quiet(SharedLook(SELDOM_S))
    looks.due()
    assert not looks.look([me])
    with locks(most := shared.locks_each() + 1):
        assert looks.due()
        why = looks.look([me])[me]
    assert why.startswith("lock limit: it held ")
    assert f" locks of files, and may hold {most - 1:,}: " in why
    assert mine(most) < most


def mine(most: int) -> int:
    return filelocks.held_by([{os.getpid()}], filelocks.listed_locks(most))[0]


def test_the_list_of_locks_is_read_to_a_bound() -> None:
    with locks(2_000):
        assert mine(sys.maxsize) >= 2_000
        assert filelocks.listed_locks(100).total() < 300, "it is told by pages"


def test_a_lock_that_waits_is_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed = tmp_path / "locks"
    lines = ("POSIX  ADVISORY  WRITE 7", "-> POSIX  ADVISORY  WRITE 9", "OFDLCK ADVISORY  READ -1")
    listed.write_text("".join(f"1: {line} fe:00:8 0 0\n" for line in lines))
    monkeypatch.setattr(filelocks, "_LISTED", str(listed))
    assert filelocks.listed_locks(9) == {(7, b"fe:00:8"): 1, (9, b""): 1, (0, b""): 1}


def test_what_a_job_watches_takes_no_time_of_who_looks_for_what_is_in_flight() -> None:
    """9,000 copies of an epoll that watches 9,000 files took two minutes, in which nobody looked at ports."""
    with select.epoll() as watching, ExitStack() as opened:
        reading, writing = map(opened.enter_context, map(os.fdopen, os.pipe(), "rw"))
        for fd in [os.dup(reading.fileno()) for _ in range(50)]:
            opened.callback(os.close, fd)
            watching.register(fd)
        for one in [os.dup(watching.fileno()) for _ in range(50)]:
            opened.callback(os.close, one)
        read: list[str] = []
        here, there = map(opened.enter_context, socket.socketpair())
        socket.send_fds(here, [b"x"], [writing.fileno()])
        with pytest.MonkeyPatch.context() as patch:
            real = proc.read_text
            patch.setattr(proc, "read_text", lambda path: read.append(real(path)) or read[-1])
            assert netlinks._in_flight([os.getpid()]) >= 1
        assert "tfd:" not in "".join(read)
    del there


def test_of_several_who_lock_many_parts_of_files_the_largest_end(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = [SharedUse(PortsHad(uid=2**31), shim=number) for number in (20, 25, 18, 24)]
    monkeypatch.setattr(filelocks, "listed_locks", lambda most: Counter({(use.shim, b""): use.shim for use in uses}))
    monkeypatch.setattr(proc, "descendants", set)
    monkeypatch.setattr(shared, "locks_on_machine", lambda: 87)
    monkeypatch.setattr(shared, "LOCKS", 100)
    ended = SharedLook(SELDOM_S).look(uses)
    assert ended == {
        uses[1]: "lock limit: it held 25 locks of files, more than any other, of 87: no limit of its memory counts them"
    }


def test_of_several_who_leave_much_unread_the_largest_end_before_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = [SharedUse(PortsHad(uid=2**31), shim=number) for number in (30, 45, 5)]
    monkeypatch.setattr(shared, "_memory_by_use", lambda uses, held: {use: use.shim for use in uses})
    monkeypatch.setattr(shared, "memory_for_sockets", lambda name: 100)
    monkeypatch.setattr(shared, "memory_of_sockets", lambda: {"TCP": 80, "UDP": 0})
    monkeypatch.setattr(proc, "descendants", lambda of: set())
    (ended,) = SharedLook(SELDOM_S).look(uses)
    assert ended is uses[1], "80 are taken, and without it 35"


def test_files_are_counted_without_being_listed() -> None:
    mine = [os.getpid()]
    before = files_of(mine)
    with open(os.devnull), open(os.devnull):
        assert files_of(mine) == before + 2
    assert files_of([2**30]) == 0


# ----------------------------------------------------------------------------------------------- where gangs meet


@pytest.mark.parametrize("bind", [ONLY_BOUND, listening, connected])
def test_the_kernel_tells_who_holds_a_port(bind: Callable[[socket.socket, int], None]) -> None:
    with free_ports(2, bind) as held:
        found = {one.inode: one.port for one in held_ports(GANG_PORTS, LISTENING | BOUND | CONNECTED)}
        for port, one in held.items():
            assert found[os.fstat(one.fileno()).st_ino] == port
            assert not is_free(port)
        first = min(held)
        alone = held_ports(range(first, first + 1), LISTENING | BOUND | CONNECTED)
        assert [(one.port, one.uid) for one in alone] == [(first, os.getuid())]
        end_what_is_left(first)
        assert not is_free(first), "somebody has it"
    for port in held:
        if os.geteuid() == 0:
            end_what_is_left(port)
            assert is_free(port)


def test_many_attempts_of_a_team_have_few_ports_of_gangs_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred small jobs with 64 each had 6,400 of the 10,000, and so most gangs of others could not begin there."""
    monkeypatch.setattr(proc, "descendants", set)
    counts = [64, 64, 60, 64, 64, 1, 0, 1, 0]
    uses = [SharedUse(PortsHad(uid=1, most=64, had=set(range(count)))) for count in counts]
    others = [SharedUse(PortsHad(uid=2, most=64, had=set(range(64)))) for _ in range(4)]
    ended = SharedLook(SELDOM_S).look([*others, *uses])
    assert list(ended) == uses[:1], "318 and may have 4 x 64 + 9 x 2 = 274; without it 254"
    assert ended[uses[0]].startswith("port limit: attempts of its team there have had 318 of the ports")
    assert not SharedLook(SELDOM_S).look([*others, *uses]), "it is being ended"


@pytest.mark.parametrize("bind", [ONLY_BOUND, listening, connected])
def test_who_has_had_more_ports_of_gangs_than_it_may_is_ended(
    me: SharedUse, bind: Callable[[socket.socket, int], None]
) -> None:
    me.ports.most = 30
    looks = quiet(SharedLook(SELDOM_S), me)
    already = set(me.ports.had)  # of tests before it in this process
    looks._gang_ports._all_at_s = 0.0
    with free_ports(20, bind) as before:
        assert looks.due()
        assert not looks.look([me])
    looks._next_thorough = 0.0
    looks.look([me])
    looks._next_thorough = sys.maxsize
    looks._gang_ports._all_at_s = 0.0
    with free_ports(40, bind) as held:
        why = looks.look([me])[me]
        count = len(already | before.keys() | held.keys())
        assert len(me.ports.had) == count
    assert why == f"port limit: it has had {count} of the ports 20000 to 29999, at which gangs meet, and may have 30"


def test_connections_to_a_server_at_such_a_port_are_not_looked_for(
    me: SharedUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job serves at its own port, and of thousands of connections each would be looked for in its tables."""
    asked: list[int] = []
    real = gangports.sockets_of
    monkeypatch.setattr(gangports, "sockets_of", lambda pids, wanted: asked.extend(wanted) or real(pids, wanted))
    looks = GangPorts()
    with free_ports(1, listening) as held, ExitStack() as connections:
        ((port, server),) = held.items()
        for _ in range(5):
            connections.enter_context(socket.create_connection(("127.0.0.1", port)))
            connections.enter_context(server.accept()[0])
        looks.look([(me.ports, me.processes)], 0.0, thorough=True)
        assert len([one for one in held_ports(range(port, port + 1), CONNECTED) if one.inode]) == 5
        assert os.fstat(server.fileno()).st_ino in asked
        assert not {one.inode for one in held_ports(range(port, port + 1), CONNECTED)} & set(asked)
    assert port in me.ports.had


def test_a_socket_that_is_sent_and_not_received_is_its_teams(me: SharedUse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gangports, "sockets_of", lambda pids, wanted: set())
    me.ports.uid = os.getuid()
    looks, others = GangPorts(), PortsHad(uid=os.getuid() + 1)
    with free_ports(3, listening) as held:
        for attempt in range(2):
            looks.look([(me.ports, me.processes), (others, me.processes)], 0.0, thorough=True)
            assert (me.ports.had >= held.keys()) is bool(attempt), "once it may be a process that has just begun"
    assert not others.had


def test_who_holds_the_port_of_an_attempt_beside_it_is_noted(me: SharedUse) -> None:
    theirs = (
        "import socket, sys; s = socket.socket(); s.bind(('127.0.0.2', int(sys.argv[1]))); s.listen(); "
        "print(flush=True); input()"
    )
    looks = GangPorts()
    with free_ports(1, listening) as held:
        (me.ports.meets,) = held
        looks.look([(me.ports, me.processes)], 100.0, thorough=True)
        assert me.ports.in_the_way_s is None, "it is its own"
        command = [sys.executable, "-c", theirs, str(me.ports.meets)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            for _ in range(2):
                looks.look([(me.ports, me.processes)], 100.0, thorough=True)
            other.communicate(b"\n")
    assert me.ports.in_the_way_s == 100.0
    assert f"port {me.ports.meets}" in me.ports.was_in_the_way(110.0)
    assert me.ports.was_in_the_way(200.0) == "", "long ago, and nobody is there now"


@pytest.mark.parametrize(
    ("span", "kept", "given"),
    [
        ("32768\t60999", "", False),
        ("1024\t65535", "", True),
        ("1024\t65535", "20000-29999", False),
        ("1024\t65535", "5000,20000-24999,25001-29999", True),
        ("1024\t65535", "19000-24999,25000-31000", False),
    ],
)
def test_whether_the_machine_gives_ports_of_gangs_to_others(
    monkeypatch: pytest.MonkeyPatch, span: str, kept: str, given: bool
) -> None:
    def forget() -> None:
        given_out.cache_clear()
        local_ports.cache_clear()

    said = {
        "ip_local_port_range": span,
        "ip_local_reserved_ports": kept,
        "tcp_max_tw_buckets": "1000",
        "gc_thresh3": "0",
        "max_user_watches": "100000",
    }
    monkeypatch.setattr(proc, "read_text", lambda path: said[Path(path).name] + "\n")
    monkeypatch.setattr(shared, "open_files_of_machine", lambda: sys.maxsize)
    for asked in (given_out, lambda: bool(shared.lacking())):
        forget()
        assert asked() is given
    forget()


TAKES_ALL = """
import socket
server = socket.create_server(("127.0.0.1", 15_000))
for port in range(40_000, 40_200):
    one = socket.socket()
    one.bind(("0.0.0.0", port))
    one.connect(server.getsockname())
    other, _ = server.accept()
    one.close()
    other.close()
try:
    socket.create_connection(server.getsockname()).close()
    print("connected")
except OSError as e:
    print(e.strerror)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own, with settings of its own, is root's to make")
@pytest.mark.parametrize(("left", "said"), [(200, "Cannot assign requested address"), (100, "connected")])
def test_connections_that_have_ended_keep_all_ports_unless_fewer_are_remembered(left: int, said: str) -> None:
    """As a job could take all ports of its machine for a minute, and hold no socket."""
    settings = f"net.ipv4.ip_local_port_range='40000 40199' net.ipv4.tcp_max_tw_buckets={left}"
    script = f'ip link set lo up && sysctl -q -w {settings} && exec {sys.executable} -c "$1"'
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", script, "-", TAKES_ALL], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{said}\n"


def test_that_connections_which_have_ended_may_keep_most_ports_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "given_out", lambda: False)
    monkeypatch.setattr(shared, "open_files_of_machine", lambda: sys.maxsize)
    monkeypatch.setattr(shared, "local_ports", lambda: range(1000, 3000))
    monkeypatch.setattr(shared, "watches_of_a_user", lambda: 0)
    monkeypatch.setattr(neighbours, "places", lambda: 0)
    for left, told in ((1001, "sysctl -w net.ipv4.tcp_max_tw_buckets=1000"), (1000, ""), (0, "")):
        monkeypatch.setattr(shared, "connections_left", lambda left=left: left)
        assert told in "".join(shared.lacking())
        assert bool(shared.lacking()) is bool(told)


def test_connections_that_were_closed_and_are_not_gone_are_their_teams(
    me: SharedUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process has them, and each keeps its port until its other side reads."""
    monkeypatch.setattr(shared, "local_ports", lambda: GANG_PORTS)
    monkeypatch.setattr(shared, "sockets_of", lambda pids: set())
    real = shared.all_at

    def as_mine(
        ports: range, states: int, protocol: int
    ) -> list[sockdiag.HeldPort]:  # of root's the kernel tells no user
        return [replace(one, uid=2**31 if one.port in mine else one.uid) for one in real(ports, states, protocol)]

    monkeypatch.setattr(shared, "all_at", as_mine)
    me.ports.uid, me.sockets, mine = 2**31, 2, set[int]()
    with free_ports(3, bound) as held, socket.create_server(("127.0.0.1", 0)) as server:
        for port, one in held.items():
            one.connect(server.getsockname())
            filled(one).close()
            mine.add(port)
        assert shared.SharedLook(SELDOM_S).look([me])[me].startswith("socket limit: it had 3 ")


def test_few_open_files_for_the_machine_are_told_with_what_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "given_out", lambda: False)
    monkeypatch.setattr(shared, "connections_left", lambda: 0)
    monkeypatch.setattr(shared, "watches_of_a_user", lambda: 0)
    monkeypatch.setattr(neighbours, "places", lambda: 0)
    monkeypatch.setattr(shared, "open_files_of_machine", lambda: 100_000)
    (told,) = shared.lacking()
    assert told.startswith("all jobs together can have 100,000 files open")
    assert f"sysctl -w fs.file-max={sys.maxsize}" in told
    monkeypatch.setattr(shared, "open_files_of_machine", lambda: sys.maxsize)
    assert shared.lacking() == []


IN_A_NETWORK_OF_ITS_OWN = """
import subprocess
for words in ("link set lo up", "link add own0 type veth peer own1", "addr add 10.99.0.1/20 dev own0",
              "addr add 10.99.8.1/24 dev own0", "addr add 10.7.0.1/16 dev own1", "link set own1 arp off"):
    subprocess.run(["ip", *words.split()], check=True)
from services.agent.neighbours import addresses
print(addresses())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a network")
@pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2")
def test_addresses_that_have_to_be_asked_for_are_those_of_ones_own_networks() -> None:
    """Each once, and none of loopback or of an interface that asks nobody."""
    told = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", IN_A_NETWORK_OF_ITS_OWN], capture_output=True, text=True, check=True
    )
    assert told.stdout == "4096\n", told.stderr


def test_that_a_job_may_fill_the_table_of_neighbours_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends to each address of a wide network: tried with 1,024 places and 65,536 addresses, nobody on that machine reached
    a machine that it had not just spoken to, for as long as it went on."""
    for there_are, asked_for, told in (
        (1024, 65_536, True),
        (1024, 1025, True),
        (1024, 1024, False),
        (0, 65_536, False),
    ):
        monkeypatch.setattr(neighbours, "places", lambda there_are=there_are: there_are)
        monkeypatch.setattr(neighbours, "addresses", lambda asked_for=asked_for: asked_for)
        said = "".join(shared.lacking())
        assert (f"sysctl -w net.ipv4.neigh.default.gc_thresh3={2 * asked_for}" in said) is told


def test_that_a_job_may_stop_processors_by_what_it_watches_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried with 760,000 watches of one file in each of four processes: a write stopped a processor for up to a second."""
    for watches, told in ((5_491_511, True), (200_001, True), (200_000, False), (0, False)):
        monkeypatch.setattr(shared, "watches_of_a_user", lambda watches=watches: watches)
        assert ("sysctl -w fs.epoll.max_user_watches=100000" in "".join(shared.lacking())) is told


def test_that_a_job_may_bind_the_agents_port_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "first_port_of_all", lambda: 1024)
    for user, port, told in ((0, 8080, True), (0, 1024, True), (0, 1023, False), (0, 0, False), (1000, 8080, False)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert ("BATON_HTTP_PORT below 1024" in "".join(shared.lacking(port))) is told
