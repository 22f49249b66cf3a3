"""Every message that crosses a process boundary, as tagged unions of frozen structs.

Three conversations:

* host → worker and worker → host, over the socket that belongs to one run;
* host → zygote and zygote → host, over the control socket of a pool.

A worker is untrusted: what it sends is decoded with `decode_worker_message`, which bounds every field that is not
already bounded by the size of its frame.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = [
    "MAX_NARRATION",
    "AgentCalled",
    "AgentRejected",
    "AgentReply",
    "AgentSettled",
    "ControlMessage",
    "ExitReport",
    "Fork",
    "ForkFailed",
    "Forked",
    "Go",
    "HostMessage",
    "KillWorker",
    "Limits",
    "Load",
    "Loaded",
    "LogCalled",
    "PhaseCalled",
    "Ready",
    "Rejected",
    "ResultReturned",
    "ScriptFailed",
    "WallReport",
    "WorkerExited",
    "WorkerMessage",
    "ZygoteMessage",
    "ZygoteReady",
    "decode_control_message",
    "decode_host_message",
    "decode_worker_message",
    "decode_zygote_message",
    "encode",
]

MAX_NARRATION = 64 * 1024
"""Characters of a log message, a phase title or a label that cross; the worker cuts what is longer, visibly."""

_Seq = Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]
_Code = Annotated[str, msgspec.Meta(max_length=64)]
_Narration = Annotated[str, msgspec.Meta(max_length=MAX_NARRATION + 64)]


class _Message(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    pass


# ------------------------------------------------------------------------------------------------- host → worker


class Limits(msgspec.Struct, frozen=True):
    """What the script's side enforces itself, because it can answer at once. The host enforces it again."""

    max_total_agents: int
    max_items_per_call: int
    max_depth: int
    """Levels of nesting of any value that leaves the script."""
    max_frame: int
    """Bytes of one message."""
    slice_seconds: float
    """CPU seconds between two yields; a kernel timer ends the process beyond it."""
    token_budget: int | None = None


class Load(_Message, frozen=True, tag="load"):
    """The script to compile, not yet to run. ``header`` is the text of a ``meta`` literal to read in the sandbox."""

    script: str
    limits: Limits
    header: str | None = None
    args: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """JSON text; unset means the global ``args`` is ``undefined``."""


class Go(_Message, frozen=True, tag="go"):
    """Run what was loaded."""


class AgentSettled(_Message, frozen=True, tag="agent-settled"):
    """An agent ended in an ordinary way: ``value`` is its JSON answer, ``null`` when it failed."""

    seq: int
    value: msgspec.Raw
    spent: int = 0
    """Output tokens the run has spent so far."""


class AgentRejected(_Message, frozen=True, tag="agent-rejected"):
    """The call is fatal: the promise rejects with a ``WorkflowError``."""

    seq: int
    code: str
    message: str


HostMessage = Load | Go | AgentSettled | AgentRejected
AgentReply = AgentSettled | AgentRejected

# ------------------------------------------------------------------------------------------------- worker → host


class WallReport(msgspec.Struct, frozen=True):
    """One wall of the sandbox in one worker: whether it is up, and why not where it is down."""

    name: Annotated[str, msgspec.Meta(max_length=64)]
    up: bool
    detail: Annotated[str, msgspec.Meta(max_length=1024)] = ""


class Ready(_Message, frozen=True, tag="ready"):
    """The worker's walls are up and it waits for a `Load`."""

    walls: Annotated[tuple[WallReport, ...], msgspec.Meta(max_length=64)] = ()


class Loaded(_Message, frozen=True, tag="loaded"):
    """The script compiles. ``meta`` is the JSON of the header's literal when one was sent."""

    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Rejected(_Message, frozen=True, tag="rejected"):
    """The script does not compile, or its header cannot be read."""

    code: _Code
    message: _Narration


class PhaseCalled(_Message, frozen=True, tag="phase"):
    title: _Narration


class LogCalled(_Message, frozen=True, tag="log"):
    message: _Narration


class AgentCalled(_Message, frozen=True, tag="agent"):
    """One ``agent()`` call. ``phase`` is the call's own or the current one; ``options`` are the pass-through ones."""

    seq: _Seq
    prompt: Annotated[str, msgspec.Meta(min_length=1)]
    label: _Narration | None = None
    phase: _Narration | None = None
    schema: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    provider: _Narration | None = None
    model: _Narration | None = None
    options: dict[str, str | float | int | bool] | None = None


class ResultReturned(_Message, frozen=True, tag="result"):
    """The script returned. ``warnings`` name what was changed on the way, e.g. a dropped ``undefined``."""

    value: msgspec.Raw
    warnings: Annotated[tuple[_Narration, ...], msgspec.Meta(max_length=64)] = ()


class ScriptFailed(_Message, frozen=True, tag="failed"):
    """The script threw, stalled, or returned something that is not JSON. ``message`` is ready for a model to read."""

    code: _Code
    message: _Narration
    warnings: Annotated[tuple[_Narration, ...], msgspec.Meta(max_length=64)] = ()


WorkerMessage = Ready | Loaded | Rejected | PhaseCalled | LogCalled | AgentCalled | ResultReturned | ScriptFailed

# ------------------------------------------------------------------------------------------------- host ↔ zygote


class Fork(_Message, frozen=True, tag="fork"):
    """Start a worker on the descriptor that travels with this message."""

    worker: int
    memory_limit: int | None = None
    """Bytes a worker may allocate beyond what the zygote already uses."""
    cpu_limit: int | None = None
    """CPU seconds in the life of the worker."""
    sandbox: str = "auto"


class KillWorker(_Message, frozen=True, tag="kill"):
    """SIGKILL a worker. The zygote is its parent, so the process id cannot have been used again."""

    worker: int


ControlMessage = Fork | KillWorker


class ZygoteReady(_Message, frozen=True, tag="zygote-ready"):
    """The first message of a zygote. ``mode`` is ``zygote`` (workers are forked) or ``spawn``, ``reason`` says why."""

    pid: int
    mode: str
    reason: str
    python: str
    engine: str
    base_memory: int = 0
    """Resident bytes of a worker before its script; 0 when it is not known."""


class Forked(_Message, frozen=True, tag="forked"):
    worker: int
    pid: int


class ForkFailed(_Message, frozen=True, tag="fork-failed"):
    worker: int
    reason: str


class ExitReport(msgspec.Struct, frozen=True):
    """How a worker ended. ``exit_code`` is negative for a signal, as in `multiprocessing`."""

    exit_code: int
    peak_memory: int
    """Peak resident bytes."""
    cpu_seconds: float


class WorkerExited(_Message, frozen=True, tag="exited"):
    worker: int
    report: ExitReport


ZygoteMessage = ZygoteReady | Forked | ForkFailed | WorkerExited

_encoder = msgspec.json.Encoder()
encode = _encoder.encode
"""JSON bytes of any message of this module."""

decode_host_message = msgspec.json.Decoder(HostMessage).decode
decode_worker_message = msgspec.json.Decoder(WorkerMessage).decode
decode_control_message = msgspec.json.Decoder(ControlMessage).decode
decode_zygote_message = msgspec.json.Decoder(ZygoteMessage).decode
