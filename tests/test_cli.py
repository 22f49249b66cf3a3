"""The ``workflow`` command through real processes: what it prints where, its exit codes, and what it leaves behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import META, PATIENCE, ROOT, WORKFLOW, run, workflow

HEADER = "export const meta = {name: 'demo', description: 'a demo'}\n"


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "100")


def one_line(done: subprocess.CompletedProcess[bytes]) -> str:
    """The single line of a usage error, after checking that it is one and that nothing else was printed."""
    text = done.stderr.decode()
    assert done.stdout == b""
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    assert text.startswith("workflow: ")
    assert "Traceback" not in text
    return text


# --- results ---


def test_the_value_is_json_on_stdout_and_the_story_is_on_stderr() -> None:
    done = run("phase('Ask'); log('asking'); return {ä: await agent('hi'), n: 1, args}", "--agent", "command:cat")
    assert json.loads(done.stdout) == {"ä": "hi", "n": 1}
    assert "ä".encode() in done.stdout
    story = done.stderr.decode()
    assert done.returncode == 0
    for part in ("workflow demo", "== Ask", "asking", "ok #1 hi", "1 agent completed"):
        assert part in story


def test_a_file_with_a_header_a_byte_order_mark_and_crlf_runs(tmp_path: Path) -> None:
    (tmp_path / "my script.js").write_bytes(b"\xef\xbb\xbf" + (HEADER + "return '😀'\n").replace("\n", "\r\n").encode())
    done = workflow("run", "my script.js")
    assert (done.returncode, json.loads(done.stdout)) == (0, "😀")


def test_meta_and_args_may_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text(META)
    (tmp_path / "args.json").write_text('{"list": [1, null]}')
    done = workflow("run", "-", "--meta", "@meta.json", "--args", "@args.json", stdin=b"return args.list")
    assert json.loads(done.stdout) == [1, None]


def test_args_may_be_any_json_value_and_are_undefined_when_left_out() -> None:
    assert json.loads(run("return args", "--args", "-1").stdout) == -1
    assert json.loads(run("return args === null", "--args", "null").stdout) is True
    assert json.loads(run("return args === undefined").stdout) is True


def test_json_prints_the_whole_outcome() -> None:
    script = "return await parallel([() => agent('exit 0'), () => agent('exit 3', {label: 'third'})])"
    done = run(script, "--json", "--agent", "command:sh", "--concurrency", "1")
    outcome = json.loads(done.stdout)
    assert re.fullmatch(r"wf_\w+", outcome.pop("run_id"))
    assert outcome == {
        "stop_reason": "completed",
        "code": None,
        "error": None,
        "value": ["", None],
        "agents_started": 2,
        "agents": {"completed": 1, "failed": 1, "cancelled": 0},
        "failures": [{"seq": 2, "label": "third", "phase": None, "reason": "sh exited with code 3"}],
        "warnings": [],
        "input_tokens": 0,
        "output_tokens": 0,
        "phases": [
            {
                "title": None,
                "started": 2,
                "completed": 1,
                "failed": 1,
                "cancelled": 0,
                "input_tokens": 0,
                "output_tokens": 0,
            }
        ],
    }


def test_a_failed_run_is_exit_1_with_its_error_on_stderr_and_no_value() -> None:
    done = run("throw new Error('no way')")
    assert (done.returncode, done.stdout) == (1, b"")
    assert "workflow: run failed [SCRIPT_ERROR]" in done.stderr.decode()
    assert "no way" in done.stderr.decode()


def test_json_tells_of_a_failed_run_and_of_a_script_that_never_ran() -> None:
    failed = run("throw new Error('no way')", "--json")
    assert (failed.returncode, json.loads(failed.stdout)["code"]) == (1, "SCRIPT_ERROR")
    refused = run("return (", "--json")
    assert (refused.returncode, json.loads(refused.stdout)["code"]) == (2, "SCRIPT_PARSE")
    assert set(json.loads(failed.stdout)) - set(json.loads(refused.stdout)) == {"rehearsal"}


def test_four_dead_agents_of_five_cannot_be_overlooked() -> None:
    script = """phase('Work')
    return (await parallel([1, 2, 3, 4, 5].map(n => () => agent(`[ ${n} = 3 ] || { echo broken ${n} >&2; exit 9; }`,
      {label: 'same'})))).length"""
    done = run(script, "--agent", "command:sh")
    story = done.stderr.decode()
    assert done.returncode == 0
    assert "4 of 5 agents FAILED, 1 completed" in story
    for seq in (1, 2, 4, 5):
        assert f"  failed: #{seq} same [Work]: sh exited with code 9: broken {seq}\n" in story


COUNTING = """
from orchestrator import AgentResult, Usage
async def agent(request):
    bad = "bad" in request.prompt
    return AgentResult(text="x", usage=Usage(1000, 20), stop_reason="error" if bad else "completed", error="no luck")
"""


def test_tokens_and_failures_are_told_by_phase(tmp_path: Path) -> None:
    (tmp_path / "counting_agents.py").write_text(COUNTING)
    script = """phase('Read'); await parallel(['a', 'bad', 'bad'].map(p => () => agent(p)));
    phase('Judge'); return await agent('c')"""
    done = run(script, "--json", "--agent", "python:counting_agents:agent")
    story, outcome = done.stderr.decode(), json.loads(done.stdout)
    assert "2 of 4 agents FAILED, 2 completed; 4,000 tokens in, 80 out\n" in story
    assert "  Read: 2 of 3 agents FAILED, 1 completed; 3,000 tokens in, 60 out\n" in story
    assert "  Judge: 1 agent completed; 1,000 tokens in, 20 out\n" in story
    assert re.search(r"ok #4 c \(.*, 1,000 tokens in, 20 out\)\n", story)
    assert (outcome["input_tokens"], outcome["output_tokens"]) == (4000, 80)
    found = [(phase["title"], phase["failed"], phase["input_tokens"]) for phase in outcome["phases"]]
    assert found == [("Read", 2, 3000), ("Judge", 0, 1000)]


def test_a_budget_is_a_ceiling_for_the_tokens_that_agents_report(tmp_path: Path) -> None:
    (tmp_path / "counting_agents.py").write_text(COUNTING)
    script = "for (const n of [1, 2, 3, 4, 5]) await agent('a')"
    for option in ("--budget", "--token-budget"):
        done = run(script, option, "40", "--json", "--agent", "python:counting_agents:agent")
        outcome = json.loads(done.stdout)
        assert (done.returncode, outcome["code"], outcome["agents_started"]) == (1, "BUDGET_EXCEEDED", 2)
    assert "--budget must be a whole number" in one_line(run("return 1", "--budget", "0"))


def test_warnings_are_shown() -> None:
    done = run("return {kept: 1, dropped: undefined}")
    assert json.loads(done.stdout) == {"kept": 1}
    assert "warning: " in done.stderr.decode()
    assert "dropped" in done.stderr.decode()


def test_limits_of_the_command_line_reach_the_run() -> None:
    late = run("await new Promise(resolve => setTimeout(resolve, 60000))", "--timeout", "0.2", "--json")
    assert (late.returncode, json.loads(late.stdout)["code"]) == (1, "SCRIPT_TIMEOUT")
    many = run("return await parallel([1, 2].map(n => () => agent('x')))", "--max-agents", "1", "--json")
    assert (many.returncode, json.loads(many.stdout)["code"]) == (1, "AGENT_CAP")
    big = run("const a = []; for (;;) a.push(new Uint8Array(1 << 20).fill(1))", "--memory-limit", "32M", "--json")
    assert big.returncode == 1
    assert json.loads(big.stdout)["code"] in ("WORKER_MEMORY", "SCRIPT_ERROR")


def test_agents_may_be_several_by_name() -> None:
    script = "return [await agent('x'), await agent('x', {provider: 'loud'})]"
    done = run(script, "--agent", "command:cat", "--agent", "loud=command:tr a-z A-Z")
    assert json.loads(done.stdout) == ["x", "X"]


def test_a_python_agent_that_prints_does_not_disturb_the_result(tmp_path: Path) -> None:
    (tmp_path / "my_agents.py").write_text(
        "print('while importing')\nasync def echo(request):\n    print('while working')\n    return request.prompt\n"
    )
    done = run("return await agent('hi')", "--agent", "python:my_agents:echo")
    assert (done.returncode, json.loads(done.stdout)) == (0, "hi")
    assert "while importing" in done.stderr.decode()
    assert "while working" in done.stderr.decode()


def test_an_agent_that_can_be_closed_is_closed_when_the_run_is_over(tmp_path: Path) -> None:
    (tmp_path / "closable_agents.py").write_text(
        "from orchestrator import FunctionProvider\n"
        "async def answer(request):\n    print('working')\n    return 'x'\n"
        "class Closable(FunctionProvider):\n    async def aclose(self):\n        print('closed')\n"
        "agent = Closable(answer)\n"
    )
    done = run("return await agent('hi')", "--agent", "python:closable_agents:agent")
    assert (done.returncode, json.loads(done.stdout)) == (0, "x")
    assert [line for line in done.stderr.decode().splitlines() if line in ("working", "closed")] == [
        "working",
        "closed",
    ]


def test_the_console_script_and_the_module_are_the_same_command() -> None:
    code = "import sys; from orchestrator.cli import main; sys.exit(main())"
    for command in (WORKFLOW, [sys.executable, "-c", code]):
        done = subprocess.run([*command, "--help"], capture_output=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0
        assert all(name in done.stdout.decode() for name in ("run", "check", "doctor"))


# --- rehearsals ---


def test_without_an_agent_it_says_loudly_that_it_rehearses_and_what_it_would_cost() -> None:
    script = """phase('Read'); await parallel([1, 2].map(n => () => agent('read ' + n)));
    phase('Judge'); return await agent('judge', {effort: 'high', schema: {type: 'object', required: ['ok'],
      properties: {ok: {type: 'boolean'}}}})"""
    done = run(script, "--json")
    story, outcome = done.stderr.decode(), json.loads(done.stdout)
    assert story.startswith("REHEARSAL: ")
    assert "starts 3 agents with 17 characters of prompts" in story
    assert isinstance(outcome["value"]["ok"], bool)
    assert outcome["rehearsal"] == [
        {"phase": "Read", "agents": 2, "prompt_characters": 12, "labels": ["read 1", "read 2"]},
        {"phase": "Judge", "agents": 1, "prompt_characters": 5, "labels": ["judge"]},
    ]


def test_a_rehearsal_is_the_same_every_time() -> None:
    schema = {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "string"}, "minItems": 2}}}
    script = f"return [await agent('a'), await agent('b', {{schema: {json.dumps(schema | {'required': ['list']})}}})]"
    first, second = run(script), run(script)
    assert first.returncode == 0
    assert first.stdout == second.stdout


def test_real_agents_are_not_called_a_rehearsal() -> None:
    assert "REHEARS" not in run("return await agent('x')", "--agent", "command:cat").stderr.decode()


# --- events ---


def decode_events(lines: list[bytes]) -> list[Any]:
    return [json.loads(line) for line in lines]


def test_events_go_to_a_file_one_json_object_a_line(tmp_path: Path) -> None:
    run("phase('P'); log('l'); await agent('x'); return 1", "--events", "events.jsonl", "--agent", "command:cat")
    events = decode_events((tmp_path / "events.jsonl").read_bytes().splitlines())
    kinds = ["start", "phase", "log", "agent-start", "agent-end", "end"]
    assert [event["type"] for event in events] == [f"workflow/{kind}" for kind in kinds]
    assert {event["run"]["meta"]["name"] for event in events} == {"demo"}


def test_events_on_stdout_come_before_the_result_and_every_line_is_json() -> None:
    done = run("log('l'); return {a: [1, 2]}", "--events", "-")
    *events, value = decode_events(done.stdout.splitlines())
    assert [event["type"] for event in events] == ["workflow/start", "workflow/log", "workflow/end"]
    assert value == {"a": [1, 2]}


def test_no_event_is_lost_when_there_are_many(tmp_path: Path) -> None:
    done = run("for (let i = 0; i < 20000; i++) log(`line ${i}`); return 1", "--events", "events.jsonl")
    events = decode_events((tmp_path / "events.jsonl").read_bytes().splitlines())
    logged = [event["message"] for event in events if event["type"] == "workflow/log"]
    assert done.returncode == 0
    assert logged == [f"line {i}" for i in range(20000)]


# --- bad input: one line, exit 2 ---


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.js", None, "no such file: missing.js"),
        ("sub/missing.js", None, "no such file: sub/missing.js"),
        (".", None, ". is a directory"),
        ("latin.js", b"return 1\nreturn '\xe4'\n", "latin.js is not UTF-8 text (byte 0xe4 in line 2)"),
        ("empty.js", b"", "empty.js is empty"),
        ("blank.js", b"\xef\xbb\xbf \n\t\n", "blank.js is empty"),
        ("bare.js", b"return 1\n", "bare.js does not say what it is"),
        ("nul\x00.js", None, None),
    ],
)
def test_a_file_that_is_no_script_is_one_line_and_exit_2(
    tmp_path: Path, name: str, content: bytes | None, said: str | None
) -> None:
    if said is None:  # such a name cannot be typed; the function must still not fall over it
        from orchestrator.cli.inputs import UsageProblem, read_script

        with pytest.raises(UsageProblem, match="is not a file name"):
            read_script(name)
        return
    if content is not None:
        (tmp_path / name).write_bytes(content)
    for command in ("run", "check"):
        done = workflow(command, name)
        assert done.returncode == 2
        assert said in one_line(done)


def test_standard_input_is_called_so() -> None:
    done = workflow("run", "-", stdin=b"return 1")
    assert done.returncode == 2
    assert "standard input does not say what it is" in one_line(done)
    assert "--meta" in one_line(done)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--args", "{a: 1}"], "--args is not JSON"),
        (["--args", "@no-such.json"], "--args: no such file: no-such.json"),
        (["--args", "NaN"], "--args is not JSON"),
        (["--args", "[" * 5000], "--args is nested too deeply"),
        (["--agent", "claude"], "unknown agent 'claude': it must be rehearse, command:ARGV"),
        (["--agent", "command:"], "names no program"),
        (["--agent", "python:no_such_module_here:f"], "there is no module 'no_such_module_here'"),
        (["--agent", "python:broken_agents:f"], "importing 'broken_agents' failed: ZeroDivisionError"),
        (["--agent", "command:a", "--agent", "command:b"], "names 'default' twice"),
        (["--timeout", "soon"], "--timeout"),
        (["--timeout", "0"], "--timeout must be a number of seconds"),
        (["--max-agents", "0"], "--max-agents must be a whole number"),
        (["--concurrency", "-3"], "--concurrency must be a whole number"),
        (["--memory-limit", "lots"], "--memory-limit must be a size such as 256M"),
        (["--memory-limit", "1k"], "--memory-limit must be a whole number"),
        (["--sandbox", "maybe"], "--sandbox"),
        (["--events", "no/such/folder/events"], "--events no/such/folder/events cannot be written"),
        (["--no-such-option"], "--no-such-option"),
        (["another.js"], "another.js"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_2(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "broken_agents.py").write_text("1 / 0\n")
    done = run("return 1", *arguments)
    assert done.returncode == 2
    assert said in one_line(done)


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ("{", "--meta is not JSON"),
        ("null", "--meta must be an object"),
        ("[]", "invalid meta: meta must be an object"),
        ('{"name": "", "extra": 1}', "meta.extra is not a recognized field"),
    ],
)
def test_a_bad_meta_is_one_line_and_exit_2(meta: str, said: str) -> None:
    done = workflow("run", "-", "--meta", meta, "--agent", "command:cat", stdin=b"return 1")
    assert done.returncode == 2
    assert said in one_line(done)


def test_a_header_and_meta_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "both.js").write_text(HEADER + "return 1")
    done = workflow("run", "both.js", "--meta", META, "--agent", "command:cat")
    assert done.returncode == 2
    assert "remove" in one_line(done)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "export const meta = {name: 'a' + 'b', description: 'd'}\nreturn 1",
            "must be a pure literal (line 1, column 28)",
        ),
        ("export const meta = {name: '', description: 'd'}\nreturn 1", "meta.name must be a non-empty string"),
        ("const meta = {name: 'x', description: 'y'}\nreturn 1", "line 1: the header is written `export const meta"),
        ("\nexport const meta = {name: 'x'\nreturn 1", "line 2: the `export const meta = {…}` header does not parse"),
    ],
)
def test_a_header_that_is_wrong_is_one_line_and_exit_2(tmp_path: Path, script: str, said: str) -> None:
    (tmp_path / "headed.js").write_text(script)
    for command in (["run", "headed.js", "--agent", "command:cat"], ["check", "headed.js"]):
        done = workflow(*command)
        assert done.returncode == 2
        assert said in one_line(done)


def test_no_command_shows_the_help_and_an_unknown_one_is_refused() -> None:
    assert b"doctor" in workflow().stdout
    done = workflow("rnu")
    assert done.returncode == 2
    assert "rnu" in one_line(done)


def test_a_script_that_does_not_parse_shows_its_place_and_no_path(tmp_path: Path) -> None:
    (tmp_path / "broken.js").write_text(HEADER + "const a = 1\nreturn a +* 2\n")
    for command in (["run", "broken.js", "--agent", "command:cat"], ["check", "broken.js"]):
        done = workflow(*command)
        text = done.stderr.decode()
        assert (done.returncode, done.stdout) == (2, b"")
        assert text.startswith("workflow: broken.js: workflow script does not parse: ")
        assert "(line 3, column 11)" in text
        assert "return a +* 2" in text
        assert str(tmp_path) not in text


# --- check, doctor ---


def test_check_prints_the_meta_and_runs_nothing(tmp_path: Path) -> None:
    script = "export const meta = {name: 'n', description: 'd', phases: [{title: 'One'}]}\nfor (;;) await agent('x')\n"
    (tmp_path / "checked.js").write_text(script)
    done = workflow("check", "checked.js")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == {"name": "n", "description": "d", "phases": [{"title": "One"}]}


def test_check_takes_the_meta_of_a_bare_script() -> None:
    done = workflow("check", "-", "--meta", META, stdin=b"for (;;) {}")
    assert (done.returncode, json.loads(done.stdout)) == (0, json.loads(META))


def test_doctor_tells_versions_worker_mode_walls_and_start_times() -> None:
    done = workflow("doctor", "--json")
    diagnosis = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, b"")
    assert diagnosis["engine"]["worker_mode"] in ("zygote", "spawn")
    assert diagnosis["engine"]["mode_reason"]
    assert diagnosis["packages"]["pythonmonkey"][0].isdigit()
    assert diagnosis["fresh_worker_ms"] > 0
    assert diagnosis["spare_worker_ms"] > 0
    text = workflow("doctor").stdout.decode()
    assert re.search(r"worker mode +(zygote|spawn): \w+", text)
    for wall in diagnosis["engine"]["walls"]:
        assert re.search(rf"(up  |DOWN) {re.escape(wall['name'])}", text)
