"""What ``command:`` agents are told in their arguments, how their JSON is read, and what their time is limited by."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agents import AgentResult, Usage
from orchestrator.providers import CommandProvider, CommandSettings
from protocol.errors import WorkflowError
from tests.lifeline import Lifeline
from tests.test_providers import ANSWER_SCHEMA, ask, make_request, within

SHOW = ("sh", "-c", 'for a in "$@"; do printf "<%s>" "$a"; done', "sh")
"""A program that prints its arguments, so that one can see where each of them begins and ends."""
CLAUDE: dict[str, Any] = {
    "output": "json",
    "text": "result",
    "structured": "structured_output",
    "error": "is_error",
    "usage_input": ("usage.input_tokens", "usage.cache_creation_input_tokens", "usage.cache_read_input_tokens"),
    "usage_output": "usage.output_tokens",
}
CODEX: dict[str, Any] = {
    "output": "jsonl",
    "text": "item.text",
    "where": {"item.type": "agent_message"},
    "error": "error.message",
    "usage_input": "usage.input_tokens",
    "usage_output": "usage.output_tokens",
}


@pytest.fixture
def lifeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lifeline]:
    path = tmp_path / "lifeline"
    line = Lifeline(path)
    monkeypatch.setenv("LIFELINE", str(path))
    yield line
    line.close()


def answer(settings: CommandSettings, prompt: str = "", **fields: Any) -> AgentResult:
    return within(ask(CommandProvider(settings), make_request(prompt, **fields)))


def printing(printed: str, /, *, end: str = "", **settings: Any) -> CommandSettings:
    """Settings of a program that prints this and then does what the shell line ``end`` says."""
    return CommandSettings(argv=("sh", "-c", f'printf %s "$0"; {end}', printed), **settings)


# --- arguments ---


def test_a_group_of_arguments_is_passed_when_the_call_has_its_value_and_left_out_when_not() -> None:
    settings = CommandSettings(
        argv=SHOW,
        model_args=("--model", "{model}"),
        effort_args=("-c", 'effort="{effort}"'),
        agent_type_args=("--agent={agentType}",),
        isolation_args=("--in", "{isolation}"),
        label_args=("--name", "{label}"),
    )
    assert answer(settings).text == "<--name><reader>"
    options = {"effort": "high", "agentType": "explorer", "isolation": "worktree"}
    told = answer(settings, model="small one", options=options, label="a {model}").text
    assert told == '<--model><small one><-c><effort="high"><--agent=explorer><--in><worktree><--name><a {model}>'


def test_braces_in_the_programs_own_arguments_mean_nothing() -> None:
    settings = CommandSettings(argv=(*SHOW, "{model}", "{prompt}"), model_args=("{model}",))
    assert answer(settings, model="m").text == "<{model}><{prompt}><m>"


def test_a_declared_argument_declares_the_option_and_stall_limits_are_always_honoured() -> None:
    assert CommandProvider(["cat"]).supported_options == ("stallMs",)
    settings = CommandSettings(argv=("cat",), effort_args=("{effort}",), agent_type_args=("{agentType}",))
    assert CommandProvider(settings).supported_options == ("effort", "agentType", "stallMs")


def test_the_options_of_the_call_are_in_the_environment_too() -> None:
    script = 'printf "%s %s %s" "$WORKFLOW_AGENT_EFFORT" "$WORKFLOW_AGENT_TYPE" "$WORKFLOW_AGENT_ISOLATION"'
    options = {"effort": "high", "agentType": "explorer", "isolation": "worktree"}
    assert answer(CommandSettings(argv=("sh", "-c", script)), options=options).text == "high explorer worktree"


def test_a_program_may_have_a_folder_and_variables_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    script = 'printf "%s %s %s" "${PWD##*/}" "$FLAVOUR" "$WORKFLOW_AGENT_SEQ"'
    variables = {"FLAVOUR": "mild", "WORKFLOW_AGENT_SEQ": "mine"}
    settings = CommandSettings(argv=("sh", "-c", script), cwd=str(tmp_path / "here"), env=variables)
    assert answer(settings).text == "here mild 1"
    with pytest.raises(WorkflowError, match=r"'cat' cannot start in its working directory: there is no such folder"):
        answer(CommandSettings(argv=("cat",), cwd=str(tmp_path / "gone")))


def test_a_prompt_may_be_an_argument_and_standard_input_is_empty_then() -> None:
    script = 'printf "<%s>" "$@"; wc -c'
    settings = CommandSettings(argv=("sh", "-c", script, "sh"), prompt_args=("--", "{prompt}"))
    assert answer(settings, "two\nlines\x00").text.split(">") == ["<--", "<two\nlines\ufffd", "0"]
    with pytest.raises(WorkflowError, match="leave prompt_args out"):
        answer(settings, "é" * 60_000)


def test_a_schema_may_be_an_argument_or_be_written_under_the_prompt() -> None:
    argument = CommandSettings(argv=("printf", "%s"), schema_args=("{schema}",))
    assert answer(argument, schema={"type": "object"}).structured == {"type": "object"}
    under = CommandSettings(argv=("sh", "-c", "cat >&2; exit 1"), schema_prompt=True)
    told = answer(under, "Count.", schema={"type": "object", "title": "Tally"}).error
    assert told is not None
    assert "Tally" in told
    assert answer(CommandSettings(argv=("cat",), schema_prompt=True), "Count.").text == "Count."


# --- JSON ---


def test_one_json_document_gives_text_and_usage() -> None:
    printed = {
        "type": "result",
        "is_error": False,
        "result": "naïve \ud83d",
        "structured_output": None,
        "usage": {
            "input_tokens": 4,
            "cache_creation_input_tokens": 30,
            "cache_read_input_tokens": 200,
            "output_tokens": 7,
        },
    }
    result = answer(printing(json.dumps(printed, indent=1), **CLAUDE))
    assert result == AgentResult(text="naïve \ufffd", usage=Usage(input_tokens=234, output_tokens=7))


def test_a_greeting_before_the_document_is_forgiven() -> None:
    assert answer(printing('Loaded {1}.\nHello\n{"result": "x"}', **CLAUDE)).text == "x"


def test_a_structured_answer_has_a_field_of_its_own_and_else_is_found_in_the_text() -> None:
    own = answer(printing('{"result": "", "structured_output": {"n": 1}}', **CLAUDE), schema=ANSWER_SCHEMA)
    assert (own.stop_reason, own.structured) == ("completed", {"n": 1})
    only = answer(printing('{"structured_output": {"n": 1}}', **CLAUDE), schema=ANSWER_SCHEMA)
    assert (only.stop_reason, only.structured) == ("completed", {"n": 1})
    inside = answer(printing('{"result": "It is ```json\\n{\\"n\\": 2}\\n```"}', **CLAUDE), schema=ANSWER_SCHEMA)
    assert inside.structured == {"n": 2}
    neither = answer(printing('{"result": "two", "usage": {"output_tokens": 3}}', **CLAUDE), schema=ANSWER_SCHEMA)
    assert (neither.stop_reason, neither.usage) == ("error", Usage(output_tokens=3))
    assert "not JSON" in (neither.error or "")


def test_usage_may_be_spread_over_members_whose_names_nobody_knows() -> None:
    tokens = {"models": {"a-pro": {"prompt": 10, "out": 1}, "a-flash": {"prompt": 5, "out": 2}}, "list": [{"n": 4}]}
    settings = printing(
        json.dumps({"response": "x", "stats": tokens}),
        output="json",
        text="response",
        usage_input=("stats.models.*.prompt", "stats.list.0.n", "stats.list.9.n"),
        usage_output="stats.models.*.out",
    )
    assert answer(settings).usage == Usage(input_tokens=19, output_tokens=3)


@pytest.mark.parametrize("count", ["-3", "1.5", '"7"', "true", "null", "[]", "{}"])
def test_what_is_no_count_is_not_reported(count: str) -> None:
    result = answer(printing(f'{{"result": "x", "usage": {{"output_tokens": {count}}}}}', **CLAUDE))
    assert result == AgentResult(text="x")


def test_lines_of_json_give_the_last_text_that_counts_and_skip_whatever_else_is_printed() -> None:
    lines = [
        "Reading prompt from stdin...",
        '{"type":"thread.started","thread_id":"1"}',
        '{"type":"item.completed","item":{"type":"agent_message","text":"I will look."}}',
        '{"type":"item.completed","item":{"type":"agent_message","text":"Done."}}',
        '{"type":"item.completed","item":{"type":"reasoning","text":"So that was that."}}',
        '{"type":"turn.completed","usage":{"input_tokens":24763,"cached_input_tokens":24448,"output_tokens":122}}',
        "{not json}",
        "",
    ]
    result = answer(printing("\n".join(lines), **CODEX))
    assert result == AgentResult(text="Done.", usage=Usage(input_tokens=24763, output_tokens=122))


@pytest.mark.parametrize(
    ("printed", "end", "settings", "error"),
    [
        ('{"result": "No credit.", "is_error": true}', "", CLAUDE, "sh failed: No credit."),
        ('{"is_error": true}', "", CLAUDE, "sh failed: it reports is_error"),
        ('{"result": "No credit.", "is_error": true}', "exit 1", CLAUDE, "sh exited with code 1: No credit."),
        ('{"result": "x"}', "echo late >&2; exit 4", CLAUDE, "sh exited with code 4: late"),
        ('{"type":"turn.failed","error":{"message":"no\\u001b[31m quota"}}', "", CODEX, "sh failed: no quota"),
        ('{"error": {"message": "bad key", "code": 1}}', "", CLAUDE | {"error": "error"}, "sh failed: bad key"),
        ('{"error": {"code": 1}}', "", CLAUDE | {"error": "error"}, 'sh failed: {"code": 1}'),
        ('{"errors": ["first"]}', "", CLAUDE | {"error": ("is_error", "errors.0")}, "sh failed: first"),
        ('{"subtype": "gave up"}', "", CLAUDE, 'sh printed no \'result\': {"subtype": "gave up"}'),
        ("plain words", "", CLAUDE, "sh printed no JSON: plain words"),
        ("", "", CLAUDE, "sh printed no JSON: it printed nothing"),
        ("", "echo why >&2", CLAUDE, "sh printed no JSON: it printed nothing: why"),
        ("plain words", "", CODEX, "sh printed no line of JSON: plain words"),
        ('{"result": NaN}', "", CLAUDE, 'sh printed no JSON: {"result": NaN}'),
    ],
)
def test_a_failure_that_the_output_reports_or_that_it_lacks_an_answer_is_the_reason(
    printed: str, end: str, settings: dict[str, Any], error: str
) -> None:
    result = answer(printing(printed, end=end, **settings))
    assert (result.stop_reason, result.error) == ("error", error)


def test_an_endless_complaint_is_cut_and_tokens_of_a_failure_are_counted() -> None:
    printed = {"result": "x" * 5000, "is_error": True, "usage": {"input_tokens": 5, "output_tokens": 6}}
    result = answer(printing(json.dumps(printed), **CLAUDE))
    assert result.usage == Usage(input_tokens=5, output_tokens=6)
    assert len(result.error or "") < 700
    prose = answer(printing("y" * 5000, **CLAUDE)).error or ""
    assert len(prose) < 300


def test_a_field_that_is_no_text_is_given_as_json() -> None:
    assert answer(printing('{"result": {"é": [1]}}', **CLAUDE)).text == '{"é": [1]}'


# --- time ---


def test_an_agent_that_takes_too_long_is_stopped_with_everything_it_started(lifeline: Lifeline) -> None:
    script = 'exec 3>"$LIFELINE"; sleep 99 & echo working >&2; wait'
    result = answer(CommandSettings(argv=("sh", "-c", script), timeout=0.3, kill_grace=0.2))
    assert result.stop_reason == "error"
    assert result.error == "sh took longer than 0.3 s (timeout) and was stopped: working"
    assert not lifeline.held()


def test_tokens_of_an_agent_that_was_stopped_count_where_it_told_them() -> None:
    line = '{"usage": {"input_tokens": 5, "output_tokens": 6}}'
    result = answer(printing(line, end="sleep 99", timeout=0.3, kill_grace=0.2, **CODEX))
    assert (result.stop_reason, result.usage) == ("error", Usage(input_tokens=5, output_tokens=6))


def test_an_agent_that_ends_in_time_leaves_no_timer_behind() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        provider = CommandProvider(CommandSettings(argv=("cat",), timeout=3600))
        assert (await ask(provider, make_request("x", options={"stallMs": 3_600_000}))).text == "x"
        waiting = [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        assert [timer for timer in waiting if "_CommandRun" in repr(timer)] == []

    within(main())


def test_an_agent_without_a_sign_of_life_is_stopped() -> None:
    result = answer(CommandSettings(argv=("sleep", "99")), options={"stallMs": 50})
    assert (result.stop_reason, result.error) == ("error", "sleep printed nothing for 50 ms (stallMs) and was stopped")


def test_a_byte_now_and_then_is_a_sign_of_life_on_either_output() -> None:
    # Works far longer than the limit, but is never silent for as long as it.
    script = "for i in 1 2 3 4 5 6; do sleep 0.2; printf .; sleep 0.2; printf . >&2; done"
    result = answer(CommandSettings(argv=("sh", "-c", script)), options={"stallMs": 1500})
    assert result == AgentResult(text="......")


# --- settings ---


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"argv": ()}, "argv must name a program"),
        ({"argv": ("",)}, "argv must name a program"),
        ({"argv": "cat"}, "argv must name a program"),
        ({"cwd": ""}, "cwd must be a folder"),
        ({"env": {"A=B": "c"}}, "env must be a table"),
        ({"model_args": ("--model",)}, "model_args must have {model}"),
        ({"agent_type_args": ("{agent_type}",)}, "agent_type_args must have {agentType}"),
        ({"output": "xml"}, 'output must be "text", "json" or "jsonl"'),
        ({"output": "json"}, "text must name the field"),
        ({"text": "result"}, 'text needs output = "json" or "jsonl"'),
        ({"usage_output": "usage.n"}, "usage_output needs output"),
        ({"output": "json", "text": "a..b"}, "text must be a path"),
        ({"output": "json", "text": "a", "error": ("b", "")}, "error must be a path"),
        ({"output": "json", "text": "a", "where": {"t": "x"}}, 'where needs output = "jsonl"'),
        ({"timeout": 0}, "timeout must be a number of seconds over 0"),
        ({"kill_grace": -1}, "kill_grace must be"),
        ({"max_output": 0}, "max_output must be"),
    ],
)
def test_a_senseless_setting_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"^[a-z_]+ ") as caught:
        CommandSettings(**({"argv": ("cat",)} | settings))
    assert said in str(caught.value)
