"""Native attempts to leave a worker: what code that has taken over the process would try, one by one.

Two kinds. Most are one system call, given as data. The rest are small programs. Both raise `OSError` with the kernel's
answer or return something that says what they got. Numbers and memory are handled by ctypes: nothing here goes through
a Python function that could refuse by itself.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.sandbox import syscall_numbers

__all__ = ["ATTACKS", "Attack", "Surroundings", "call", "invoke"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.syscall.argtypes = [ctypes.c_long] * 7

_buffers: list[ctypes.Array[ctypes.c_char]] = []  # keeps alive what addresses point to


class Surroundings(NamedTuple):
    """What there is to attack outside the worker. All of it exists and would give way without the walls."""

    host: int
    """Process id of the test process."""
    secret_address: int
    """Where the host's memory holds `secret`."""
    secret: str
    sibling: int
    """Process id of another worker."""
    directory: str
    """Writable by everyone; holds `readable`, `removable`, `renamable` and the unix listener `listener`."""
    tcp_port: int
    udp_port: int
    abstract: str
    """Name of an abstract unix listener, without its leading zero byte."""
    own: int
    """The worker's own socket."""
    leaked_directory: int
    """A descriptor the worker's parent had open on a directory."""
    leaked_file: int
    """A descriptor the worker's parent had open on a file."""


def invoke(number: int, *arguments: int) -> int:
    """One system call by number.

    Raises:
        OSError: the kernel's answer.
    """
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    result: int = _libc.syscall(number, *padded)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def call(name: str, *arguments: int | bytes) -> int:
    """One system call by name; bytes are passed as the address of a writable copy."""
    return invoke(syscall_numbers.NATIVE[name], *(a if isinstance(a, int) else _address(a) for a in arguments))


def _address(data: bytes) -> int:
    buffer = ctypes.create_string_buffer(data, max(len(data), 1))
    _buffers.append(buffer)
    return ctypes.addressof(buffer)


class Attack(NamedTuple):
    """One attempt.

    Attributes:
        name: What is attempted.
        run: Attempts it.
        works: It succeeds for any user outside the walls, so the control run must see it succeed.
        fatal: The attempt itself ends the process, by SIGSYS.
        needs: The wall that stops it, where that is not the system call filter.
        answers: Errors that count as refused.
    """

    name: str
    run: Callable[[Surroundings], object]
    works: bool = False
    fatal: bool = False
    needs: str = "seccomp"
    answers: tuple[int, ...] = (errno.EPERM,)


ATTACKS: list[Attack] = []


def _one(
    what: str, name: str, *arguments: int | bytes | Callable[[Surroundings], int | bytes], works: bool = False
) -> None:
    """Register a single system call; an argument may be computed from the surroundings. Absent calls are left out."""
    if name not in syscall_numbers.NATIVE:
        return

    def run(place: Surroundings) -> object:
        return call(name, *(a(place) if callable(a) else a for a in arguments))

    ATTACKS.append(Attack(f"{what} ({name})", run, works))


def _program(
    what: str, *, works: bool = False, fatal: bool = False, needs: str = "seccomp", only: str = ""
) -> Callable[[Callable[[Surroundings], object]], None]:
    def register(run: Callable[[Surroundings], object]) -> None:
        if not only or only in syscall_numbers.NATIVE:
            ATTACKS.append(
                Attack(what, run, works, fatal, needs, (errno.EBADF,) if needs == "descriptors" else (errno.EPERM,))
            )

    return register


def _path(name: str) -> Callable[[Surroundings], bytes]:
    return lambda place: os.path.join(place.directory, name).encode() + b"\0"


def _host_file(name: str) -> Callable[[Surroundings], bytes]:
    return lambda place: f"/proc/{place.host}/{name}".encode() + b"\0"


def _host(place: Surroundings) -> int:
    return place.host


def _sibling(place: Surroundings) -> int:
    return place.sibling


def _own(place: Surroundings) -> int:
    return place.own


_CWD, _EMPTY_PATH = -100, 0x1000
_PASSWORDS = b"/etc/passwd\0"
_ROOM = bytes(4096)

# ------------------------------------------------------------------------------------------------------------ files
_one("read a file", "open", _PASSWORDS, os.O_RDONLY, works=True)
_one("read a file", "openat", _CWD, _PASSWORDS, os.O_RDONLY, works=True)
_one("read a file", "openat2", _CWD, _PASSWORDS, struct.pack("=QQQ", 0, 0, 0), 24)
_one("list the processes", "openat", _CWD, b"/proc\0", os.O_RDONLY | os.O_DIRECTORY, works=True)
_one("read the host's environment", "openat", _CWD, _host_file("environ"), os.O_RDONLY)
_one("read the host's memory", "openat", _CWD, _host_file("mem"), os.O_RDONLY)
_one("read the host's descriptors", "readlinkat", _CWD, _host_file("fd/0"), _ROOM, 4096)
_one("read its own environment", "openat", _CWD, b"/proc/self/environ\0", os.O_RDONLY)
_one("write its own memory as a file", "openat", _CWD, b"/proc/self/mem\0", os.O_RDWR)
_one("write a file", "openat", _CWD, _path("new"), os.O_WRONLY | os.O_CREAT, 0o666, works=True)
_one("truncate a file", "truncate", _path("readable"), 0, works=True)
_one("make an unnamed file", "openat", _CWD, _path(""), os.O_TMPFILE | os.O_RDWR, 0o600)
_one("make a directory", "mkdirat", _CWD, _path("made"), 0o777, works=True)
_one("remove a file", "unlinkat", _CWD, _path("removable"), 0, works=True)
_one("rename a file", "renameat2", _CWD, _path("renamable"), _CWD, _path("renamed"), 0, works=True)
_one("link a file", "linkat", _CWD, _path("listener"), _CWD, _path("linked"), 0)
_one("link symbolically", "symlinkat", _PASSWORDS, _CWD, _path("symlinked"), works=True)
_one("make a named pipe", "mknodat", _CWD, _path("pipe"), 0o010666, 0, works=True)
_one("change a mode", "fchmodat", _CWD, _path("readable"), 0o777)
_one("change a mode", "fchmodat2", _CWD, _path("readable"), 0o777, 0)
_one("change an owner", "fchownat", _CWD, _path("readable"), 0, 0, 0)
_one("set times", "utimensat", _CWD, _path("readable"), 0, 0, works=True)
_one("set an attribute", "setxattr", _path("readable"), b"user.x\0", b"1", 1, 0)
_one("read an attribute", "getxattr", _path("readable"), b"user.x\0", _ROOM, 64)
_one("ask about a file", "stat", _PASSWORDS, _ROOM, works=True)
_one("ask about a file", "newfstatat", _CWD, _PASSWORDS, _ROOM, 0, works=True)
_one("ask about a file", "statx", _CWD, _PASSWORDS, 0, 0x7FF, _ROOM, works=True)
_one("ask about access", "faccessat", _CWD, _PASSWORDS, 4, works=True)
_one("ask about access", "faccessat2", _CWD, _PASSWORDS, 4, 0)
_one("follow a link", "readlinkat", _CWD, b"/proc/self/exe\0", _ROOM, 4096, works=True)
_one("ask where it is", "getcwd", _ROOM, 4096, works=True)
_one("go elsewhere", "chdir", b"/\0", works=True)
_one("change the root", "chroot", b"/\0")
_one("ask about a file system", "statfs", b"/\0", _ROOM, works=True)
_one("open by an inherited directory", "openat", lambda p: p.leaked_directory, b"passwd\0", os.O_RDONLY, works=True)
_one("go into an inherited directory", "fchdir", lambda p: p.leaked_directory, works=True)
_one("list an inherited directory", "getdents64", lambda p: p.leaked_directory, _ROOM, 4096, works=True)
_one("map an inherited file", "mmap", 0, 4096, mmap.PROT_READ, mmap.MAP_PRIVATE, lambda p: p.leaked_file, 0, works=True)
_one("read an inherited file at a place", "pread64", lambda p: p.leaked_file, _ROOM, 16, 0, works=True)
_one("name a file by handle", "name_to_handle_at", _CWD, _PASSWORDS, struct.pack("=I", 128) + bytes(132), _ROOM, 0)
_one("open a file by handle", "open_by_handle_at", _CWD, _ROOM, 0)
_one("watch files", "inotify_init1", 0, works=True)
_one("watch the file system", "fanotify_init", 0, 0)
_one("mount", "mount", b"none\0", b"/tmp\0", b"tmpfs\0", 0, 0)
_one("remount the root writable", "mount", b"none\0", b"/\0", 0, 0x20 | 0x1000, 0)
_one("unmount", "umount2", b"/nowhere\0", 0)
_one("open a file system", "fsopen", b"tmpfs\0", 0)
_one("open a mount tree", "open_tree", _CWD, b"/\0", 0)
_one("move a mount", "move_mount", -1, b"\0", -1, b"\0", 0)
_one("change a mount", "mount_setattr", _CWD, b"/\0", 0, _ROOM, 32)
_one("change the root mount", "pivot_root", b"/nowhere\0", b"/nowhere\0")
_one("ask about mounts", "statmount", _ROOM, _ROOM, 512, 0)
_one("swap", "swapon", b"/nowhere\0", 0)
_one("quotas", "quotactl", 0, 0, 0, 0)
_one("flush all files", "sync")
_one("make a file in memory", "memfd_create", b"x\0", 0, works=True)
_one("make secret memory", "memfd_secret", 0)
_one("send a file", "sendfile", _own, lambda p: p.leaked_file, 0, 1)
_one("copy between descriptors", "splice", 0, 0, _own, 0, 1, 0)
_one("feed a pipe with pages", "vmsplice", 0, _ROOM, 0, 0)


@_program("read an inherited file", works=True, needs="descriptors")
def _(place: Surroundings) -> object:
    return call("read", place.leaked_file, _ROOM, 16)


# ---------------------------------------------------------------------------------------------------------- network
_one("a TCP socket", "socket", socket.AF_INET, socket.SOCK_STREAM, 0, works=True)
_one("a UDP socket", "socket", socket.AF_INET, socket.SOCK_DGRAM, 0, works=True)
_one("a TCP socket for IPv6", "socket", 10, socket.SOCK_STREAM, 0)
_one("a unix socket", "socket", socket.AF_UNIX, socket.SOCK_STREAM, 0, works=True)
_one("a netlink socket", "socket", 16, 3, 0, works=True)
_one("a packet socket", "socket", 17, 3, 0)
_one("a socket to the hypervisor", "socket", 40, socket.SOCK_STREAM, 0)
_one("a socket to the kernel's ciphers", "socket", 38, 5, 0)
_one("a pair of sockets", "socketpair", socket.AF_UNIX, socket.SOCK_STREAM, 0, _ROOM, works=True)
_one("connect the own socket", "connect", _own, struct.pack("=H", 1) + b"\0x", 4)
_one("bind the own socket", "bind", _own, struct.pack("=H", 1), 2)
_one("listen on the own socket", "listen", _own, 1)
_one("accept on the own socket", "accept4", _own, 0, 0, 0)
_one("set an option of the own socket", "setsockopt", _own, 1, 7, struct.pack("=i", 1 << 30), 4, works=True)
_one("ask who the peer is", "getsockopt", _own, 1, 17, _ROOM, struct.pack("=i", 12), works=True)
_one("ask the peer's address", "getpeername", _own, _ROOM, struct.pack("=i", 128), works=True)
_one("send urgent data", "sendto", _own, b"x", 1, 1, 0, 0)
_one("send to an address", "sendto", _own, b"x", 1, 0, struct.pack("=H", 1) + b"\0x", 4)
_one("send many", "sendmmsg", _own, _ROOM, 0, 0, works=True)
_one("receive many", "recvmmsg", _own, _ROOM, 0, 0, 0)


def _connected(family: int, kind: int, address: bytes) -> object:
    descriptor = call("socket", family, kind, 0)
    call("connect", descriptor, address, len(address))
    return call("write", descriptor, b"x", 1)


def _inet(port: int) -> bytes:
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + bytes([127, 0, 0, 1]) + bytes(8)


@_program("connect to a TCP port", works=True)
def _(place: Surroundings) -> object:
    return _connected(socket.AF_INET, socket.SOCK_STREAM, _inet(place.tcp_port))


@_program("send a UDP datagram", works=True)
def _(place: Surroundings) -> object:
    return _connected(socket.AF_INET, socket.SOCK_DGRAM, _inet(place.udp_port))


@_program("connect to a unix socket by path", works=True)
def _(place: Surroundings) -> object:
    path = os.path.join(place.directory, "listener").encode() + b"\0"
    return _connected(socket.AF_UNIX, socket.SOCK_STREAM, struct.pack("=H", socket.AF_UNIX) + path)


@_program("connect to an abstract unix socket", works=True)
def _(place: Surroundings) -> object:
    address = struct.pack("=H", socket.AF_UNIX) + b"\0" + place.abstract.encode()
    return _connected(socket.AF_UNIX, socket.SOCK_STREAM, address)


@_program("listen on a TCP port", works=True)
def _(place: Surroundings) -> object:
    descriptor = call("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    call("bind", descriptor, _inet(0), 16)
    return call("listen", descriptor, 1)


# -------------------------------------------------------------------------------------------------------- processes
def _ended(pid: int) -> object:
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)


_SIGCHLD = 17
_A_PROGRAM = Path("/bin/true").read_bytes()


@_program("fork", works=True, only="fork")
def _(place: Surroundings) -> object:
    return _ended(call("fork"))


@_program("fork by clone", works=True)
def _(place: Surroundings) -> object:
    return _ended(call("clone", _SIGCHLD))


@_program("fork by clone3", works=True)
def _(place: Surroundings) -> object:
    return _ended(call("clone3", struct.pack("=8Q", 0, 0, 0, 0, _SIGCHLD, 0, 0, 0), 64))


_one("fork in place", "vfork")
_one("a thread", "clone", 0x00010000 | 0x00000800 | 0x00000100)
_one("a process outside the parent's sight", "clone", 0x00008000)
_one("a new program", "execve", b"/bin/true\0", 0, 0, works=True)
_one("a new program by descriptor", "execveat", _CWD, b"/bin/true\0", 0, 0, 0, works=True)


@_program("a new program from memory", works=True)
def _(place: Surroundings) -> object:
    descriptor = call("memfd_create", b"x\0", 0)
    os.write(descriptor, _A_PROGRAM)
    return call(
        "execveat", descriptor, b"\0", struct.pack("=QQ", _address(b"x\0"), 0), struct.pack("=Q", 0), _EMPTY_PATH
    )


_one("wait for a process", "wait4", -1, 0, 1, 0)
_one("signal the host", "kill", _host, 0)
_one("signal a sibling", "kill", _sibling, 0, works=True)
_one("kill a sibling", "kill", _sibling, 9)
_one("signal everyone", "kill", -1, 0, works=True)
_one("signal the own group", "kill", 0, 0, works=True)
_one("signal a thread of the host", "tgkill", _host, _host, 0)
_one("signal a thread of a sibling", "tgkill", _sibling, _sibling, 0, works=True)
_one("signal any thread", "tkill", _sibling, 0, works=True)
_one("signal with data", "rt_sigqueueinfo", _host, 10, _ROOM)
_one("signal a thread with data", "rt_tgsigqueueinfo", _host, _host, 10, _ROOM)
_one("a handle on the host", "pidfd_open", _host, 0, works=True)
_one("a signal by handle", "pidfd_send_signal", 0, 0, 0, 0)
_one("the host's descriptors", "pidfd_getfd", 0, 0, 0)
_one("attach to the host", "ptrace", 16, _host, 0, 0)
_one("seize the host", "ptrace", 0x4206, _host, 0, 0)
_one("attach to a sibling", "ptrace", 16, _sibling, 0, 0)
_one("be traced", "ptrace", 0, 0, 0, 0)
_one("compare with the host", "kcmp", _host, lambda p: os.getpid(), 1, 0, 0)
_one("advise the host's memory", "process_madvise", 0, _ROOM, 0, 4, 0)
_one("free a dying process", "process_mrelease", 0, 0)
_one("ask for the parent", "getppid", works=True)
_one("ask for the host's group", "getpgid", _host, works=True)
_one("leave the group", "setpgid", 0, 0)
_one("leave the session", "setsid")
_one("move the host's pages", "move_pages", _host, 0, 0, 0, 0, 0)
_one("read the host's locks", "get_robust_list", _host, _ROOM, _ROOM)


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _copy(name: str, place: Surroundings, pid: int, address: int, data: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(data, len(data))
    local, remote = _Vector(ctypes.addressof(buffer), len(data)), _Vector(address, len(data))
    call(name, pid, ctypes.addressof(local), 1, ctypes.addressof(remote), 1, 0)
    return buffer.raw


@_program("read the host's memory by address")
def _(place: Surroundings) -> object:
    return _copy("process_vm_readv", place, place.host, place.secret_address, bytes(len(place.secret)))


@_program("read a sibling's memory by address")
def _(place: Surroundings) -> object:
    mine = ctypes.addressof(_landmark)  # siblings share one address layout
    return _copy("process_vm_readv", place, place.sibling, mine, bytes(8))


@_program("write a sibling's memory by address")
def _(place: Surroundings) -> object:
    mine = ctypes.addressof(_landmark)
    return _copy("process_vm_writev", place, place.sibling, mine, b"12345678")


_landmark = ctypes.create_string_buffer(8)

# --------------------------------------------------------------------------------------------------- limits, rights
_LIMIT = struct.pack("=QQ", 4096, 4096)
_one("raise a limit", "prlimit64", 0, 7, _LIMIT, 0, works=True)
_one("raise a limit", "setrlimit", 7, _LIMIT, works=True)
_one("read a limit", "prlimit64", 0, 7, 0, _ROOM, works=True)
_one("change the host's limits", "prlimit64", _host, 7, 0, _ROOM)
_one("change a priority", "setpriority", 0, 0, 5, works=True)
_one("read a priority", "getpriority", 0, _host, works=True)
_one("choose processors", "sched_setaffinity", 0, 8, b"\xff" * 8, works=True)
_one("read the host's processors", "sched_getaffinity", _host, 128, _ROOM, works=True)
_one("real-time scheduling", "sched_setscheduler", 0, 3, _ROOM)
_one("a deadline", "sched_setattr", 0, _ROOM, 0)
_one("an I/O priority", "ioprio_set", 1, 0, 0x4007, works=True)
_one("a user namespace", "unshare", 0x10000000)
_one("a mount namespace", "unshare", 0x00020000)
_one("a network namespace", "unshare", 0x40000000)
_one("join a namespace", "setns", 0, 0)
_one("become root", "setuid", 0)
_one("become root", "setresuid", 0, 0, 0)
_one("change groups", "setgroups", 0, 0)
_one("change the file user", "setfsuid", 0, works=True)
_one("take capabilities", "capset", struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *[0xFFFFFFFF] * 6))
_one("read capabilities", "capget", struct.pack("=Ii", 0x20080522, 0), _ROOM, works=True)
_one("change the execution domain", "personality", 0xFFFFFFFF, works=True)
_one("become dumpable", "prctl", 4, 1, works=True)
_one("survive the parent", "prctl", 1, 0, works=True)
_one("become a reaper", "prctl", 36, 1, works=True)
_one("move its own memory map", "prctl", 35, 14, _ROOM, 104)
_one("rename itself", "prctl", 15, b"host\0", works=True)
_one("allow a tracer", "prctl", 0x59616D61, -1)
_one(
    "another filter", "seccomp", 1, 0, struct.pack("=HxxxxxxQ", 1, _address(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000)))
)
_one("a filter listener", "seccomp", 2, 0, struct.pack("=I", 0x7FFF0000), works=True)
_one("another ruleset", "landlock_create_ruleset", 0, 0, 1)
_one("a port", "ioperm", 0, 1, 1)
_one("all ports", "iopl", 3)
_one("a descriptor table of segments", "modify_ldt", 0, _ROOM, 16)
_one("the thread pointer", "arch_prctl", 0x1003, _ROOM, works=True)

# ----------------------------------------------------------------------------------------------------------- kernel
_one("an I/O ring", "io_uring_setup", 8, bytes(120))
_one("enter an I/O ring", "io_uring_enter", 0, 0, 0, 0, 0, 0)
_one("register with an I/O ring", "io_uring_register", 0, 0, 0, 0)
_one("asynchronous I/O", "io_setup", 1, bytes(8))
_one("a kernel program", "bpf", 0, _ROOM, 72)
_one("a performance counter", "perf_event_open", struct.pack("=II", 1, 112) + bytes(120), 0, -1, -1, 0)
_one("a key", "add_key", b"user\0", b"x\0", b"y", 1, -3)
_one("ask for a key", "request_key", b"user\0", b"x\0", 0, 0)
_one("the session's keys", "keyctl", 0, -3, 0)
_one("page faults in user space", "userfaultfd", 1)
_one("a kernel module", "init_module", _ROOM, 0, b"\0")
_one("a kernel module by file", "finit_module", -1, b"\0", 0)
_one("remove a module", "delete_module", b"none\0", 0)
_one("another kernel", "kexec_load", 0, 0, 0, 0)
_one("restart with a wrong password", "reboot", 0, 0, 0, 0)
_one("the kernel log", "syslog", 10, 0, 0)
_one("process accounting", "acct", 0)
_one("set the clock", "clock_settime", 0, _ROOM)
_one("adjust the clock", "adjtimex", _ROOM)
_one("set the host name", "sethostname", b"x", 1 << 20)
_one("name the machine", "uname", _ROOM, works=True)
_one("the machine's load", "sysinfo", _ROOM, works=True)
_one("which processor this is", "getcpu", _ROOM, _ROOM, 0, works=True)
_one("hang up the terminal", "vhangup")


def _host_clock(place: Surroundings) -> int:
    return (~place.host << 3 | 2) & 0xFFFFFFFF


_one("the host's CPU time", "clock_gettime", _host_clock, _ROOM, works=True)

# ------------------------------------------------------------------------------------------- descriptors and memory
_one("a pipe", "pipe2", _ROOM, 0, works=True)
_one("another name for the socket", "dup", _own, works=True)
_one("another name for the socket", "dup3", _own, 100, 0, works=True)
_one("another name for the socket", "fcntl", _own, 0, 10, works=True)
_one("a signal's receiver", "fcntl", _own, 8, _host)
_one("asynchronous signals", "fcntl", _own, 4, 0o20000, works=True)
_one("a larger pipe", "fcntl", 0, 1031, 1 << 20)
_one("terminal input", "ioctl", _own, 0x5412, b"x")
_one("asynchronous signals", "ioctl", _own, 0x5452, struct.pack("=i", 1), works=True)
_one("pending bytes", "ioctl", _own, 0x541B, _ROOM, works=True)
_one("ask about the socket", "fstat", _own, _ROOM, works=True)
_one("an event counter", "eventfd2", 0, 0, works=True)
_one("a timer with a descriptor", "timerfd_create", 1, 0, works=True)
_one("signals with a descriptor", "signalfd4", -1, bytes(8), 8, 0, works=True)
_one("a poll set", "epoll_create1", 0, works=True)
_one("a kernel timer", "timer_create", 1, 0, _ROOM, works=True)
_one("the real-time timer", "setitimer", 0, bytes(32), 0, works=True)
_one("an alarm", "alarm", 0, works=True)
_one("close a range", "close_range", 500, 600, 0, works=True)
_one("shared memory", "mmap", 0, 4096, 3, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, 0, works=True)
_one("a growing mapping", "mmap", 0, 4096, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100, -1, 0, works=True)
_one("locked memory", "mmap", 0, 4096, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x2000, -1, 0)
_one("huge pages", "mmap", 0, 1 << 21, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000, -1, 0)
_one("lock memory", "mlock", _ROOM, 1)
_one("lock all memory", "mlockall", 1)
_one("rearrange pages", "remap_file_pages", 0, 0, 0, 0, 0)
_one("merge pages with other processes", "madvise", 0, 0, 12)
_one("poison memory", "madvise", 0, 0, 100)
_one("which pages are in memory", "mincore", 0, 0, 0, works=True)
_one("bind memory to a node", "mbind", 0, 0, 0, 0, 0, 0)
_one("a memory policy", "set_mempolicy", 0, 0, 0)
_one("move to another node", "migrate_pages", 0, 0, 0, 0)
_one("a protection key", "pkey_alloc", 0, 0)
_one("seal memory", "mseal", 0, 0, 0)
_one("a shadow stack", "map_shadow_stack", 0, 4096, 0)
_one("System V shared memory", "shmget", 0, 4096, 0o1600)
_one("System V messages", "msgget", 0, 0o1600)
_one("System V semaphores", "semget", 0, 1, 0o1600)
_one("a message queue", "mq_open", b"x\0", os.O_CREAT | os.O_RDWR, 0o600, 0)
_one("priority inheritance", "futex", bytes(4), 6, 0, 0, works=True)
_one("many locks", "futex_waitv", 0, 0, 0, 0, 0)
_one("a restartable sequence", "rseq", 0, 0, 0, 0)
_one("a stall of every processor", "membarrier", 1, 0, 0, works=True)

# ------------------------------------------------------------------------------------------ other ways into the kernel
if "fork" in syscall_numbers.NATIVE:

    @_program("the 32-bit entry into the kernel", fatal=True, only="fork")
    def _(place: Surroundings) -> object:
        # mov eax, 20 (getpid of the 32-bit table); int 0x80; ret
        code = bytes.fromhex("b814000000cd80c3")
        page = call("mmap", 0, 4096, 7, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        ctypes.memmove(page, code, len(code))
        return ctypes.CFUNCTYPE(ctypes.c_int)(page)()

    for _name in ("read", "getpid", "open", "fork", "execve", "ptrace"):
        _number = syscall_numbers.X86_64[_name] | 0x40000000

        def _x32(place: Surroundings, number: int = _number) -> object:
            return invoke(number, 0, 0, 0)

        ATTACKS.append(Attack(f"the x32 form of {_name}", _x32))
