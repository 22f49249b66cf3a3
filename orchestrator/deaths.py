"""Says in words how a worker died and, where its status tells, why."""

from __future__ import annotations

import signal

from protocol.errors import ErrorCode
from protocol.messages import ExitReport

__all__ = ["explain_death"]

_MIB = 1 << 20
_MEMORY_SHARE = 0.6
"""A worker that aborted with more than this share of its memory limit taken most likely ran into it: the engine aborts
on an allocation it cannot do without, wherever in the heap the last one went."""
_ABORTS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGTRAP, signal.SIGKILL}
_CRASHED = ": the JavaScript engine crashed, which a different script may avoid"
_ENDED = ": something on this machine ended it"
_CAUSES: dict[int, str] = {
    signal.SIGKILL: ": the system does that when it is out of memory, or somebody did",
    **dict.fromkeys((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT), _ENDED),
    **dict.fromkeys((signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGTRAP), _CRASHED),
}
_LEFT = {0: ": it left without a result"}
_FAILED = ": it failed inside, which is a fault of this engine"
"""The likely causes, in words."""


def explain_death(
    report: ExitReport | None,
    *,
    doing: str,
    sync_timeout: float,
    cpu_limit: int | None,
    memory_limit: int | None,
    base_memory: int = 0,
) -> tuple[ErrorCode, str]:
    """The code and the text for a worker that ended without a result.

    Args:
        report: its exit status and usage, ``None`` when its zygote died with it.
        doing: the last thing it was seen to do, e.g. ``agent call 3``.
        base_memory: resident bytes of an idle worker, which do not count against ``memory_limit``.
    """
    if report is None:
        text = "the workflow worker died together with its parent process"
        return ErrorCode.WORKER_DIED, _last(text, doing)
    usage = f"peak memory {report.peak_memory / _MIB:.0f} MiB, CPU time {report.cpu_seconds:.2f} s"
    number = -report.exit_code if report.exit_code < 0 else None
    if number == signal.SIGPROF:
        text = (
            f"the script ran for {sync_timeout:g} s without yielding (sync_timeout): a loop that does not end, or "
            f"one that needs an await in it ({usage})"
        )
        return ErrorCode.SCRIPT_TIMEOUT, _last(text, doing)
    out_of_cpu = cpu_limit is not None and number is not None and report.cpu_seconds >= cpu_limit - 0.5
    if number == signal.SIGXCPU or out_of_cpu:
        text = f"the script used up its CPU time of {cpu_limit} s (cpu_limit; {usage})"
        return ErrorCode.SCRIPT_TIMEOUT, _last(text, doing)
    how = f"was killed by {_name(number)}" if number is not None else f"exited with code {report.exit_code}"
    taken = report.peak_memory - base_memory
    if number in _ABORTS and memory_limit is not None and taken >= memory_limit * _MEMORY_SHARE:
        limit = f"its limit of {memory_limit // _MIB} MiB (memory_limit, on top of an idle worker's memory; {usage})"
        return ErrorCode.WORKER_MEMORY, _last(f"the script ran out of memory: its worker {how} near {limit}", doing)
    if number == signal.SIGSYS:
        text = f"the worker tried a system call its sandbox forbids and {how} ({usage})"
        return ErrorCode.WORKER_DIED, _last(text, doing)
    cause = _CAUSES.get(number, "") if number is not None else _LEFT.get(report.exit_code, _FAILED)
    text = f"the workflow worker {how} before the run settled{cause} ({usage})"
    return ErrorCode.WORKER_DIED, _last(text, doing)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last(text: str, doing: str) -> str:
    return f"{text}; last seen: {doing}" if doing else text
