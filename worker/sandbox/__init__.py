"""The sandbox of one worker: what its process may still do once a script has escaped into native code.

Guarantees, with every wall up: no file can be opened, read, changed or even named; nothing of the host's environment
or memory is readable; no connection, process or signal reaches anything but the worker itself; it uses at most its
memory and CPU limits and does not outlive its parent. A wall the kernel lacks is reported, never skipped in silence.

Two calls: `prepare` once in the process all workers are forked from, `confine` in each worker before its script comes.
"""

from __future__ import annotations

from protocol.messages import WallReport
from worker.sandbox.walls import LIFECYCLE, NAMES, Plan, raise_walls

__all__ = ["NAMES", "confine", "prepare"]

_plan: Plan | None = None


def prepare() -> None:
    """Build what all workers share (the system call filter, the Landlock rights) so that a fork does not pay for it.

    Call it when the engine is loaded: the filter depends on where the engine keeps compiled code. Called earlier, it
    leaves that part to each worker, or to a second call.
    """
    global _plan
    if _plan is None:
        _plan = Plan()
    else:
        _plan.complete()


def confine(
    *,
    keep_fd: int,
    parent_pid: int,
    mode: str,
    memory_limit: int | None,
    cpu_limit: int | None,
) -> tuple[WallReport, ...]:
    """Confine this process for good. Call it in the freshly forked worker, on its only thread.

    Afterwards the process can use ``keep_fd`` (send, receive, poll, select), memory, clocks, entropy and the profiling
    timer, and can end; it cannot make a descriptor, so objects that need one (epoll, files) must exist before.

    Args:
        keep_fd: The worker's socket, a connected stream at descriptor 3 or above; all others are closed.
        parent_pid: The process that forked this one. If it is gone already, this process exits at once.
        mode: ``"off"`` applies what governs the worker's life only (descriptors, limits, death with the parent);
            ``"auto"`` and ``"required"`` apply everything there is. Refusing when a wall is down is the caller's part.
        memory_limit: Bytes the worker may allocate beyond what it uses now; None for no limit.
        cpu_limit: CPU seconds in its life; None for no limit.

    Returns:
        One report per wall, in the order of `NAMES`; a wall that is down says why.

    Raises:
        ValueError: ``mode`` or ``keep_fd`` is not one of those above.
    """
    if mode not in ("off", "auto", "required"):
        raise ValueError(f"sandbox mode {mode!r}: expected 'off', 'auto' or 'required'")
    prepare()
    assert _plan is not None
    return raise_walls(
        _plan,
        LIFECYCLE if mode == "off" else frozenset(NAMES),
        keep_fd=keep_fd,
        parent_pid=parent_pid,
        memory_limit=memory_limit,
        cpu_limit=cpu_limit,
    )
