"""The providers that ship with the engine, against real processes and real modules."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from orchestrator.agents import AgentProvider, AgentRequest, AgentResult
from orchestrator.providers import (
    CommandProvider,
    CommandSettings,
    ProviderSpecError,
    RehearseProvider,
    provider_from_spec,
)
from orchestrator.providers.json_answer import JsonAnswerError, parse_json_answer
from orchestrator.signals import AbortController
from protocol.errors import ErrorCode, WorkflowError
from protocol.events import RunId, WorkflowMeta, WorkflowRunInfo
from tests.lifeline import Lifeline

T = TypeVar("T")
RUN = WorkflowRunInfo(id=RunId("run-1"), meta=WorkflowMeta(name="demo", description="a demo"))
ANSWER_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def within(main: Coroutine[Any, Any, T], seconds: float = 30) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await main

    return asyncio.run(bounded())


def make_request(prompt: str = "", **fields: Any) -> AgentRequest:
    fields = {"seq": 1, "label": "reader", "signal": AbortController().signal, "provider": "default"} | fields
    return AgentRequest(prompt=prompt, run=RUN, **fields)


async def ask(provider: AgentProvider, request: AgentRequest) -> AgentResult:
    run = await provider.start(request)
    try:
        return await run.result
    finally:
        await run.dispose()


def shell(script: str, **settings: Any) -> CommandProvider:
    return CommandProvider(CommandSettings(argv=("sh", "-c", script), **settings))


@pytest.fixture
def lifeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lifeline]:
    path = tmp_path / "lifeline"
    line = Lifeline(path)
    monkeypatch.setenv("LIFELINE", str(path))
    yield line
    line.close()


JOIN = 'exec 3>"$LIFELINE"; '
TREES = {
    "a child in the background": JOIN + "sleep 99 & echo up >&3; wait",
    "a grandchild": JOIN + "sh -c 'sleep 99 & wait' & echo up >&3; wait",
    "a tree that ignores SIGTERM": "trap '' TERM; " + JOIN + "sleep 99 & echo up >&3; wait; wait; sleep 99",
    "a child that outlives a polite leader": JOIN + "(trap '' TERM; echo up >&3; sleep 99) & wait",
    "a child in a group of its own": JOIN + "timeout 99 sh -c 'echo up >&3; sleep 99'",
    "a child in a session of its own": JOIN + "setsid sh -c 'echo up >&3; sleep 99' & wait",
    "a session that starts one more when it is asked to end": JOIN
    + "setsid sh -c 'trap \"sleep 99 & exit\" TERM; echo up >&3; sleep 98 & wait' & wait",
    "a stopped child": JOIN + "(echo up >&3; kill -STOP $$; sleep 99) & wait",
}


@asynccontextmanager
async def started(provider: CommandProvider, lifeline: Lifeline, **fields: Any) -> AsyncIterator[Any]:
    run = await provider.start(make_request(**fields))
    try:
        assert await lifeline.heard()
        assert lifeline.held()
        yield run
    finally:
        await run.dispose()


# --- command: questions and answers ---


def test_a_command_reads_the_prompt_and_its_output_is_the_answer_without_the_last_newline() -> None:
    result = within(ask(shell("tr a-z A-Z"), make_request("naïve\nlines\n")))
    assert result == AgentResult(text="NAïVE\nLINES")


def test_a_prompt_larger_than_every_pipe_buffer_comes_back_whole() -> None:
    prompt = "0123456789abcdef" * 300_000
    assert within(ask(CommandProvider(["cat"]), make_request(prompt))).text == prompt


def test_a_command_that_closes_its_input_early_may_still_answer() -> None:
    assert within(ask(shell("exec <&-; echo done"), make_request("x" * 5_000_000))).text == "done"


def test_an_empty_prompt_is_an_empty_input_and_not_a_hang() -> None:
    assert within(ask(shell("wc -c"), make_request(""))).text.strip() == "0"


def test_a_failing_command_tells_its_exit_code_and_the_end_of_its_complaint() -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i >&2; done; echo partial; exit 3"
    result = within(ask(shell(script), make_request()))
    assert (result.stop_reason, result.text) == ("error", "")
    assert result.error == "sh exited with code 3: line 5\nline 6\nline 7\nline 8\nline 9"


def test_a_failing_command_that_says_nothing_still_has_a_reason() -> None:
    assert within(ask(shell("exit 7"), make_request())).error == "sh exited with code 7"


def test_a_command_that_dies_by_a_signal_names_it() -> None:
    result = within(ask(shell("kill -SEGV $$"), make_request()))
    assert (result.stop_reason, result.error) == ("error", "sh was killed by SIGSEGV")


def test_a_flood_of_complaints_neither_blocks_the_answer_nor_fills_the_reason() -> None:
    script = f"i=0; while [ $i -lt 3000 ]; do echo {'x' * 60} $i; i=$((i+1)); done >&2"
    assert within(ask(shell(script + "; echo ok"), make_request())).text == "ok"
    error = within(ask(shell(script + "; exit 1"), make_request())).error
    assert error is not None
    assert error.endswith("x 2999")
    assert len(error) < 700


def test_colours_and_control_characters_stay_out_of_the_reason() -> None:
    result = within(ask(shell(r"printf '\033[31mred\033[0m\a alert\n' >&2; exit 1"), make_request()))
    assert result.error == "sh exited with code 1: red alert"


def test_output_beyond_the_limit_stops_the_command_and_fails_the_agent() -> None:
    result = within(ask(shell("yes", max_output=100_000), make_request()))
    assert (result.stop_reason, result.error) == (
        "error",
        "sh printed more than 100000 bytes (max_output) and was stopped",
    )


def test_output_that_is_not_utf_8_reads_as_replacement_characters() -> None:
    assert within(ask(shell(r"printf 'a\377b'"), make_request())).text == "a\ufffdb"


def test_the_call_is_described_in_the_environment() -> None:
    request = make_request(
        label="a\x00b",
        seq=7,
        phase="Read",
        model="small",
        schema={"type": "object", "title": "é"},
        signal=AbortController().signal,
    )
    script = r"""printf '{"l":"%s","s":"%s","p":"%s","m":"%s","j":%s}' "$WORKFLOW_AGENT_LABEL" \
        "$WORKFLOW_AGENT_SEQ" "$WORKFLOW_AGENT_PHASE" "$WORKFLOW_AGENT_MODEL" "$WORKFLOW_AGENT_SCHEMA" """
    assert within(ask(shell(script), request)).structured == {
        "l": "a\ufffdb",
        "s": "7",
        "p": "Read",
        "m": "small",
        "j": {"type": "object", "title": "é"},
    }


def test_what_the_call_does_not_have_is_unset_even_when_the_host_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PHASE", "MODEL", "SCHEMA"):
        monkeypatch.setenv(f"WORKFLOW_AGENT_{name}", "of an outer run")
    script = 'echo "${WORKFLOW_AGENT_PHASE-unset} ${WORKFLOW_AGENT_MODEL-unset} ${WORKFLOW_AGENT_SCHEMA-unset}"'
    assert within(ask(shell(script), make_request())).text == "unset unset unset"


def test_a_label_too_long_for_the_environment_is_cut_and_a_schema_refused() -> None:
    long = "é" * 100_000
    assert (
        within(ask(shell('printf %s "$WORKFLOW_AGENT_LABEL" | wc -c'), make_request(label=long))).text.strip()
        == "100000"
    )
    with pytest.raises(WorkflowError, match="make the schema smaller"):
        within(ask(shell("true"), make_request(schema={"type": "object", "title": long})))


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (None, 0, "was not found"),
        ("#!/bin/sh\necho hi\n", 0o600, "is not executable"),
        ("echo no first line\n", 0o700, "is not a program"),
    ],
)
def test_a_command_that_cannot_start_is_refused_by_name(
    tmp_path: Path, content: str | None, mode: int, said: str
) -> None:
    program = tmp_path / "agent-program"
    if content is not None:
        program.write_text(content)
        program.chmod(mode)
    with pytest.raises(WorkflowError) as caught:
        within(ask(CommandProvider([str(program)]), make_request()))
    assert caught.value.code is ErrorCode.AGENT_START
    assert "agent-program" in caught.value.message
    assert said in caught.value.message


def test_a_run_that_was_aborted_before_starts_no_process() -> None:
    controller = AbortController()
    controller.abort("too late")
    with pytest.raises(WorkflowError, match="too late"):
        within(ask(shell("true"), make_request(signal=controller.signal)))


# --- command: structured answers ---


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ('{"n": 1}', {"n": 1}),
        ('\ufeff \n{"n": 1}\n\n', {"n": 1}),
        ("[1, 2]", [1, 2]),
        ('Here you are:\n```json\n{"n": 2}\n```\nAnything else?', {"n": 2}),
        ('```\n{"n": 3}\n```', {"n": 3}),
        ('```json\n{"n": 1}\n```\nBetter:\n```JSON\r\n{"n": 4}\r\n```', {"n": 4}),
        ('```python\nx = {1: 2}\n```\nso\n```json\n{"n": 5}\n```', {"n": 5}),
        ('First {"n": 1}, then {"n": {"m": "}"}} — it\'s that.', {"n": {"m": "}"}}),
        ('In Python {n} would be a set. {"n": 6}', {"n": 6}),
        ('{"n": "\\ud83d", "\\ude00": ["\\ud83d\\ude00"]}', {"n": "\ufffd", "\ufffd": ["😀"]}),
    ],
)
def test_the_json_of_an_answer_is_found(printed: str, value: object) -> None:
    assert parse_json_answer(printed) == value


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("", "answered nothing"),
        (" \n", "answered nothing"),
        ("I could not do it.", "is not JSON"),
        ('{"n": NaN}', "NaN is not a JSON number"),
        ('{"n": 1', "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 20_000, "nested too deeply"),
        ("{" * 200_000, "is not JSON"),
        ('{"a": 1, ' * 50_000, "is not JSON"),
    ],
)
def test_an_answer_without_json_says_what_it_is_instead(printed: str, said: str) -> None:
    with pytest.raises(JsonAnswerError, match=said) as caught:
        parse_json_answer(printed)
    assert len(str(caught.value)) < 300


def test_a_schema_call_gets_the_value_and_a_prose_answer_fails_with_the_reason() -> None:
    good = within(ask(shell("""echo 'The count is {"n": 12}.'"""), make_request(schema=ANSWER_SCHEMA)))
    assert (good.stop_reason, good.structured) == ("completed", {"n": 12})
    bad = within(ask(shell("echo twelve"), make_request(schema=ANSWER_SCHEMA)))
    assert (bad.stop_reason, bad.structured) == ("error", None)
    assert bad.error is not None
    assert "not JSON" in bad.error
    assert "twelve" in bad.error


# --- command: nothing is left ---


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_an_abort_leaves_no_process_of_the_agent(lifeline: Lifeline, tree: str) -> None:
    async def main() -> AgentResult:
        controller = AbortController()
        async with started(shell(tree, kill_grace=0.2), lifeline, signal=controller.signal) as run:
            controller.abort("enough")
            result: AgentResult = await run.result
            assert not lifeline.held()
            return result

    assert within(main()) == AgentResult(stop_reason="cancelled", error="aborted: enough")


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_a_dispose_leaves_no_process_of_the_agent(lifeline: Lifeline, tree: str) -> None:
    async def main() -> None:
        async with started(shell(tree, kill_grace=0.2), lifeline) as run:
            await run.dispose()
            assert not lifeline.held()

    within(main())


def test_what_a_finished_command_left_in_the_background_ends_with_it(lifeline: Lifeline) -> None:
    result = within(ask(shell(JOIN + "sleep 99 & echo answer"), make_request()))
    assert result.text == "answer"
    assert not lifeline.held()


def test_what_a_pipeline_writes_after_its_leader_exits_still_belongs_to_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIFO", str(tmp_path / "fifo"))
    # The background writer gets its end-of-file, and so its turn, from the leader's exit.
    script = 'mkfifo "$FIFO"; (cat "$FIFO"; echo late) & exec 5>"$FIFO"; echo early'
    assert within(ask(shell(script), make_request())).text.split() == ["early", "late"]


def test_an_abort_may_come_from_another_thread(lifeline: Lifeline) -> None:
    async def main() -> None:
        controller = AbortController()
        async with started(shell(TREES["a grandchild"]), lifeline, signal=controller.signal) as run:
            await asyncio.to_thread(controller.abort, "from elsewhere")
            assert (await run.result).stop_reason == "cancelled"
        assert not lifeline.held()
        assert controller.signal.listener_count == 0

    within(main())


def test_impatience_does_not_wait_for_the_grace(lifeline: Lifeline) -> None:
    async def main() -> None:
        provider = shell(TREES["a tree that ignores SIGTERM"], kill_grace=3600)
        controller = AbortController()
        async with started(provider, lifeline, signal=controller.signal) as run:
            controller.abort("once")
            provider.kill_all()
            assert (await run.result).stop_reason == "cancelled"
        assert not lifeline.held()

    within(main())


def test_a_dispose_that_is_cancelled_kills_at_once(lifeline: Lifeline) -> None:
    async def main() -> None:
        async with started(shell(TREES["a tree that ignores SIGTERM"], kill_grace=3600), lifeline) as run:
            disposing = asyncio.create_task(run.dispose())
            await asyncio.sleep(0)
            disposing.cancel()
            await asyncio.wait([disposing])
            assert disposing.cancelled()
        assert not lifeline.held()

    within(main())


def test_a_loop_that_ends_without_a_dispose_leaves_no_process(lifeline: Lifeline) -> None:
    async def main() -> None:
        await shell(TREES["a tree that ignores SIGTERM"], kill_grace=3600).start(make_request())
        await lifeline.heard()

    within(main())
    assert not lifeline.held()


def test_a_loop_on_another_thread_runs_commands_too(lifeline: Lifeline) -> None:
    answers: list[object] = []

    async def main() -> None:
        answers.append((await ask(CommandProvider(["cat"]), make_request("over there"))).text)
        async with started(shell(TREES["a child in the background"]), lifeline) as run:
            await run.dispose()
            answers.append(lifeline.held())

    thread = threading.Thread(target=lambda: within(main()))
    thread.start()
    thread.join(30)
    assert answers == ["over there", False]


def test_a_kernel_without_process_descriptors_changes_nothing(
    lifeline: Lifeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)

    async def main() -> None:
        assert (await ask(shell("exit 4"), make_request())).error == "sh exited with code 4"
        async with started(shell(TREES["a tree that ignores SIGTERM"], kill_grace=0.2), lifeline) as run:
            await run.dispose()
            # Killed, but only a process descriptor could have told when the last of the group was gone.
            await lifeline.silent()

    within(main())


def test_forty_agents_at_once_leave_no_descriptor_thread_or_child() -> None:
    provider = CommandProvider(["cat"])
    me = psutil.Process()

    async def main() -> None:
        await asyncio.gather(*(ask(provider, make_request(f"prompt {n}")) for n in range(3)))
        before = (me.num_fds(), threading.active_count(), me.children(recursive=True))
        answers = await asyncio.gather(*(ask(provider, make_request(f"prompt {n}")) for n in range(40)))
        assert [answer.text for answer in answers] == [f"prompt {n}" for n in range(40)]
        assert (me.num_fds(), threading.active_count(), me.children(recursive=True)) == before
        assert len(asyncio.all_tasks()) == 1

    within(main())


# --- python ---


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes a module into the current directory and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names: list[str] = []

    def write(text: str) -> str:
        names.append(f"agents_of_{tmp_path.name.replace('-', '_')}_{len(names)}")
        (tmp_path / f"{names[-1]}.py").write_text(text)
        return names[-1]

    yield write
    for name in names:
        sys.modules.pop(name, None)


AGENTS = """
import functools
async def plain(request): return "plain " + request.prompt
async def with_extra(extra, request): return extra + request.prompt
bound = functools.partial(with_extra, "partial ")
class Callable:
    supported_options = ("effort",)
    async def __call__(self, request): return "called " + request.prompt
    async def method(self, request): return "method " + request.prompt
instance = Callable()
class Run:
    id = "mine"
    def __init__(self, text): self.text = text
    @property
    def result(self): return self.answer()
    async def answer(self):
        from orchestrator.agents import AgentResult
        return AgentResult(text=self.text)
    async def dispose(self): pass
class Provider:
    async def start(self, request): return Run("provided " + request.prompt)
provider = Provider()
def sync(request): return "no"
number = 3
"""


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("plain", "plain hi"),
        ("bound", "partial hi"),
        ("instance", "called hi"),
        ("instance.method", "method hi"),
        ("provider", "provided hi"),
    ],
)
def test_python_code_in_the_current_directory_is_an_agent(module: Callable[[str], str], name: str, answer: str) -> None:
    provider = provider_from_spec(f"python:{module(AGENTS)}:{name}")
    assert within(ask(provider, make_request("hi"))).text == answer


def test_an_object_keeps_the_options_it_declares(module: Callable[[str], str]) -> None:
    assert getattr(provider_from_spec(f"python:{module(AGENTS)}:instance"), "supported_options", None) == ("effort",)


@pytest.mark.parametrize(
    ("text", "attribute", "said"),
    [
        (AGENTS, "missing", "has no 'missing'"),
        (AGENTS, "instance.missing", "has no 'instance.missing'"),
        (AGENTS, "sync", "is not async"),
        (AGENTS, "Callable", "is a class"),
        (AGENTS, "number", "is a int"),
        ("import no_such_module_anywhere", "x", "it needs the module 'no_such_module_anywhere'"),
        ("raise RuntimeError('first\\nsecond')", "x", "failed: RuntimeError: first second"),
        ("def broken(:", "x", "failed: SyntaxError"),
        ("raise SystemExit(3)", "x", "failed: SystemExit: 3"),
    ],
)
def test_python_code_that_is_no_agent_is_refused_in_one_line(
    module: Callable[[str], str], text: str, attribute: str, said: str
) -> None:
    with pytest.raises(ProviderSpecError) as caught:
        provider_from_spec(f"python:{module(text)}:{attribute}")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# --- specs ---


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "it must be rehearse, command:ARGV"),
        ("claude", "it must be rehearse, command:ARGV"),
        ("rehearse:loudly", "it must be rehearse, command:ARGV"),
        ("command", "it must be rehearse, command:ARGV"),
        ("command:", "names no program"),
        ("command:''", "names no program"),
        ("command:sh -c 'open", "cannot be read: no closing quotation"),
        ("openai", "it must be rehearse, command:ARGV"),
        ("openai:", "agent openai: names no model"),
        ("openai:m@http://", "agent openai: base_url must be"),
        ("acp:", "agent acp: names no program"),
        ("acp:gemini 'open", "cannot be read: no closing quotation"),
        ("python:", "is not module:function"),
        ("python:module", "is not module:function"),
        ("python:module:", "is not module:function"),
        ("python::function", "is not module:function"),
        ("python:./path.py:function", "is not module:function"),
        ("python:no_such_module_anywhere:f", "there is no module 'no_such_module_anywhere'"),
        ("python:os.no_such:f", "there is no module 'os.no_such'"),
    ],
)
def test_a_spec_that_names_no_provider_is_refused_in_one_line(spec: str, said: str) -> None:
    with pytest.raises(ProviderSpecError) as caught:
        provider_from_spec(spec)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("spec", "package"), [("openai:m", "openai"), ("acp:cat", "acp")])
def test_a_missing_extra_is_one_line_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, spec: str, package: str
) -> None:
    ours = ("orchestrator.providers.acp", "orchestrator.providers.openai")
    for name in [name for name in sys.modules if name.split(".")[0] == package or name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ProviderSpecError) as caught:
        provider_from_spec(spec)
    assert f"pip install 'workflow-orchestrator[{package}]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_command_spec_is_split_as_a_shell_would() -> None:
    provider = provider_from_spec("command:sh -c 'echo \"$0\"' 'two words'")
    assert isinstance(provider, CommandProvider)
    assert provider.argv == ("sh", "-c", 'echo "$0"', "two words")
    assert within(ask(provider, make_request())).text == "two words"


# --- rehearse ---


def test_a_rehearsal_names_the_agent_and_always_answers_the_same() -> None:
    async def main() -> list[AgentResult]:
        requests = [make_request("p", label="one", schema=schema) for schema in (None, ANSWER_SCHEMA)]
        return [await ask(RehearseProvider(), request) for request in requests for _ in range(2)]

    text, text_again, value, value_again = within(main())
    assert "one" in text.text
    assert (text, value) == (text_again, value_again)
    assert isinstance(value.structured["n"], int)


def test_a_rehearsal_counts_agents_and_prompts_by_phase() -> None:
    provider = provider_from_spec("rehearse")
    assert isinstance(provider, RehearseProvider)

    async def main() -> None:
        for label, phase, prompt in (
            ("a", "Read", "four"),
            ("b", None, "x"),
            ("a", "Read", "sixsix"),
            ("c", "Judge", ""),
        ):
            await ask(provider, make_request(prompt, label=label, phase=phase))

    within(main())
    assert [(p.title, p.agents, p.prompt_characters, p.labels) for p in provider.phases()] == [
        ("Read", 2, 10, ("a", "a")),
        (None, 1, 1, ("b",)),
        ("Judge", 1, 0, ("c",)),
    ]
