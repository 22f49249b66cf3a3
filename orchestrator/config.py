"""The settings of an engine, checked at construction: a senseless value names its field and what it accepts."""

from __future__ import annotations

import os
from typing import Literal, get_args

import msgspec

__all__ = ["EngineConfig", "SandboxMode", "WorkerMode"]

SandboxMode = Literal["required", "auto", "off"]

WorkerMode = Literal["auto", "spawn"]

MIB = 1 << 20
MAX_DEPTH_CEILING = 800
"""CPython 3.11 and msgspec both decode JSON recursively and refuse about 1000 levels, less what is on the stack."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an engine runs scripts. Times are seconds, sizes bytes.

    Args:
        provider: the agent provider used when neither the request nor the call names one.
        max_concurrent_agents: agents of one run at work at once; 0 means ``min(16, max(1, cpus - 2))``.
        max_total_agents: ``agent()`` calls in one run.
        max_items_per_call: items of one ``parallel()`` or ``pipeline()`` call.
        sync_timeout: CPU time a script may spend between two yields.
        run_timeout: wall-clock time of one run, ``None`` for no limit.
        cpu_limit: CPU time of one worker in whole seconds, ``None`` for no limit.
        memory_limit: what a worker may allocate beyond what an idle one uses, ``None`` for no limit.
        max_frame: the largest message either way: bounds a result, ``args``, a prompt, an agent's answer.
        max_depth: levels of nesting of a value that leaves the script.
        dispose_grace: how long a closing run waits for agents that ignore the abort.
        token_budget: output tokens one run may spend, ``None`` for no ceiling.
        spare_workers: workers kept forked and ready.
        max_workers: live workers at once, spares included; 0 means as many as the descriptor limit allows.
        worker_mode: ``auto`` forks workers from a warm process where the engine survives it; ``spawn`` never does.
        sandbox: ``required`` refuses to run without every wall, ``auto`` uses what the kernel has, ``off`` none.

    Raises:
        TypeError: an unknown setting.
        ValueError: a senseless value.
    """

    provider: str = "default"
    max_concurrent_agents: int = 0
    max_total_agents: int = 1000
    max_items_per_call: int = 4096
    sync_timeout: float = 5.0
    run_timeout: float | None = None
    cpu_limit: int | None = 600
    memory_limit: int | None = 512 * MIB
    max_frame: int = 64 * MIB
    max_depth: int = 500
    dispose_grace: float = 5.0
    token_budget: int | None = None
    spare_workers: int = 2
    max_workers: int = 0
    worker_mode: WorkerMode = "auto"
    sandbox: SandboxMode = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.provider, str) or not self.provider or self.provider != self.provider.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            self._refuse("provider", "a non-empty string without surrounding white space")
        self._check_int("max_concurrent_agents", 0)
        self._check_int("max_total_agents", 1)
        self._check_int("max_items_per_call", 1)
        self._check_seconds("sync_timeout", minimum=0.01)
        if self.run_timeout is not None:
            self._check_seconds("run_timeout", minimum=0.001)
        if self.cpu_limit is not None:
            self._check_int("cpu_limit", 1)
        if self.memory_limit is not None:
            self._check_int("memory_limit", 16 * MIB)
        self._check_int("max_frame", 64 * 1024, (1 << 31) - 1)
        self._check_int("max_depth", 1, MAX_DEPTH_CEILING)
        self._check_seconds("dispose_grace", minimum=0.0)
        if self.token_budget is not None:
            self._check_int("token_budget", 1)
        self._check_int("spare_workers", 0)
        self._check_int("max_workers", 0)
        if self.sandbox not in get_args(SandboxMode):
            self._refuse("sandbox", "'required', 'auto' or 'off'")
        if self.worker_mode not in get_args(WorkerMode):
            self._refuse("worker_mode", "'auto' or 'spawn'")
        if self.max_workers and self.spare_workers > self.max_workers:
            self._refuse("spare_workers", f"at most max_workers ({self.max_workers})")

    @property
    def agent_slots(self) -> int:
        """The concurrency cap in force."""
        return self.max_concurrent_agents or min(16, max(1, (os.cpu_count() or 1) - 2))

    def _check_int(self, field: str, minimum: int, maximum: int | None = None) -> None:
        value = getattr(self, field)
        if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
            upper = "" if maximum is None else f" and at most {maximum}"
            self._refuse(field, f"a whole number of at least {minimum}{upper}")

    def _check_seconds(self, field: str, *, minimum: float) -> None:
        value = getattr(self, field)
        if type(value) not in (int, float) or not minimum <= value <= 10**9:
            self._refuse(field, f"a number of seconds of at least {minimum}")

    def _refuse(self, field: str, accepts: str) -> None:
        raise ValueError(f"EngineConfig.{field} must be {accepts}, not {getattr(self, field)!r}")
