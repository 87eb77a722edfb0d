"""What a hostile job tries. It runs as a job, alone with the standard library, and prints `refused NAME` or `BROKE NAME`.

What to aim at is in its environment: STATE (the agent's state folder), VICTIM (another team's attempt folder), VICTIM_JOB,
ABSTRACT (a socket of the host's), HOST_FILE, VICTIM_PID (as the machine numbers it), OWN_RECORD. ONLY
names those to try, by default all.
"""

import ctypes
import os
import resource
import signal
import socket
import struct
import subprocess
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
STATE, VICTIM, VICTIM_JOB = os.environ["STATE"], os.environ["VICTIM"], os.environ["VICTIM_JOB"]
ATTACKS = {}
FOUND = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and os.path.lexists(f"/proc/self/fd/{fd}")]
"""What was open when it began."""


def attack(call):
    """It has worked when it returns something true; an OSError, or nothing, says that it was refused."""
    ATTACKS[call.__name__] = call
    return call


def reads(path):
    with open(path, "rb") as file:
        file.read(1)
    return True


def writes(path):
    new = not os.path.exists(path)
    with open(path, "ab") as file:
        file.write(b"x")
    if new:
        os.remove(path)
    return True


def calls(name, number, *arguments):
    """A system call that must be refused by its number, whatever is wrong with its arguments."""

    def tried():
        ctypes.set_errno(0)
        result = LIBC.syscall(number, *arguments)
        return result >= 0 or ctypes.get_errno() not in (1, 38)

    ATTACKS[name] = tried


def connects(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(2)
        sock.connect(path)
    return True


# ------------------------------------------------------------------------------------------------- the agent's


for name, path in {
    "keys": f"{STATE}/keys.json",
    "credentials": f"{STATE}/creds/nats.creds",
    "incarnations": f"{STATE}/agent/incarnations.json",
    "keeper_log": f"{STATE}/agent/keeper.log",
    "victims_file": f"{VICTIM}/secret",
    "victims_checkpoint": f"{STATE}/checkpoints/{VICTIM_JOB}/secret",
    "victims_log": f"{STATE}/jobs/.agent/{VICTIM_JOB}.1.blue/rank-0.log",
    "own_record": os.environ["OWN_RECORD"],
    "hosts_tmp": os.environ["HOST_FILE"],
    "shadow": "/etc/shadow",
    "root_home": os.path.expanduser("~root/.bashrc"),
    "memory_device": "/dev/mem",
    "kernel_log": "/dev/kmsg",
    "disk": "/dev/vda",
    "fuse": "/dev/fuse",
    "kernel_memory": "/proc/kcore",
    "shims_environment": "/proc/1/environ",
    "shims_memory": "/proc/1/mem",
    "cgroup_of_all": "/sys/fs/cgroup/cgroup.procs",
    "debugfs": "/sys/kernel/debug/sched/debug",
    "shims_maps": "/proc/1/maps",
    "shims_stack": "/proc/1/stack",
    "shims_folder": "/proc/1/cwd/.",
    "counts_of_pages": "/proc/kpagecount",
    "slabs": "/proc/slabinfo",
    "serial_number": "/sys/class/dmi/id/product_serial",
    "ports": "/dev/port",
    "registers_of_processors": "/dev/cpu/0/msr",
    "locks_of_all": "/proc/locks",
}.items():
    ATTACKS["read_" + name] = lambda path=path: reads(path)
for name, path in {
    "keys": f"{STATE}/keys.json",
    "own_record": os.environ["OWN_RECORD"],
    "programs": "/usr/bin/x",
    "settings": "/etc/x",
    "top": "/x",
    "devices": "/dev/x",
    "interpreter": f"{sys.prefix}/x",
    "host_settings": "/proc/sys/kernel/hostname",
    "sysrq": "/proc/sysrq-trigger",
    "core_pattern": "/proc/sys/kernel/core_pattern",
    "shims_oom_score": "/proc/1/oom_score_adj",
    "cgroup_limit": "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "pci": "/sys/bus/pci/rescan",
    "binfmt": "/proc/sys/fs/binfmt_misc/register",
    "modprobe": "/proc/sys/kernel/modprobe",
    "uevent_helper": "/sys/kernel/uevent_helper",
    "panic": "/proc/sys/kernel/panic",
    "caches": "/proc/sys/vm/drop_caches",
    "huge_pages": "/proc/sys/vm/nr_hugepages",
    "processor_off": "/sys/devices/system/cpu/cpu1/online",
    "virtual_machines": "/dev/kvm",
    "tunnels": "/dev/net/tun",
    "loop_devices": "/dev/loop-control",
    "mapped_disks": "/dev/mapper/control",
    "own_identities": "/proc/self/uid_map",
}.items():
    ATTACKS["write_" + name] = lambda path=path: writes(path)


@attack
def have_the_kernel_watch_itself():
    """A trigger costs it memory that is no job's, and time."""
    trigger = os.open("/proc/pressure/memory", os.O_RDWR | os.O_NONBLOCK)
    os.write(trigger, b"some 150000 2000000\0")
    return True


@attack
def keepers_socket():
    return connects(f"{STATE}/agent/keeper.sock")


@attack
def open_socket_in_state():
    return connects(f"{STATE}/mongo.sock")


@attack
def abstract_socket():
    return connects("\0" + os.environ["ABSTRACT"])


@attack
def docker():
    return connects("/run/docker.sock") or connects("/var/run/docker.sock")


@attack
def jobs_of_others():
    """The folders above one's own are empty but for the way to it."""
    jobs = {name for name in os.listdir(f"{STATE}/jobs") if name.startswith("job-")}
    return jobs - {f"{os.environ['BATON_JOB_ID']}.1"} or set(os.listdir(STATE)) - {"jobs", "checkpoints"}


# --------------------------------------------------------------------------------------------- other processes


@attack
def see_others():
    """All processes that are seen are the shim, this one, and what it starts."""
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        if pid == 1 or os.getsid(pid) == os.getsid(0):
            continue
        return True
    return False


@attack
def environments_of_others():
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (os.getpid(), os.getppid()):
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if b"BATON_NATS" in file.read():
                        return True
            except OSError:
                continue
    return False


@attack
def kill_shim():
    os.kill(1, signal.SIGKILL)
    return True


@attack
def kill_victim():
    os.kill(int(os.environ["VICTIM_PID"]), signal.SIGKILL)
    return True


@attack
def trace_shim():
    return LIBC.ptrace(16, 1, 0, 0) == 0


@attack
def shims_files():
    return os.listdir("/proc/1/fd")


@attack
def shims_root():
    return os.listdir("/proc/1/root")


@attack
def stranger_by_pidfd():
    return os.pidfd_open(int(os.environ["VICTIM_PID"])) > 0


@attack
def shims_descriptor():
    """pidfd_getfd: a copy of what another process has open."""
    shim = os.pidfd_open(1)
    return any(LIBC.syscall(438, shim, fd, 0) >= 0 for fd in range(3, 64))


@attack
def shims_memory_by_call():
    """process_vm_readv."""
    here, there = ctypes.create_string_buffer(8), ctypes.c_uint64(8)
    own = (ctypes.c_void_p * 2)(ctypes.addressof(here), 8)
    return LIBC.process_vm_readv(1, own, 1, (ctypes.c_void_p * 2)(ctypes.addressof(there), 8), 1, 0) >= 0 or (
        ctypes.get_errno() != 1
    )


@attack
def leaked_descriptors():
    """Of the shim, the keeper, or the view that it was made of."""
    return FOUND


@attack
def mount_namespaces_of_others():
    """NS_MNT_GET_PREV and _NEXT: from one namespace of mounts to its neighbours, the host's among them."""
    import fcntl

    own = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    found = []
    for request in (0x8010B70C, 0x8010B70B):
        try:
            found.append(fcntl.ioctl(own, request, bytes(16)))
        except OSError:
            continue
    return found


@attack
def mounts_of_the_host():
    """listmount, of the namespace that has the lowest numbers."""
    for space in range(1, 64):
        request = (ctypes.c_uint64 * 4)(32, 2**64 - 1, 0, space)
        found = (ctypes.c_uint64 * 64)()
        if LIBC.syscall(458, request, found, 64, 0) > 0:
            return True
    return False


@attack
def hold_of_shared_folders():
    """What all jobs see is one file system: a file made there would be seen by others."""
    for folder in ("/", "/dev", "/sys", "/var", "/run", "/proc"):
        try:
            os.mkdir(f"{folder}/of-red")
        except OSError:
            continue
        return True
    return False


@attack
def terminals_of_others():
    """One that is opened here is number 0, and no other is there."""
    mine = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
    there = set(os.listdir("/dev/pts")) - {"ptmx"}
    os.close(mine)
    return there != {"0"}


@attack
def queues_of_others():
    """Message queues, of both kinds."""
    return LIBC.msgget(0x0BA70, 0) >= 0 or os.path.exists("/dev/mqueue/of-victim")


@attack
def become_real_time():
    for policy in (os.SCHED_FIFO, os.SCHED_RR):
        try:
            os.sched_setscheduler(0, policy, os.sched_param(1))
        except OSError:
            continue
        return True
    return False


@attack
def best_of_disks():
    """ioprio_set: real-time class."""
    return LIBC.syscall(251, 1, 0, 1 << 13) == 0


# ---------------------------------------------------------------------------------------------- shared memory


@attack
def shared_memory_of_others():
    return os.path.exists("/dev/shm/of-victim") or LIBC.shmget(0x0BA70, 0, 0) >= 0


@attack
def tmp_of_others():
    return os.path.exists("/tmp/of-victim")


# ---------------------------------------------------------------------------------------------------- rights


@attack
def become_root():
    os.setuid(0)
    return True


@attack
def become_victim():
    os.setuid(int(os.environ.get("VICTIM_UID", "0")))
    return True


@attack
def set_user_id_program():
    """Any that the machine has: `su` asks root of nobody that is root."""
    told = subprocess.run(
        ["/usr/bin/su", "root", "-c", "id -u"], capture_output=True, stdin=subprocess.DEVNULL, timeout=20
    )
    return told.stdout.strip() == b"0" and os.getuid() != 0


@attack
def make_device():
    os.mknod("device", 0o600 | 0o060000, os.makedev(254, 0))
    return True


@attack
def raw_socket():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    return True


@attack
def packet_socket():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    return True


@attack
def hypervisors_socket():
    """It belongs to no network namespace."""
    socket.socket(40, socket.SOCK_STREAM)
    return True


@attack
def kernels_ciphers():
    socket.socket(38, socket.SOCK_SEQPACKET)
    return True


def no_such_protocol(family, kind, protocol):
    try:
        socket.socket(family, kind, protocol).close()
    except OSError as e:
        return e.errno != 93  # EPROTONOSUPPORT: whatever this machine would say, a job is told this
    return True


@attack
def memory_of_ping():
    """What is not read of it is no cgroup's, and no bound of the machine's holds it: 2 GB in 4 s."""
    return no_such_protocol(socket.AF_INET, socket.SOCK_DGRAM, 1) or no_such_protocol(10, socket.SOCK_DGRAM, 58)


@attack
def memory_of_netlink_between_processes():
    """The same: 3 GB in 2 s."""
    return no_such_protocol(socket.AF_NETLINK, socket.SOCK_RAW, 2)


@attack
def memory_of_several_ways():
    """MPTCP: it has the machine's memory of TCP, and no socket says how much."""
    return no_such_protocol(socket.AF_INET, socket.SOCK_STREAM, 262)


@attack
def modules_of_rare_protocols():
    """The kernel would load what it has for them, SCTP say."""
    return no_such_protocol(socket.AF_INET, socket.SOCK_STREAM, 132)


@attack
def pair_of_rare_sockets():
    """TIPC, by the other call that makes sockets."""
    LIBC.socketpair(30, socket.SOCK_STREAM, 0, (ctypes.c_int * 2)())
    return ctypes.get_errno() != 97


def filter_program():
    """That lets everything through, as the kernel takes it."""
    step = ctypes.create_string_buffer((0x7FFF_0000 << 32 | 0x06).to_bytes(8, "little"), 8)
    return step, (1).to_bytes(8, "little") + ctypes.addressof(step).to_bytes(8, "little")


@attack
def filters_of_sockets():
    """The kernel compiles each. 13,000 had all the room that there is for that, and nobody but root had one any more."""
    step, program = filter_program()
    one, _ = socket.socketpair()
    one.setsockopt(socket.SOL_SOCKET, 26, program)
    return bool(step)


@attack
def filters_of_sockets_at_one_port():
    step, program = filter_program()
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, 15, 1)
        one.setsockopt(socket.SOL_SOCKET, 51, program)
    return bool(step)


@attack
def filters_of_calls():
    """The same room."""
    _, program = filter_program()
    there = ctypes.create_string_buffer(program, 16)
    return (
        LIBC.prctl(22, 2, there, 0, 0) == 0
        or LIBC.syscall(317 if os.uname().machine == "x86_64" else 277, 1, 0, there) >= 0
    )


def no_such_option(family, kind, level, option, value):
    """Whether it is another errno than ENOPROTOOPT that says no, or none."""
    with socket.socket(family, kind) as one:
        try:
            one.setsockopt(level, option, value)
        except OSError as e:
            return e.errno != 92
    return True


@attack
def old_options_of_ipv6():
    """IPV6_2292PKTOPTIONS: 64 KiB that are no cgroup's for each socket, 1 GB in a second."""
    about = struct.pack("QII", 65_520, 99, 1).ljust(65_520, b"x")
    return no_such_option(socket.AF_INET6, socket.SOCK_DGRAM, 41, 6, about)


@attack
def groups_of_ipv6():
    """IPV6_ADD_MEMBERSHIP: as many as it likes, each in memory that is no cgroup's."""
    return no_such_option(socket.AF_INET6, socket.SOCK_DGRAM, 41, 20, socket.inet_pton(10, "ff02::1:0:7") + bytes(4))


@attack
def keys_of_signatures():
    """TCP_MD5SIG: a thousand of a socket's."""
    key = struct.pack("=HH4s", socket.AF_INET, 0, bytes((10, 0, 0, 1))).ljust(128, b"\0")
    key += struct.pack("=BBHi", 0, 0, 8, 0).ljust(88, b"x")
    return no_such_option(socket.AF_INET, socket.SOCK_STREAM, 6, 14, key)


def wait_for(count):
    """poll, for so many: of one file all of them."""
    reading, writing = os.pipe()
    os.close(writing)
    waited = (ctypes.c_uint64 * count)(*[1 << 32 | reading] * count)
    found = LIBC.poll(waited, ctypes.c_ulong(count), 0)
    os.close(reading)
    return found >= 0


def raise_open_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


@attack
def wait_for_very_many():
    """64 bytes that are no cgroup's for each, in each thread that waits."""
    raise_open_files()
    nothing = (ctypes.c_uint64 * 1024)()
    return wait_for(4097) or LIBC.select(4097, nothing, None, None, (ctypes.c_uint64 * 2)()) >= 0


@attack
def locks_of_files_themselves():
    """F_OFD_SETLK: the file may be sent to a socket and kept there, and the locks are no process's."""
    import fcntl

    with open("locked", "wb") as file:
        fcntl.fcntl(file, 37, struct.pack("=hhxxxxqqixxxx", fcntl.F_WRLCK, 0, 0, 1, 0))
    return True


@attack
def told_of_all_that_others_open():
    """F_NOTIFY: who opens a file there tells each descriptor that has asked; 160,000 made a start of Python take seconds."""
    import fcntl

    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fcntl.fcntl(os.open("/usr/bin", os.O_RDONLY), 1026, 0x8000_0020)
    return True


@attack
def locks_and_waits_that_jobs_need():
    """Not refused, or this test would prove nothing of the others."""
    import fcntl

    with open("locked", "wb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX)
            fcntl.flock(file, fcntl.LOCK_EX)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, bytes((224, 0, 0, 251, 127, 0, 0, 1)))
        except OSError:
            return True
    raise_open_files()
    return not wait_for(4096)


@attack
def sockets_that_jobs_need():
    """Not refused, or this test would prove nothing of the others."""
    usual = [(family, 0) for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)]
    for family, protocol in (*usual, (socket.AF_INET, 17), (socket.AF_NETLINK, 4), (socket.AF_NETLINK, 15)):
        try:
            socket.socket(family, socket.SOCK_DGRAM, protocol).close()
        except OSError as e:
            if e.errno != 97 or family != socket.AF_INET6:  # a machine without IPv6
                return True
    return False


@attack
def raise_priority():
    os.nice(-5)
    return True


@attack
def raise_limit():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + 1, most + 1))
    return True


@attack
def spare_itself():
    """When memory is short, the kernel ends others in its place."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-999")
    return True


@attack
def be_ended_as_late_as_services():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")
    return True


@attack
def root_in_the_records_of_the_kernel():
    """Who has no login yet, as what a daemon has started, may say once which it is."""
    with open("/proc/self/loginuid", "w") as file:
        file.write("0")
    return True


@attack
def name_of_the_host():
    return LIBC.sethostname(b"of-red", 6) == 0


@attack
def network_down():
    """SIOCSIFFLAGS: the loopback of all."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, b"lo".ljust(16, b"\0") + bytes(24))
    return True


@attack
def kill_shim_by_a_pipe():
    """F_SETOWN and F_SETSIG: the kernel sends the signal when the pipe is written."""
    import fcntl

    reading, writing = os.pipe()
    fcntl.fcntl(reading, 10, signal.SIGKILL)
    fcntl.fcntl(reading, fcntl.F_SETOWN, 1)
    fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(writing, b"x")
    return os.read(reading, 1) != b"x"  # with its shim it would have ended here


@attack
def be_another_to_a_socket():
    """SCM_CREDENTIALS of root, in its shim's name."""
    import struct

    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        other.setsockopt(socket.SOL_SOCKET, 16, 1)  # SO_PASSCRED
        one.sendmsg([b"x"], [(socket.SOL_SOCKET, 2, struct.pack("3i", 1, 0, 0))])
    return True


@attack
def second_name_of_a_set_user_id_program():
    os.link("/usr/bin/su", "su")
    return True


@attack
def set_user_id_program_of_its_own():
    """Of its own user it may be; what is executed gains nothing by it, and never root's."""
    with open("/usr/bin/id", "rb") as file, open("own-id", "wb") as own:
        own.write(file.read())
    os.chmod("own-id", 0o6755)
    os.chown("own-id", 0, 0)
    return True


@attack
def capabilities_of_a_file():
    with open("capable", "w"):
        os.setxattr("capable", "security.capability", bytes.fromhex("0100000202000000000000000000000000000000"))
    return True


@attack
def trusted_attributes():
    with open("trusted", "w"):
        os.setxattr("trusted", "trusted.of-red", b"x")
    return True


@attack
def file_that_nobody_can_remove():
    """FS_IOC_SETFLAGS: immutable."""
    import fcntl

    with open("immutable", "w") as file:
        fcntl.ioctl(file, 0x40086602, (0x10).to_bytes(8, "little"))
    return True


def asked_of_its_folder(*requests):
    """Each must be refused by its number, whatever the file system has of it."""
    import fcntl

    folder = os.open(".", os.O_RDONLY)
    for request in requests:
        try:
            fcntl.ioctl(folder, request, bytearray(4096))
        except OSError as e:
            if e.errno == 1:
                continue
        return True
    return False


@attack
def folder_of_another_project():
    """FS_IOC_FSSETXATTR: nothing can be moved into it (XFS), and its quota is another's."""
    return asked_of_its_folder(0x401C5820)


@attack
def folder_that_nobody_can_read():
    """Keys and policies of encryption."""
    return asked_of_its_folder(0xC0506617, 0x800C6613)


@attack
def folder_on_a_volume_of_its_own():
    """Subvolumes and snapshots of btrfs, and what makes them read-only."""
    return asked_of_its_folder(0x5000940E, 0x50009418, 0x50009401, 0x50009417, 0x4008941A)


@attack
def namespaces_by_pidfd():
    """setns with a process, the shim, in the place of a file."""
    return LIBC.setns(os.pidfd_open(1), 0x0002_0000) == 0


@attack
def give_file_away():
    open("mine", "w").close()
    os.chown("mine", 0, 0)
    return True


@attack
def move_own_folder():
    home = os.environ["HOME"]
    os.rename(home, home + "-gone")
    return True


@attack
def change_root():
    os.chroot(".")
    return True


@attack
def join_namespace():
    with open("/proc/self/ns/mnt") as file:
        return LIBC.setns(file.fileno(), 0) == 0


@attack
def own_user_namespace():
    return LIBC.unshare(0x1000_0000) == 0


@attack
def own_mounts():
    return LIBC.unshare(0x0002_0000) == 0


@attack
def child_in_user_namespace():
    pid = LIBC.syscall(56, 0x1000_0000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid > 0


@attack
def mount():
    return LIBC.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None) == 0


@attack
def make_writable():
    return LIBC.mount(None, b"/usr", None, 0x20 | 0x1000, None) == 0


@attack
def unmount():
    return LIBC.umount2(b"/tmp", 2) == 0


@attack
def type_into_terminal():
    import fcntl

    fcntl.ioctl(os.open("/dev/ptmx", os.O_RDWR), 0x5412, b"x")
    return True


@attack
def another_line_discipline():
    """TIOCSETD, on a terminal of its own: the kernel would load a module. 27 is what each has (N_NULL)."""
    import fcntl

    _, terminal = os.openpty()
    fcntl.ioctl(terminal, 0x5423, struct.pack("i", 27))
    return True


if os.uname().machine == "x86_64":
    calls("call_bpf", 321, 0, 0, 0)
    calls("call_keyctl", 250, 0, -3, 0)
    calls("call_add_key", 248, b"user", b"x", b"x", 1, -3)
    calls("call_userfaultfd", 323, 0)
    calls("call_perf", 298, 0, 0, -1, -1, 0)
    calls("call_kexec", 246, 0, 0, 0, 0)
    calls("call_load_module", 175, 0, 0, 0)
    calls("call_open_by_handle", 304, -1, 0, 0)
    calls("call_io_uring", 425, 1, 0)
    calls("call_syslog", 103, 3, 0, 0)
    calls("call_set_clock", 227, 0, 0)
    calls("call_clone3", 435, 0, 0)
    calls("call_move_mount", 429, -1, b"", -1, b"", 0)
    calls("call_open_tree_attr", 467, -100, b"/", 0, 0, 0)
    calls("call_file_setattr", 469, -100, b".", 0, 0, 0)
    calls("call_listns", 470, 0, 0, 0, 0)
    calls("call_quota", 179, 0, 0, 0, 0)
    calls("call_fanotify", 300, 0, 0)
    calls("call_fsopen", 430, b"tmpfs", 0)
    calls("call_mount_setattr", 442, -1, b"", 0, 0, 0)
    calls("call_pivot_root", 155, b".", b".")
    calls("call_swapon", 167, b"swap", 0)
    calls("call_account", 163, b"acct")
    calls("call_ports", 172, 3)
    calls("call_name_to_handle", 303, -100, b"/", 0, 0, 0)
    calls("call_x32", 0x4000_0000 + 39)

only = os.environ.get("ONLY", "").split()
for name, tried in ATTACKS.items():
    if only and name not in only:
        continue
    try:
        worked = tried()
    except (OSError, ValueError, subprocess.SubprocessError):
        worked = False
    print("BROKE" if worked else "refused", name, flush=True)
print("tried all", flush=True)
