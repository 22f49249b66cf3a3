"""What a host brings: agents, and the providers that start them.

Order of life of one agent, the same on every path: ``provider.start(request)`` fulfils → the child is published
(``workflow/agent-start``) → its ``result`` → ``workflow/agent-end`` → ``dispose()``, once. A start that fulfils after
the run has closed is disposed and never announced.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, cast, runtime_checkable

import msgspec

from orchestrator.agent_slots import CappedProvider
from orchestrator.signals import AbortSignal
from protocol.errors import ErrorCode, WorkflowError
from protocol.events import WorkflowRunInfo

__all__ = [
    "PASS_THROUGH_OPTIONS",
    "AgentFailed",
    "AgentFunction",
    "AgentProvider",
    "AgentRegistry",
    "AgentRequest",
    "AgentResult",
    "AgentRun",
    "FunctionProvider",
    "Usage",
]

_log = logging.getLogger(__name__)

PASS_THROUGH_OPTIONS: tuple[str, ...] = ("agentType", "effort", "isolation", "stallMs")
"""Options of ``agent()`` that reach a provider only when it declares them in ``supported_options``."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one agent, where its provider knows them."""

    input_tokens: int = 0
    output_tokens: int = 0


class AgentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One ``agent()`` call, as its provider sees it.

    ``schema`` is the call's JSON Schema or ``None``; ``provider`` and ``model`` are the call's own overrides, for the
    agent provider to interpret; ``signal`` aborts when the run closes; ``parent`` is whoever the run works for;
    ``options`` holds the pass-through options the provider declared.
    """

    prompt: str
    seq: int
    label: str
    run: WorkflowRunInfo
    signal: AbortSignal
    schema: dict[str, Any] | None = None
    phase: str | None = None
    provider: str | None = None
    model: str | None = None
    parent: Any = None
    options: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])


class AgentResult(msgspec.Struct, frozen=True):
    """How an agent ended.

    Args:
        text: its final text, what ``agent()`` resolves with when the call has no schema.
        structured: its structured answer (any JSON value), validated by the host when the call has a schema.
        stop_reason: ``"completed"`` is success, anything else an ordinary failure (``agent()`` resolves ``null``).
        error: the reason of a failure, shown in the outcome of the run.
        usage: tokens, where known.
    """

    text: str = ""
    structured: Any = None
    stop_reason: str = "completed"
    error: str | None = None
    usage: Usage | None = None


class AgentFailed(Exception):
    """Raised by an agent function for an ordinary failure: ``agent()`` resolves ``null`` and the run goes on."""


@runtime_checkable
class AgentRun(Protocol):
    """One started agent. ``result`` is awaited exactly once; ``dispose`` is called exactly once, on every path."""

    @property
    def id(self) -> str:
        """Names the child in events and records."""
        ...

    @property
    def result(self) -> Awaitable[AgentResult]:
        """Its outcome. Raising anything but `AgentFailed` means the provider is broken (``AGENT_RESULT``)."""
        ...

    async def dispose(self) -> None:
        """Ends whatever still runs and frees it."""
        ...


@runtime_checkable
class AgentProvider(Protocol):
    """Starts agents.

    May also have ``supported_options: Collection[str]`` (see `PASS_THROUGH_OPTIONS`), and ``async def aclose()``, which
    the engine calls once when it closes, after the last agent.
    """

    async def start(self, request: AgentRequest) -> AgentRun:
        """Starts one agent. Raising refuses it: the call throws ``AGENT_START``, and no event is emitted."""
        ...


AgentFunction = Callable[[AgentRequest], Awaitable[str | AgentResult]]

_child_numbers = itertools.count(1)


class _FunctionRun:
    """Runs the function inside the task that awaits ``result``: one task per agent instead of two."""

    def __init__(self, function: AgentFunction, request: AgentRequest) -> None:
        self.id = f"agent-{next(_child_numbers)}"
        self._function = function
        self._request = request

    @property
    def result(self) -> Awaitable[AgentResult]:
        return self._run()

    async def _run(self) -> AgentResult:
        task = asyncio.current_task()
        assert task is not None
        remove = self._request.signal.add_listener(lambda _reason: task.cancel())
        try:
            answer: Any = await self._function(self._request)  # a host's code: its annotations prove nothing
        finally:
            remove()
        if isinstance(answer, AgentResult):
            return answer
        if isinstance(answer, str):
            return AgentResult(text=answer, structured=_from_json(answer) if self._request.schema is not None else None)
        raise TypeError(f"an agent function returns a str or an AgentResult, not {type(answer).__name__}")

    async def dispose(self) -> None:
        """Nothing to free: the abort signal cancelled the function's task."""


def _from_json(text: str) -> object:
    """A function that answers a schema call with JSON text means the value; other text fails the validation."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return text


class FunctionProvider:
    """Makes a provider of an async function.

    The function gets an `AgentRequest` and returns the agent's text or an `AgentResult`. It may raise `AgentFailed`
    for an ordinary failure; any other exception is a broken provider. Its task is cancelled when the run closes.

    Args:
        function: the async function.
        supported_options: which of `PASS_THROUGH_OPTIONS` it understands. Declaring is a promise: the options reach
            the function in ``request.options`` and nothing else enforces them, ``stallMs`` included.
    """

    def __init__(self, function: AgentFunction, supported_options: tuple[str, ...] = ()) -> None:
        self._function = function
        self.supported_options = supported_options

    async def start(self, request: AgentRequest) -> AgentRun:
        return _FunctionRun(self._function, request)


class AgentRegistry:
    """Providers by name. Registering a name again replaces it for agents started later."""

    def __init__(self) -> None:
        self._providers: dict[str, AgentProvider] = {}
        self._starters: dict[str, AgentProvider] = {}  # the same, behind their caps
        self._closed: list[AgentProvider] = []

    def register(
        self, name: str, provider: AgentProvider | AgentFunction, *, max_concurrent: int | None = None
    ) -> Callable[[], None]:
        """Registers a provider, or an async function as one. Returns its remover.

        Args:
            name: what a request or an ``agent()`` call says.
            provider: the provider or the function.
            max_concurrent: how many of its agents may exist at once, over all runs of the engine. One more waits for
                its turn, which counts as an agent at work of its run (``max_concurrent_agents``).

        Raises:
            WorkflowError: the name is empty or padded, ``provider`` is neither, or the cap is not a positive integer.
        """
        self.check_name(name, "an agent provider's name")
        if max_concurrent is not None and (type(max_concurrent) is not int or max_concurrent < 1):
            text = f"max_concurrent of agent provider {name!r} must be a positive whole number, not {max_concurrent!r}"
            raise WorkflowError(ErrorCode.INVALID_ARGUMENT, text)
        made: AgentProvider
        if isinstance(provider, AgentProvider):
            made = provider
        elif callable(cast(object, provider)) and not inspect.isclass(provider):
            made = FunctionProvider(provider)
        else:
            raise WorkflowError(
                ErrorCode.INVALID_ARGUMENT,
                f"agent provider {name!r} must be an async function or have an async start(request), "
                f"not {type(provider).__name__}",
            )
        starter = made if max_concurrent is None else CappedProvider(made, max_concurrent)
        self._providers[name] = made
        self._starters[name] = starter

        def remove() -> None:
            if self._starters.get(name) is starter and self._providers.get(name) is made:
                del self._providers[name], self._starters[name]

        return remove

    def get(self, name: str) -> AgentProvider:
        """What starts agents of that name: the provider, behind its cap if it has one.

        Raises:
            WorkflowError: ``AGENT_START``, there is none.
        """
        provider = self._starters.get(name)
        if provider is None:
            raise WorkflowError(ErrorCode.AGENT_START, f'no subagent provider registered for "{name}"')
        return provider

    @property
    def providers(self) -> Mapping[str, AgentProvider]:
        """The registered providers themselves, by name; a view that changes with the registrations."""
        return MappingProxyType(self._providers)

    async def aclose(self) -> None:
        """Closes each registered provider that has an ``aclose()``, once, also when it has several names.

        A provider that was removed or replaced before is its holder's to close. One that fails is logged. Idempotent.
        """
        distinct = {id(provider): provider for provider in self._providers.values()}
        open_ones = [
            provider for provider in distinct.values() if all(provider is not closed for closed in self._closed)
        ]
        self._closed += open_ones
        closings = [_close(provider) for provider in open_ones if hasattr(provider, "aclose")]
        if closings:
            await asyncio.gather(*closings)

    @property
    def names(self) -> tuple[str, ...]:
        """The registered names, in the order of their registration."""
        return tuple(self._providers)

    @staticmethod
    def check_name(name: object, what: str) -> None:
        """Raises `WorkflowError` unless ``name`` is a non-empty string without surrounding white space."""
        if not isinstance(name, str) or not name or name != name.strip():
            raise WorkflowError(ErrorCode.INVALID_ARGUMENT, f"{what} must be a non-empty normalized string")


async def _close(provider: AgentProvider) -> None:
    try:
        await cast(Any, provider).aclose()
    except Exception:
        _log.exception("an agent provider failed to close: %s", type(provider).__name__)
