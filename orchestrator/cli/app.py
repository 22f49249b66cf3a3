"""The command line itself: its commands, their options, and what a usage error looks like."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from orchestrator.cli.inputs import UsageProblem, parse_json_option, parse_size

__all__ = ["dispatch"]

File = Annotated[str, Parameter(name="FILE", help="A script file, or - for standard input.", allow_leading_hyphen=True)]
Meta = Annotated[
    str | None,
    Parameter(
        name="--meta", help="Name and description (JSON or @FILE) of a script that has no `export const meta` header."
    ),
]
AGENT_HELP = (
    "Who does the work: rehearse, command:ARGV, openai:MODEL[@BASE_URL], acp:ARGV, python:module:function, or the name "
    "of an agent in workflow.toml. May be given again as NAME=SPEC for agents whose call says `provider: 'NAME'`."
)
Agent = Annotated[tuple[str, ...], Parameter(name="--agent", negative="", show_default=False, help=AGENT_HELP)]
Config = Annotated[
    str | None,
    Parameter(name="--config", help="The workflow.toml to use, instead of the nearest one from this folder upward."),
]
NoConfig = Annotated[bool, Parameter(name="--no-config", negative="", show_default=False, help="Use no workflow.toml.")]
Sandbox = Annotated[
    Literal["required", "auto", "off"] | None,
    Parameter(
        name="--sandbox",
        help="required refuses to run without every wall, auto (the default) uses what the system has, off uses none.",
    ),
]
Budget = Annotated[
    int | None,
    Parameter(name=("--budget", "--token-budget"), help="Output tokens a run may spend, as agents report them."),
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
    agent: Agent = (),
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
    budget: Budget = None,
    sandbox: Sandbox = None,
    memory_limit: Annotated[
        str | None, Parameter(name="--memory-limit", help="Memory of the script's worker, such as 256M.")
    ] = None,
    config: Config = None,
    no_config: NoConfig = False,
) -> int:
    """Run a script and print the value it returns as JSON.

    Agents and limits come from the options and from workflow.toml; options win. Without any agent nothing is paid for:
    the run is a rehearsal with made-up answers that shows the phases, the prompts and how many agents it would start.

    Exit codes: 0 completed, 1 failed, 2 bad input, 130 cancelled by Ctrl-C, 143 by SIGTERM.
    """
    import msgspec

    from orchestrator.cli.configuration import choose_agents, engine_config, load_file
    from orchestrator.cli.run import RunOptions, make_request, run_command

    parsed_meta = None if meta is None else _not_null("--meta", parse_json_option("--meta", meta))
    parsed_args = msgspec.UNSET if args is None else parse_json_option("--args", args)
    limits = {
        "--timeout": ("run_timeout", timeout),
        "--max-agents": ("max_total_agents", max_agents),
        "--concurrency": ("max_concurrent_agents", concurrency),
        "--budget": ("token_budget", budget),
        "--memory-limit": (
            "memory_limit",
            None if memory_limit is None else parse_size("--memory-limit", memory_limit),
        ),
        "--sandbox": ("sandbox", sandbox),
    }
    found = load_file(config, no_config)
    agents = choose_agents(agent, found)
    engine = engine_config(limits, found, agents.default)
    request = make_request(file, parsed_meta, parsed_args)
    with contextlib.redirect_stdout(sys.stderr):  # a Python agent's module may print while it is imported
        providers = agents.make()
    options = RunOptions(
        file=file,
        request=request,
        agents=agents,
        providers=providers,
        config=engine,
        as_json=as_json,
        events=events,
    )
    return run_command(options)


@app.command
def check(file: File, /, *, meta: Meta = None, config: Config = None, no_config: NoConfig = False) -> int:
    """Parse a script without running it, and print its meta as JSON. Checks workflow.toml too.

    Exit codes: 0 when it could run, 2 when it could not.
    """
    import msgspec

    from orchestrator.cli.check import check_command
    from orchestrator.cli.configuration import load_file
    from orchestrator.cli.run import make_request

    load_file(config, no_config)

    parsed_meta = None if meta is None else _not_null("--meta", parse_json_option("--meta", meta))
    return check_command(file, make_request(file, parsed_meta, msgspec.UNSET))


@app.command
def doctor(
    *,
    as_json: Annotated[AsJson, Parameter(help="Print it as JSON.")] = False,
    config: Config = None,
    no_config: NoConfig = False,
) -> int:
    """Tell what the engine runs on here: versions, worker mode, sandbox walls, how fast a worker starts, which agents.

    Exit codes: 0, 1 when no script can run here, 2 when workflow.toml is wrong.
    """
    from orchestrator.cli.configuration import load_file
    from orchestrator.cli.doctor import doctor_command

    return doctor_command(load_file(config, no_config), as_json=as_json)


@app.command
def acp(
    *,
    agent: Agent = (),
    sessions: Annotated[
        str | None, Parameter(name="--sessions", help="A SQLite file that keeps sessions; in memory without one.")
    ] = None,
    budget: Budget = None,
    sandbox: Sandbox = None,
    config: Config = None,
    no_config: NoConfig = False,
) -> int:
    """Serve an editor on stdin and stdout: an Agent Client Protocol agent whose prompt is a workflow to run."""
    import asyncio

    from orchestrator.cli.configuration import choose_agents, engine_config, load_file
    from orchestrator.sessions import SessionError
    from protocol.errors import WorkflowError

    found = load_file(config, no_config)
    agents = choose_agents(agent, found)
    limits = {"--budget": ("token_budget", budget), "--sandbox": ("sandbox", sandbox)}
    engine = engine_config(limits, found, agents.default)
    try:
        from orchestrator.acp import serve_acp
    except ModuleNotFoundError as error:
        raise UsageProblem(str(error)) from None
    try:
        asyncio.run(serve_acp(register_agents=agents.register, config=engine, session_file=sessions))
    except (SessionError, WorkflowError, OSError) as error:
        raise UsageProblem(str(error)) from None
    except KeyboardInterrupt:
        return 130
    return 0


@app.command
def mcp(
    *,
    agent: Agent = (),
    timeout: Annotated[float | None, Parameter(name="--timeout", help="Seconds after which a run is ended.")] = None,
    max_agents: Annotated[int | None, Parameter(name="--max-agents", help="How many agents a run may start.")] = None,
    concurrency: Annotated[
        int | None,
        Parameter(name="--concurrency", help="How many agents of a run may work at once; 0: by CPUs."),
    ] = None,
    budget: Budget = None,
    sandbox: Sandbox = None,
    config: Config = None,
    no_config: NoConfig = False,
) -> int:
    """Serve a host on stdin and stdout: a Model Context Protocol server with the tools workflow and workflow_check.

    Exit codes: 0 when the host closed its end, 2 bad input, 130 on Ctrl-C, 143 on SIGTERM.
    """
    from orchestrator.cli.configuration import choose_agents, engine_config, load_file
    from orchestrator.cli.mcp import mcp_command

    limits = {
        "--timeout": ("run_timeout", timeout),
        "--max-agents": ("max_total_agents", max_agents),
        "--concurrency": ("max_concurrent_agents", concurrency),
        "--budget": ("token_budget", budget),
        "--sandbox": ("sandbox", sandbox),
    }
    found = load_file(config, no_config)
    agents = choose_agents(agent, found)
    return mcp_command(agents, engine_config(limits, found, agents.default))


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
