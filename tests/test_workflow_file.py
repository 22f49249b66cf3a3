"""``workflow.toml``: where it is found, what it may say, and how it and the command line go together."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.providers import CommandSettings
from orchestrator.workflow_file import WorkflowFileError, find_workflow_file, read_workflow_file
from tests.command_line import META, ROOT, run, workflow

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a workflow.toml into (a folder below) the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def write(text: str, folder: str = ".", name: str = "workflow.toml") -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def problems(path: Path) -> str:
    with pytest.raises(WorkflowFileError) as caught:
        read_workflow_file(path)
    return str(caught.value)


def one_line(done: subprocess.CompletedProcess[bytes]) -> str:
    text = done.stderr.decode()
    assert (done.returncode, done.stdout, text.count("\n")) == (2, b"", 1), text
    return text


# --- finding ---


def test_the_nearest_file_upward_is_found_but_not_above_a_repository(write: Write, tmp_path: Path) -> None:
    top, inner = write("", "a"), write("", "a/b/c")
    assert find_workflow_file(tmp_path / "a/b/c") == inner
    assert find_workflow_file(tmp_path / "a/b") == top
    (tmp_path / "a/repo/.git").mkdir(parents=True)
    (tmp_path / "a/repo/deep").mkdir()
    assert find_workflow_file(tmp_path / "a/repo/deep") is None
    inside = write("", "a/repo")
    assert find_workflow_file(tmp_path / "a/repo/deep") == inside


def test_a_folder_of_that_name_is_no_file(write: Write, tmp_path: Path) -> None:
    top = write("")
    (tmp_path / "sub/workflow.toml").mkdir(parents=True)
    assert find_workflow_file(tmp_path / "sub") == top


# --- reading ---


def test_a_whole_file_is_read(write: Write) -> None:
    found = read_workflow_file(
        write(
            """
            agent = "claude"
            [agents.claude]
            use = "command"
            max_concurrent = 4
            argv = ["claude", "-p", "--output-format", "json"]
            output = "json"
            text = "result"
            usage_input = ["usage.input_tokens", "usage.cache_read_input_tokens"]
            timeout = 600
            max_output = "1M"
            [agents.small]
            use = "openai"
            model = "m"
            api_key_env = "MY_KEY"
            [agents.editor]
            use = "acp"
            argv = ["gemini", "--acp"]
            [agents.mine]
            use = "python"
            function = "my_agents:review"
            [agents.nobody]
            use = "rehearse"
            seed = 3
            [limits]
            memory_limit = "256M"
            token_budget = 200_000
            run_timeout = 60
            cpu_limit = "none"
            """
        )
    )
    assert (found.name, found.default) == ("workflow.toml", "claude")
    assert {name: agent.kind for name, agent in found.agents.items()} == {
        "claude": "command",
        "small": "openai",
        "editor": "acp",
        "mine": "python",
        "nobody": "rehearse",
    }
    claude = found.agents["claude"]
    assert claude.max_concurrent == 4
    assert claude.settings == CommandSettings(
        argv=("claude", "-p", "--output-format", "json"),
        output="json",
        text="result",
        usage_input=("usage.input_tokens", "usage.cache_read_input_tokens"),
        timeout=600.0,
        max_output=1 << 20,
    )
    assert found.limits == {
        "memory_limit": 256 << 20,
        "token_budget": 200_000,
        "run_timeout": 60.0,
        "cpu_limit": None,
    }


@pytest.mark.parametrize(
    ("text", "default", "kind"),
    [
        ("", None, None),
        ('[agents.a]\nuse = "rehearse"', None, None),
        ('[agents.default]\nuse = "rehearse"', "default", "rehearse"),
        ('agent = "command:claude -p"', "default", "command"),
        ('agent = "openai:m@http://127.0.0.1:9/v1"', "default", "openai"),
        ('agent = "rehearse"\n[agents.rehearse]\nuse = "command"\nargv = ["cat"]', "rehearse", "command"),
    ],
)
def test_the_default_agent_is_a_name_a_spec_or_the_table_called_so(
    write: Write, text: str, default: str | None, kind: str | None
) -> None:
    found = read_workflow_file(write(text))
    assert found.default == default
    assert default is None or found.agents[default].kind == kind


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agnet = 'x'", "there is no 'agnet': did you mean 'agent'?"),
        ("[agent.x]\nuse = 'command'", "agent must be a text"),
        ("agents = 3", "agents must be a table: write [agents.NAME]"),
        ("[agents]\nuse = 'command'", "agents.use must be a table"),
        ("agent = 'claud'\n[agents.claude]\nuse = 'rehearse'", "agent 'claud' names no table [agents.claud]: did you"),
        ("agent = 'nobody'", "unknown agent 'nobody': it must be rehearse"),
        ("agent = 'command:'", "agent command: names no program"),
        ("agent = 'rehearse'\n[agents.default]\nuse = 'rehearse'", "both say which agent is the default one"),
        ("[agents.a]\nargv = ['x']", '[agents.a] needs use = one of "command"'),
        ("[agents.a]\nuse = 'comand'", "did you mean 'command'?"),
        ("[agents.'a b']\nuse = 'rehearse'", "a name is made of letters"),
        ("[agents.a]\nuse = 'command'", "[agents.a] needs argv"),
        ("[agents.a]\nuse = 'command'\nargv = 'cat'", "[agents.a] argv must be a list, not a text"),
        ("[agents.a]\nuse = 'command'\nargv = ['cat', 3]", "[agents.a] argv[1] must be a text, not a whole number"),
        ("[agents.a]\nuse = 'command'\nargv = []", "[agents.a] argv must name a program"),
        (
            "[agents.a]\nuse = 'command'\nargv = ['x']\nmodle_args = []",
            "no setting 'modle_args': did you mean 'model_a",
        ),
        ("[agents.a]\nuse = 'command'\nargv = ['x']\noutput = 'jsn'", 'output must be one of "text", "json", "jso'),
        ("[agents.a]\nuse = 'command'\nargv = ['x']\ntimeout = '5'", "timeout must be a number, not a text"),
        (
            "[agents.a]\nuse = 'command'\nargv = ['x']\nmax_output = '5 apples'",
            "max_output must be a size such as 256M",
        ),
        ("[agents.a]\nuse = 'rehearse'\nmax_concurrent = 0", "[agents.a] max_concurrent must be a whole number"),
        ("[agents.a]\nuse = 'python'\nfunction = 'x'", "[agents.a] function must be module:function"),
        ("[agents.a]\nuse = 'openai'\nmodel = 'm'\ntemperature = 5", "[agents.a] temperature must be"),
        ("[limits]\ntoken_buget = 5", "[limits] has no setting 'token_buget': did you mean 'token_budget'?"),
        ("[limits]\nmemory_limit = 5", "[limits] memory_limit must be a whole number of at least 16777216, not 5"),
        ("[limits]\nprovider = 'x'", "name the default agent with agent = … at the top"),
        ("[limits]\nspare_workers = 3\nmax_workers = 1", "[limits] spare_workers must be at most max_workers (1)"),
        ("agent = !", "workflow.toml is not TOML: Invalid value (at line 1, column 9)"),
    ],
)
def test_what_makes_no_sense_is_one_line_that_names_the_table_and_the_field(write: Write, text: str, said: str) -> None:
    found = problems(write(text))
    assert said in found
    assert "\n" not in found
    assert found.startswith("workflow.toml")


def test_everything_that_is_wrong_comes_in_one_message(write: Write) -> None:
    text = """
    agnet = "x"
    [agents.a]
    use = "command"
    argvs = ["x"]
    timeout = "soon"
    [agents.b]
    use = "openai"
    model = " m"
    temperature = 9
    [limits]
    sync_timeout = 0
    max_depth = -1
    """
    header, *lines = problems(write(text)).split("\n")
    assert header == "workflow.toml has 8 problems:"
    assert [line.split(" must")[0].split(": ")[0].strip() for line in lines] == [
        "there is no 'agnet'",
        "[agents.a] has no setting 'argvs'",
        "[agents.a] timeout",
        "[agents.a] needs argv",
        "[agents.b] model",
        "[agents.b] temperature",
        "[limits] sync_timeout",
        "[limits] max_depth",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "use = 'openai'\napi_key = 'SECRET'",
        "use = 'openai'\napikey = ['SECRET']",
        "use = 'openai'\nheaders = {Authorization = 'Bearer SECRET'}",
        "use = 'openai'\nextra_body = {inner = {password = 'SECRET'}}",
        "use = 'command'\nargv = ['llm', '--key', 'sk-SECRET-0123456789abcdef']",
        "use = 'command'\nargv = ['x']\nenv = {OPENAI_API_KEY = 'SECRET'}",
        "use = 'acp'\nargv = ['x']\nenv = {GITHUB_TOKEN = 'SECRET'}",
        "use = 'openai'\nmodel = 'm'\napi_key_env = 'sk-SECRET-0123456789abcdef'",
    ],
)
def test_secrets_are_refused_and_never_shown(write: Write, text: str) -> None:
    found = problems(write(f"[agents.a]\n{text}"))
    assert "put it into an environment variable" in found
    assert "SECRET" not in found


def test_programs_folders_and_modules_are_found_from_beside_the_file(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        "[agents.a]\nuse='command'\nargv=['./agent.sh', './x']\n[agents.b]\nuse='command'\nargv=['bin/b']\ncwd='work'\n"
        "[agents.c]\nuse='command'\nargv=['sh']\n[agents.d]\nuse='python'\nfunction='m:f'",
        "project",
    )
    monkeypatch.chdir(tmp_path / "project")
    here = {name: agent.settings for name, agent in read_workflow_file(path).agents.items()}
    assert here["a"].argv == ("./agent.sh", "./x")  # type: ignore[attr-defined]
    monkeypatch.chdir(tmp_path)
    found = {name: agent.settings for name, agent in read_workflow_file(path).agents.items()}
    assert found["a"].argv == ("project/agent.sh", "./x")  # type: ignore[attr-defined]
    assert found["b"].argv == ("../bin/b",)  # type: ignore[attr-defined]
    assert found["b"].cwd == str(tmp_path / "project/work")  # type: ignore[attr-defined]
    assert found["c"].argv == ("sh",)  # type: ignore[attr-defined]
    assert found["d"].path == str(tmp_path / "project")  # type: ignore[attr-defined]


def test_every_file_of_the_documentation_is_one_that_can_be_read(write: Write) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    found = [read_workflow_file(write(block)) for block in blocks]
    assert {name for file in found for name in file.agents} >= {"claude", "codex", "gemini", "llm", "local", "mine"}


# --- with the command ---


def test_a_run_takes_agents_and_limits_from_the_file_above_it_and_says_so(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        """
        agent = "echo"
        [agents.echo]
        use = "command"
        argv = ["cat"]
        [agents.loud]
        use = "python"
        function = "loud_agents:shout"
        [limits]
        max_total_agents = 2
        """
    )
    (tmp_path / "loud_agents.py").write_text("async def shout(request):\n    return request.prompt.upper()\n")
    (tmp_path / "deep/er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep/er")
    done = run("return [await agent('x'), await agent('x', {provider: 'loud'})]")
    assert json.loads(done.stdout) == ["x", "X"]
    assert "agent echo (../../workflow.toml)" in done.stderr.decode()
    capped = run("return await parallel([1, 2, 3].map(n => () => agent('x')))", "--json")
    assert json.loads(capped.stdout)["code"] == "AGENT_CAP"


def test_the_command_line_wins_over_the_file(write: Write) -> None:
    write(
        'agent = "a"\n[agents.a]\nuse = "command"\nargv = ["echo", "a"]\n[agents.b]\nuse = "command"\n'
        'argv = ["echo", "b"]\n[limits]\nmax_total_agents = 1\n'
    )
    script = "return [await agent('x'), await agent('x', {provider: 'a'})]"
    two = ("--max-agents", "2")
    assert json.loads(run(script, *two).stdout) == ["a", "a"]
    assert json.loads(run(script, *two, "--agent", "b").stdout) == ["b", "a"]
    assert json.loads(run(script, *two, "--agent", "command:echo c").stdout) == ["c", "a"]
    assert json.loads(run(script, *two, "--agent", "a=command:echo d").stdout) == ["d", "d"]
    plain = run(script, "--no-config")
    assert "REHEARSAL" in plain.stderr.decode()
    assert plain.returncode == 0


def test_another_file_may_be_named(write: Write) -> None:
    write('agent = "command:echo near"')
    write('agent = "command:echo other"', name="other.toml")
    assert json.loads(run("return await agent('x')", "--config", "other.toml").stdout) == "other"
    assert "--config: missing.toml: no such file" in one_line(run("return 1", "--config", "missing.toml"))
    assert "exclude each other" in one_line(run("return 1", "--config", "other.toml", "--no-config"))


def test_a_wrong_file_is_exit_2_for_every_command_and_shows_no_host_path(write: Write, tmp_path: Path) -> None:
    write("[limits]\ntoken_buget = 5")
    commands = (["run", "-", "--meta", META], ["check", "-", "--meta", META], ["doctor"], ["acp"], ["mcp"])
    for command in commands:
        text = one_line(workflow(*command, stdin=b"return 1"))
        assert text.startswith("workflow: workflow.toml: [limits] has no setting 'token_buget': did you mean"), command
        assert str(tmp_path) not in text


def test_an_agent_that_is_not_in_the_file_is_refused_with_a_guess(write: Write) -> None:
    write('[agents.claude]\nuse = "command"\nargv = ["cat"]')
    assert "--agent: unknown agent 'claud': did you mean 'claude'?" in one_line(run("return 1", "--agent", "claud"))


def test_a_python_agent_that_is_not_there_is_named_by_its_table(write: Write) -> None:
    write('[agents.mine]\nuse = "python"\nfunction = "no_such_module_here:f"')
    text = one_line(run("return 1"))
    assert "workflow.toml: [agents.mine]: agent python: there is no module 'no_such_module_here'" in text


@pytest.mark.parametrize("server", ["", "http://127.0.0.1:9/v1"])
def test_doctor_misses_a_key_only_where_one_is_needed(
    write: Write, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    pytest.importorskip("openai", reason="the OpenAI SDK is not installed: pip install 'workflow-orchestrator[openai]'")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", server)
    write("[agents.model]\nuse = 'openai'\nmodel = 'm'")
    told = json.loads(workflow("doctor", "--json").stdout)["workflow_file"]["agents"]["model"]
    wanted = None if server else "the environment variable OPENAI_API_KEY is not set"
    assert told["problem"] == wanted


def test_doctor_tells_which_file_holds_and_what_its_agents_lack(write: Write) -> None:
    write(
        'agent = "here"\n[agents.here]\nuse = "command"\nargv = ["cat"]\nmax_concurrent = 2\n[agents.gone]\n'
        'use = "command"\nargv = ["no-such-program-anywhere"]\n[limits]\nmax_depth = 9\n'
    )
    text = workflow("doctor").stdout.decode()
    assert "configuration  workflow.toml: agent here" in text
    assert "ok   here: command, at most 2 at once" in text
    assert "DOWN gone: command: the program 'no-such-program-anywhere' was not found" in text
    assert "limits: max_depth = 9" in text
    told = json.loads(workflow("doctor", "--json").stdout)["workflow_file"]
    assert (told["name"], told["default"], told["agents"]["here"]["problem"]) == ("workflow.toml", "here", None)
    assert json.loads(workflow("doctor", "--json", "--no-config").stdout)["workflow_file"] is None


def test_a_cap_of_the_file_holds_in_a_run(write: Write, tmp_path: Path) -> None:
    # Each agent takes a lock that only one can have; two at once would find it taken.
    script = "mkdir busy && sleep 0.1 && rmdir busy && echo alone"
    write(f'agent = "one"\n[agents.one]\nuse = "command"\nargv = ["sh", "-c", "{script}"]\nmax_concurrent = 1')
    done = run("return await parallel([1, 2, 3, 4].map(n => () => agent('x')))", "--concurrency", "4")
    assert json.loads(done.stdout) == ["alone"] * 4
