"""The command line itself: its commands, their options, and what a usage error looks like."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from orchestrator.cli.inputs import UsageProblem, parse_agents, parse_json_option, parse_size

__all__ = ["dispatch"]

File = Annotated[str, Parameter(name="FILE", help="A script file, or - for standard input.", allow_leading_hyphen=True)]
Meta = Annotated[
    str | None,
    Parameter(
        name="--meta", help="Name and description (JSON or @FILE) of a script that has no `export const meta` header."
    ),
]
AsJson = Annotated[bool, Parameter(name="--json", negative="", show_default=False)]


def _version() -> str:
    from orchestrator.cli.doctor import version

    return version()


app = App(
    name="workflow",
    help="Runs JavaScript workflow scripts, each in its own sandboxed worker. Results on stdout, all else on stderr.",
    version=_version,
    help_on_error=False,
)


@app.command
def run(
    file: File,
    /,
    *,
    meta: Meta = None,
    args: Annotated[
        str | None,
        Parameter(name="--args", help="The script's `args`: JSON or @FILE.", allow_leading_hyphen=True),
    ] = None,
    agent: Annotated[
        tuple[str, ...],
        Parameter(
            name="--agent",
            negative="",
            show_default=False,
            help="Who does the work: rehearse, command:ARGV or python:module:function. May be given again as NAME=SPEC "
            "for agents whose call says `provider: 'NAME'`.",
        ),
    ] = (),
    as_json: Annotated[
        AsJson, Parameter(help="Print the whole outcome instead of the value alone, also of a run that failed.")
    ] = False,
    events: Annotated[
        str | None,
        Parameter(
            name="--events",
            help="Write every event as a line of JSON to this file, or - for stdout.",
            allow_leading_hyphen=True,
        ),
    ] = None,
    timeout: Annotated[float | None, Parameter(name="--timeout", help="Seconds after which the run is ended.")] = None,
    max_agents: Annotated[int | None, Parameter(name="--max-agents", help="How many agents the run may start.")] = None,
    concurrency: Annotated[
        int | None, Parameter(name="--concurrency", help="How many agents may work at once; 0 chooses by CPUs.")
    ] = None,
    token_budget: Annotated[
        int | None, Parameter(name="--token-budget", help="Output tokens the run may spend, as agents report them.")
    ] = None,
    sandbox: Annotated[
        Literal["required", "auto", "off"],
        Parameter(name="--sandbox", help="Refuse to run without every wall, use what the system has, or use none."),
    ] = "auto",
    memory_limit: Annotated[
        str | None, Parameter(name="--memory-limit", help="Memory of the script's worker, such as 256M.")
    ] = None,
) -> int:
    """Run a script and print the value it returns as JSON.

    Without --agent nothing is paid for: the run is a rehearsal with made-up answers that shows the phases, the prompts
    and how many agents the script would start.

    Exit codes: 0 completed, 1 failed, 2 bad input, 130 cancelled by Ctrl-C, 143 by SIGTERM.
    """
    import msgspec

    from orchestrator.cli.run import RunOptions, make_request, run_command

    parsed_meta = None if meta is None else _not_null("--meta", parse_json_option("--meta", meta))
    parsed_args = msgspec.UNSET if args is None else parse_json_option("--args", args)
    settings = {
        "--timeout": ("run_timeout", timeout),
        "--max-agents": ("max_total_agents", max_agents),
        "--concurrency": ("max_concurrent_agents", concurrency),
        "--token-budget": ("token_budget", token_budget),
        "--memory-limit": (
            "memory_limit",
            None if memory_limit is None else parse_size("--memory-limit", memory_limit),
        ),
        "--sandbox": ("sandbox", sandbox),
    }
    config = _config(settings)
    request = make_request(file, parsed_meta, parsed_args)
    with contextlib.redirect_stdout(sys.stderr):  # a Python agent's module may print while it is imported
        providers = parse_agents(agent)
    options = RunOptions(file=file, request=request, providers=providers, config=config, as_json=as_json, events=events)
    return run_command(options)


@app.command
def check(file: File, /, *, meta: Meta = None) -> int:
    """Parse a script without running it, and print its meta as JSON.

    Exit codes: 0 when it could run, 2 when it could not.
    """
    import msgspec

    from orchestrator.cli.check import check_command
    from orchestrator.cli.run import make_request

    parsed_meta = None if meta is None else _not_null("--meta", parse_json_option("--meta", meta))
    return check_command(file, make_request(file, parsed_meta, msgspec.UNSET))


@app.command
def doctor(*, as_json: Annotated[AsJson, Parameter(help="Print it as JSON.")] = False) -> int:
    """Tell what the engine runs on here: versions, worker mode, sandbox walls, and how fast a worker starts."""
    from orchestrator.cli.doctor import doctor_command

    return doctor_command(as_json=as_json)


@app.command
def acp(
    *,
    agent: Annotated[str, Parameter(name="--agent", help="Who does the work, as in run.")] = "rehearse",
    sessions: Annotated[
        str | None, Parameter(name="--sessions", help="A SQLite file that keeps sessions; in memory without one.")
    ] = None,
) -> int:
    """Serve an editor on stdin and stdout: an Agent Client Protocol agent whose prompt is a workflow to run."""
    import asyncio

    try:
        from orchestrator.acp import serve_acp
    except ModuleNotFoundError as error:
        raise UsageProblem(str(error)) from None
    from orchestrator.providers import ProviderSpecError
    from orchestrator.sessions import SessionError
    from protocol.errors import WorkflowError

    try:
        asyncio.run(serve_acp(agent_spec=agent, session_file=sessions))
    except (ProviderSpecError, SessionError, WorkflowError, OSError) as error:
        raise UsageProblem(str(error)) from None
    except KeyboardInterrupt:
        return 130
    return 0


@app.command
def mcp(
    *,
    agent: Annotated[
        tuple[str, ...],
        Parameter(name="--agent", negative="", show_default=False, help="Who does the work, as in run."),
    ] = (),
    timeout: Annotated[float | None, Parameter(name="--timeout", help="Seconds after which a run is ended.")] = None,
    max_agents: Annotated[int | None, Parameter(name="--max-agents", help="How many agents a run may start.")] = None,
    concurrency: Annotated[
        int | None,
        Parameter(name="--concurrency", help="How many agents of a run may work at once; 0: by CPUs."),
    ] = None,
    sandbox: Annotated[
        Literal["required", "auto", "off"],
        Parameter(name="--sandbox", help="Refuse to run without every wall, use what the system has, or use none."),
    ] = "auto",
) -> int:
    """Serve a host on stdin and stdout: a Model Context Protocol server with the tools workflow and workflow_check.

    Exit codes: 0 when the host closed its end, 2 bad input, 130 on Ctrl-C, 143 on SIGTERM.
    """
    from orchestrator.cli.mcp import mcp_command

    settings = {
        "--timeout": ("run_timeout", timeout),
        "--max-agents": ("max_total_agents", max_agents),
        "--concurrency": ("max_concurrent_agents", concurrency),
        "--sandbox": ("sandbox", sandbox),
    }
    return mcp_command(agent, _config(settings))


def dispatch(argv: list[str]) -> int:
    """Runs one command line. Returns the exit code; never raises for something the user can mend."""
    try:
        code: object = app(argv, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _usage(" ".join(str(error).split()))
    except UsageProblem as problem:
        return _usage(str(problem))
    return code if isinstance(code, int) else 0


def _usage(text: str) -> int:
    print(f"workflow: {text}", file=sys.stderr)
    return 2


def _not_null(option: str, value: Any) -> Any:
    if value is None:
        raise UsageProblem(f"{option} must be an object with name and description, not null")
    return value


def _config(settings: dict[str, tuple[str, Any]]) -> Any:
    """The engine's settings; one it refuses is called by its option."""
    from orchestrator.config import EngineConfig

    given = {field: value for field, value in settings.values() if value is not None}
    try:
        return EngineConfig(**given)
    except ValueError as error:
        text = str(error)
        for option, (field, _) in settings.items():
            text = text.replace(f"EngineConfig.{field} ", f"{option} ")
        raise UsageProblem(text) from None
