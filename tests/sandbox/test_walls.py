"""What `confine` does and reports, what a worker can still do afterwards, and what bounds it."""

from __future__ import annotations

import errno
import os
import platform
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.sandbox.escape_attacks import ATTACKS
from tests.sandbox.escape_harness import EVERY_WALL, NOBODY, Server, Worker
from tests.sandbox.test_escape import surroundings
from worker import sandbox
from worker.sandbox import codespace, landlock, limits, seccomp
from worker.sandbox import walls as walls_module

MEGABYTE = 1 << 20
LIFECYCLE = ["descriptors", "rlimits", "parent-death"]


def up(worker: Worker) -> list[str]:
    return [report.name for report in worker.walls if report.up]


def down(worker: Worker) -> dict[str, str]:
    return {report.name: report.detail for report in worker.walls if not report.up}


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


# --------------------------------------------------------------------------------------------------------- reports


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_every_wall_is_up_and_reported_in_a_fixed_order(server: Server, mode: str) -> None:
    with server.worker("hold", mode=mode) as worker:
        assert [report.name for report in worker.walls] == list(EVERY_WALL) == list(sandbox.NAMES)
        missing = down(worker)
        if "landlock" in missing:
            pytest.skip(f"this kernel: {missing['landlock']}")
        assert not missing


def test_mode_off_keeps_what_governs_the_life_of_a_worker_and_says_so(server: Server) -> None:
    with server.worker("hold", mode="off") as worker:
        assert up(worker) == LIFECYCLE
        assert set(down(worker).values()) == {"left out: the sandbox is off"}
        kernel = status(worker.pid)
        assert (kernel["Seccomp"], kernel["NoNewPrivs"]) == ("0", "0")


@pytest.mark.parametrize("mode", ["", "on", "Auto", "none"])
def test_an_unknown_mode_is_refused_before_anything_is_applied(mode: str) -> None:
    with pytest.raises(ValueError, match="expected 'off', 'auto' or 'required'"):
        sandbox.confine(keep_fd=9, parent_pid=1, mode=mode, memory_limit=None, cpu_limit=None)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (errno.ENOSYS, "needs Linux 5.13"),
        (errno.EOPNOTSUPP, "lsm="),
        (errno.EPERM, "an outer sandbox refuses Landlock"),
    ],
)
def test_a_kernel_without_landlock_is_reported_with_what_to_do_and_the_rest_stands(
    server: Server, error: int, says: str
) -> None:
    with server.worker("hold", outer={"landlock_create_ruleset": error}) as worker:
        assert list(down(worker)) == ["landlock"]
        assert says in down(worker)["landlock"]


def test_a_kernel_that_refuses_the_filter_is_reported_and_the_rest_stands(server: Server) -> None:
    with server.worker("hold", outer={"seccomp": errno.EINVAL}) as worker:
        assert list(down(worker)) == ["seccomp"]
        assert "CONFIG_SECCOMP_FILTER" in down(worker)["seccomp"]
        assert status(worker.pid)["NoNewPrivs"] == "1"


# What container engines refuse by default.
CONTAINER = dict.fromkeys(
    [
        "unshare",
        "setns",
        "mount",
        "umount2",
        "pivot_root",
        "bpf",
        "keyctl",
        "add_key",
        "perf_event_open",
        "userfaultfd",
        "io_uring_setup",
        "reboot",
    ],
    errno.EPERM,
) | {"clone3": errno.ENOSYS}


def test_every_wall_stands_inside_a_container_with_a_filter_of_its_own(server: Server) -> None:
    with server.worker("hold") as free, server.worker("services", outer=CONTAINER) as worker:
        assert up(worker) == up(free)
        assert len(worker.rest()) == 8
        assert worker.status()["status"] == 7


def test_a_kernel_without_close_range_closes_the_descriptors_all_the_same(server: Server) -> None:
    names = ["read an inherited file"]
    with server.worker("hold") as sibling, surroundings(server, sibling) as place:
        walls = tuple(name for name in EVERY_WALL if name != "seccomp")
        outer = {"close_range": errno.ENOSYS}
        with server.worker("attacks", walls=walls, outer=outer, names=names, place=list(place)) as worker:
            assert "descriptors" in up(worker)
            assert worker.rest()[-1] == {"errno": errno.EBADF, "name": names[0]}


def test_a_machine_without_a_table_of_calls_is_reported_and_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    plan = walls_module.Plan()
    for is_up, detail in (seccomp.install(plan.filter), landlock.restrict(plan.ruleset)):
        assert not is_up
        assert "x86_64 or aarch64" in detail


def test_an_environment_that_is_not_empty_is_reported() -> None:
    server = Server(environment={"API_KEY": "secret"})
    try:
        with server.worker("hold") as worker:
            assert "environment" not in up(worker)
            assert "start it with an empty environment" in down(worker)["environment"]
            assert "secret" not in str(worker.walls)
    finally:
        server.close()


def test_an_environment_cleared_too_late_is_still_in_memory_and_is_reported(server: Server) -> None:
    """Python's own view is empty then; only the kernel knows where the values still are."""
    late = Server(environment={"API_KEY": "secret"}, forget=True)
    try:
        with late.worker("hold") as worker:
            assert "still in its memory" in down(worker)["environment"]
    finally:
        late.close()


# ------------------------------------------------------------------------------------- what the kernel says of it


def test_the_kernel_confirms_what_is_reported(server: Server) -> None:
    with server.worker("hold", memory=64 * MEGABYTE, cpu=7) as worker:
        kernel = status(worker.pid)
        assert kernel["NoNewPrivs"] == "1"
        assert kernel["Seccomp"] == "2"
        assert kernel["Seccomp_filters"] == "1"
        assert kernel["Threads"] == "1"
        assert {kernel[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
        assert Path(f"/proc/{worker.pid}/oom_score_adj").read_text().strip() == "1000"
        assert Path(f"/proc/{worker.pid}/environ").stat().st_uid == 0, "a dumpable process owns its files in /proc"
        rows = [line.split("  ") for line in Path(f"/proc/{worker.pid}/limits").read_text().splitlines()]
        shown = {
            parts[0]: parts[1:3] for row in rows if len(parts := [part.strip() for part in row if part.strip()]) > 2
        }
        for name in ("core file size", "file size", "processes", "locked memory", "msgqueue size"):
            assert shown[f"Max {name}"] == ["0", "0"], name
        assert shown["Max open files"] == ["1", "1"]
        assert shown["Max cpu time"] == ["7", "8"]
        data, addresses = int(shown["Max data size"][0]), int(shown["Max address space"][0])
        used = int(kernel["VmData"].split()[0]) * 1024
        assert used < data < used + 80 * MEGABYTE
        assert addresses < int(kernel["VmSize"].split()[0]) * 1024 + 64 * MEGABYTE + limits.ADDRESS_SLACK + MEGABYTE


def test_only_its_socket_is_open_and_no_writable_page_is_shared_with_its_siblings(server: Server) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can look into a process that is not dumpable")
    with server.worker("hold") as worker:
        base = Path(f"/proc/{worker.pid}")
        links = [os.readlink(base / "fd" / name).partition(":")[0] for name in sorted(os.listdir(base / "fd"), key=int)]
        assert links == ["pipe", "socket"]
        permissions = [line.split()[1] for line in (base / "maps").read_text().splitlines()]
        assert permissions
        assert not [entry for entry in permissions if "w" in entry and entry.endswith("s")]


# -------------------------------------------------------------------------------------------- what still works


def test_a_confined_worker_has_everything_it_needs(server: Server) -> None:
    with server.worker("services") as worker:
        assert worker.rest() == [
            {"poll": []},
            {"select": [0, 0, 0]},
            {"timeout": True},
            {"timer": True},
            {"entropy": 16},
            {"clock": True},
            {"memory": 5},
            {"descriptors_in_python": True},
        ]
        assert worker.status()["status"] == 7


SCRIPTS = {
    "compilation": """(() => {
        let hash = 0;
        for (let i = 0; i < 400000; i++) hash = (hash * 31 + (i ^ (hash >>> 3))) | 0;
        return hash;
    })()""",
    "collection": """(() => {
        const keep = [];
        for (let i = 0; i < 150000; i++) { const o = { i, a: [i], s: 'k' + i }; if (i % 50 === 0) keep.push(o); }
        return keep.length;
    })()""",
    "large values": """(() => {
        const kept = [];
        for (let i = 0; i < 24; i++) kept.push(new Uint8Array(1 << 20).fill(i));
        return kept[23][9];
    })()""",
    "sorting": "Array.from({ length: 90000 }, (_, i) => (i * 7919) % 10007).sort((x, y) => x - y)[45000]",
    "recursion": """(() => {
        const deeper = () => { deeper(); };
        try { deeper(); } catch (error) { return error instanceof InternalError; }
    })()""",
    "regular expressions": r"'foo123bar456 '.repeat(500).match(/([a-z]+)(\d+)/g).length",
    "local time": "new Date(2024, 5, 1).toString() + Intl.DateTimeFormat().resolvedOptions().timeZone",
    "time zones": """['Asia/Tokyo', 'Europe/Berlin', 'America/New_York'].map((timeZone) => new Intl.DateTimeFormat(
        'de-DE', { timeZone, dateStyle: 'full', timeStyle: 'long' }).format(new Date(0))).join()""",
    "languages": """new Intl.NumberFormat('ar-EG', { style: 'currency', currency: 'EUR' }).format(12345.6)
        + new Intl.PluralRules('pl').select(3) + new Intl.RelativeTimeFormat('ja').format(-3, 'day')
        + new Intl.Collator('sv').compare('z', 'å') + 'é'.normalize('NFD').length + 'I'.toLocaleLowerCase('tr')""",
    "errors": "(() => { try { null.x; } catch (e) { return e.stack.length > 0 && e instanceof TypeError; } })()",
}


def test_scripts_compute_the_same_with_and_without_walls(server: Server) -> None:
    results: list[list[Any]] = []
    for walls in (EVERY_WALL, ()):
        with server.worker("evaluate", walls=walls, sources=list(SCRIPTS.values())) as worker:
            results.append(worker.rest())
            assert worker.status()["status"] == 7
    confined, free = (dict(zip(SCRIPTS, result, strict=True)) for result in results)
    assert confined == free


def test_siblings_draw_different_random_numbers(server: Server) -> None:
    drawn: set[float] = set()
    for _ in range(4):
        with server.worker("evaluate", sources=["Math.random()"]) as worker:
            drawn.update(worker.rest())
    assert len(drawn) == 4


# ---------------------------------------------------------------------------------------------- how it can end


def test_a_failed_assertion_in_native_code_is_seen_as_an_abort(server: Server) -> None:
    with server.worker("abort") as worker:
        assert worker.rest() == ["aborting"]
        assert worker.status()["status"] == -signal.SIGABRT


def test_the_slice_timer_ends_a_spin(server: Server) -> None:
    with server.worker("spin", slice_seconds=0.05, ignore=False) as worker:
        assert worker.rest() == ["spinning"]
        assert worker.status()["status"] == -signal.SIGPROF


@pytest.mark.parametrize(("ignore", "ends"), [(False, signal.SIGXCPU), (True, signal.SIGKILL)])
def test_the_cpu_limit_ends_a_process_that_disarmed_its_timer(
    unprivileged: Server, ignore: bool, ends: signal.Signals
) -> None:
    with unprivileged.worker("spin", cpu=1, slice_seconds=0, ignore=ignore) as worker:
        assert worker.rest() == ["spinning"]
        assert worker.status()["status"] == -ends


@pytest.mark.parametrize("walls", [pytest.param(EVERY_WALL, id="every wall"), pytest.param(LIFECYCLE, id="off")])
def test_a_worker_dies_with_its_parent_even_while_it_spins(walls: tuple[str, ...]) -> None:
    server = Server(NOBODY if os.geteuid() == 0 else None)
    try:
        with server.worker("spin", walls=tuple(walls), slice_seconds=0, ignore=False) as worker:
            process = psutil.Process(worker.pid)
            assert worker.next() == "spinning"
            server.process.kill()
            assert worker.next() is None  # its socket closed: the kernel has ended it
            worker.disown()
        process.wait(10)
    finally:
        server.close()


def test_a_worker_whose_parent_is_gone_already_never_starts(server: Server) -> None:
    with server.worker("hold", parent=os.getpid()) as worker:
        assert worker.walls == []
        assert worker.status()["status"] == 1


# ---------------------------------------------------------------------------------------------------- memory

MARGIN = 24 * MEGABYTE
"""Beyond the limit: page tables, the stack, and what was mapped but not used when the limit was set."""

CODE = sum(codespace.Codespace(0)[1:])
"""Pages of compiled code are not writable and so not counted; where they may be is limited instead."""

COUNTED = [
    "writable pages",
    "small writable pages",
    "pages reserved first and opened later",
    "the heap",
    "one growing mapping",
    "page tables",
    "Python objects",
    "pages made read-only after they were written",
    "pages made executable after they were written",
    "pages made unreadable after they were written",
    "compiled code",
    "compiled code moved away",
]


@pytest.mark.parametrize("way", COUNTED)
def test_memory_stays_within_the_limit_whichever_way_it_is_taken(server: Server, way: str) -> None:
    limit = 48 * MEGABYTE
    with server.worker("hold", memory=limit) as quiet:
        before = footprint(quiet.pid)
    with server.worker("hoard", memory=limit, way=way) as worker:
        assert worker.next() == "refused"
        grown = footprint(worker.pid) - before
        assert grown < limit + MARGIN + (CODE if way.startswith("compiled code") else 0)
        if way != "page tables":
            assert grown > limit / 4, "the attempt took too little to prove anything"


def footprint(pid: int) -> int:
    kernel = status(pid)
    return sum(int(kernel[name].split()[0]) * 1024 for name in ("VmRSS", "VmPTE", "VmSwap"))


def test_a_script_can_catch_the_end_of_its_memory(server: Server) -> None:
    source = """(() => {
        const kept = [];
        try { for (;;) kept.push(new Uint8Array(4 << 20).fill(1)); } catch (error) { return String(error); }
    })()"""
    with server.worker("evaluate", memory=48 * MEGABYTE, sources=[source]) as worker:
        assert "out of memory" in worker.rest()[0]


# -------------------------------------------------------------------------------------------------- second layer

WITHOUT_FILTER = [
    "read a file (openat)",
    "write a file (openat)",
    "truncate a file (truncate)",
    "remove a file (unlinkat)",
    "rename a file (renameat2)",
    "make a directory (mkdirat)",
    "open by an inherited directory (openat)",
    "read an inherited file",
    "connect to a TCP port",
    "listen on a TCP port",
    "connect to a unix socket by path",
    "connect to an abstract unix socket",
    "send a UDP datagram",
    "a netlink socket (socket)",
    "a new program (execve)",
    "a new program from memory",
    "signal a sibling (kill)",
    "raise a limit (setrlimit)",
    "make a file in memory (memfd_create)",
    "a handle on the host (pidfd_open)",
    "seize the host (ptrace)",
    "read the host's memory by address",
    "read a sibling's memory by address",
    "write a sibling's memory by address",
    "mount (mount)",
]


def test_without_the_filter_the_other_walls_still_stop_the_worst(server: Server) -> None:
    walls = tuple(name for name in EVERY_WALL if name != "seccomp")
    through: list[Any] = []
    known = {attack.name for attack in ATTACKS}
    assert set(WITHOUT_FILTER) <= known
    with server.worker("hold", walls=walls) as sibling, surroundings(server, sibling) as place:
        if "landlock" not in up(sibling):
            pytest.skip(f"this kernel: {down(sibling)['landlock']}")
        for name in WITHOUT_FILTER:
            with server.worker("attacks", walls=walls, names=[name], place=list(place)) as worker:
                found = worker.rest()[-1]
                if found.get("errno") not in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.EBADF):
                    through.append(found)
        sibling.release()
        assert sibling.status()["status"] == 7, "a sibling was disturbed"
    assert through == []
