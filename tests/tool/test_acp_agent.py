"""``workflow acp`` as a process: driven by the ACP SDK's own client, by raw frames, and by the real client acpx."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shlex
import shutil
import signal
import sys
import termios
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import acp
import psutil
import pytest

from tests.conftest import run_async
from tests.tool.fakes import until

ROOT = Path(__file__).resolve().parents[2]
SERVE = "import asyncio, sys; from orchestrator.acp import serve_acp; asyncio.run(serve_acp(**eval(sys.argv[1])))"
NOISY = "python:tests.tool.acp_agents:noisy"

HELLO = """```js
phase('Ask'); log('hello')
const answers = await parallel(args.who.map(who => () => agent(`greet ${who}`)))
return answers
```
```json
{"who": ["Ada", "Bo"]}
```"""
HANG = "```js\nphase('Wait'); await agent('hang')\n```"


def command(**settings: Any) -> list[str]:
    return [sys.executable, "-c", SERVE, repr(settings)]


def environment(**extra: str) -> dict[str, str]:
    """Of a served process: the coverage settings of a measured test run go along."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE") or name == "PATH"}
    return {**kept, "PYTHONPATH": str(ROOT), **extra}


class Client:
    """The client's side of the SDK: keeps every update, in order."""

    def __init__(self) -> None:
        self.updates: list[tuple[str, dict[str, Any]]] = []

    async def session_update(self, session_id: str, update: Any, **_kwargs: Any) -> None:
        self.updates.append((session_id, update.model_dump(mode="json", by_alias=True, exclude_none=True)))

    def of(self, session_id: str) -> list[dict[str, Any]]:
        return [update for session, update in self.updates if session == session_id]

    def statuses(self, session_id: str) -> list[str]:
        """pending, in_progress …, then the final status and what was said."""
        return [update.get("status", update["sessionUpdate"]) for update in self.of(session_id)]


@contextlib.asynccontextmanager
async def connected(client: Client, cwd: Path, **settings: Any) -> AsyncGenerator[Any]:
    spawned = acp.spawn_agent_process(
        client,
        *command(**settings),
        env=environment(),
        cwd=cwd,
        transport_kwargs={"stderr": None, "shutdown_timeout": 20},
    )
    async with spawned as (connection, process):
        await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        yield connection
    assert process.returncode == 0


def served(test: Callable[[Any, Client, Path], Any], cwd: Path, **settings: Any) -> None:
    async def main() -> None:
        client = Client()
        async with connected(client, cwd, **settings) as connection:
            await test(connection, client, cwd)

    run_async(main())


async def prompt(connection: Any, session_id: str, text: str) -> str:
    return (await connection.prompt(session_id=session_id, prompt=[acp.text_block(text)])).stop_reason


def content(update: dict[str, Any]) -> str:
    blocks = update["content"] if isinstance(update["content"], list) else [{"content": update["content"]}]
    return "".join(block["content"]["text"] for block in blocks)


# ------------------------------------------------------------------------------------------------- the SDK's client


def test_a_prompt_streams_the_card_its_progress_the_final_state_and_the_result(tmp_path: Path) -> None:
    async def test(connection: Any, client: Client, cwd: Path) -> None:
        session = (await connection.new_session(cwd=str(cwd), mcp_servers=[])).session_id
        assert await prompt(connection, session, HELLO) == "end_turn"
        updates = client.of(session)
        first, final, said = updates[0], updates[-2], updates[-1]
        assert (first["sessionUpdate"], first["status"], first["title"]) == ("tool_call", "pending", "workflow: prompt")
        assert first["rawInput"].startswith("phase('Ask'); log('hello')\n")
        progress = updates[1:-2]
        assert {update["status"] for update in progress} == {"in_progress"}
        assert content(progress[-1]) == (
            "Running: Ask\nAgents: 0 at work, 2 completed, 0 failed, 0 cancelled\nLog: hello"
        )
        assert final["status"] == "completed"
        expected = 'workflow "prompt" completed (2 agents).\nReturn value:\n[\n  "ok:greet Ada",\n  "ok:greet Bo"\n]'
        assert content(final) == content(said) == expected
        assert {update["toolCallId"] for update in updates[:-1]} == {first["toolCallId"]}

    served(test, tmp_path, agent_spec=NOISY)


def test_agents_that_failed_are_named_in_the_message_and_a_rehearsal_says_so_once(tmp_path: Path) -> None:
    async def failing(connection: Any, client: Client, cwd: Path) -> None:
        session = (await connection.new_session(cwd=str(cwd))).session_id
        await prompt(connection, session, "```js\nreturn await agent('fail')\n```")
        assert content(client.of(session)[-1]).endswith("\n\n1 of 1 agents failed:\n- fail: no luck")

    served(failing, tmp_path, agent_spec=NOISY)

    async def rehearsed(connection: Any, client: Client, cwd: Path) -> None:
        session = (await connection.new_session(cwd=str(cwd))).session_id
        for _ in range(2):
            await prompt(connection, session, "```js\nreturn 1\n```")
        said = [content(update) for update in client.of(session) if update["sessionUpdate"] == "agent_message_chunk"]
        assert [text.startswith("**Rehearsal**") for text in said] == [True, False]

    served(rehearsed, tmp_path)


def test_cancel_ends_the_card_as_failed_and_the_prompt_as_cancelled(tmp_path: Path) -> None:
    async def test(connection: Any, client: Client, cwd: Path) -> None:
        session = (await connection.new_session(cwd=str(cwd))).session_id
        asked = asyncio.create_task(prompt(connection, session, HANG))
        await until(
            lambda: any("1 at work" in content(u) for u in client.of(session) if u.get("status") == "in_progress")
        )
        with pytest.raises(acp.RequestError):
            await prompt(connection, session, HELLO)
        await connection.cancel(session_id=session)
        assert await asked == "cancelled"
        seen = client.of(session)
        assert seen[-1]["status"] == "failed"
        reason = "workflow run cancelled: workflow signal aborted: the user cancelled"
        assert content(seen[-1]) == f"Error: workflow run was cancelled ({reason})"
        await connection.cancel(session_id=session)
        assert await prompt(connection, session, "```js\nreturn 1\n```") == "end_turn"
        assert client.statuses(session)[len(seen) :][0] == "pending"
        calls = [update["toolCallId"] for update in client.of(session) if update["sessionUpdate"] == "tool_call"]
        assert len(calls) == len(set(calls)) == 2

    served(test, tmp_path, agent_spec=NOISY)


def test_a_cancel_right_behind_the_prompt_is_not_lost(tmp_path: Path) -> None:
    async def test(connection: Any, client: Client, cwd: Path) -> None:
        session = (await connection.new_session(cwd=str(cwd))).session_id
        asked = asyncio.create_task(prompt(connection, session, HANG))
        await asyncio.sleep(0)  # lets the request be written first
        await connection.cancel(session_id=session)
        assert await asked == "cancelled"
        assert client.statuses(session)[-1:] in ([], ["failed"])

    served(test, tmp_path, agent_spec=NOISY)


def test_runs_of_two_sessions_at_once_never_cross(tmp_path: Path) -> None:
    async def test(connection: Any, client: Client, cwd: Path) -> None:
        sessions = {who: (await connection.new_session(cwd=str(cwd))).session_id for who in ("red", "blue")}
        script = """```js
        for (let i = 0; i < 4; i++) { phase(`${args.who} phase`); await agent(`${args.who} agent ${i}`) }
        return args.who
        ```""".replace("        ", "")
        stops = await asyncio.gather(
            *(prompt(connection, session, f'{script}\n{{"who": "{who}"}}') for who, session in sessions.items())
        )
        assert stops == ["end_turn", "end_turn"]
        for who, session in sessions.items():
            other = {"red": "blue", "blue": "red"}[who]
            shown = json.dumps(client.of(session))
            assert f"{who} agent" in shown or f"{who} phase" in shown
            assert other not in shown
            assert client.statuses(session)[-2:] == ["completed", "agent_message_chunk"]

    served(test, tmp_path, agent_spec=NOISY)


def test_a_script_file_runs_by_its_path_and_a_wrong_prompt_is_answered(tmp_path: Path) -> None:
    (tmp_path / "sum.js").write_text("export const meta = {name: 'sum', description: 'd'}\nreturn args.a + args.b\n")

    async def test(connection: Any, client: Client, cwd: Path) -> None:
        session = (await connection.new_session(cwd=str(cwd))).session_id
        assert await prompt(connection, session, 'sum.js {"a": 1, "b": 2}') == "end_turn"
        assert client.of(session)[0]["title"] == "workflow: sum"
        assert content(client.of(session)[-1]).endswith('workflow "sum" completed (0 agents).\nReturn value:\n3')
        before = len(client.updates)
        assert await prompt(connection, session, "what can you do?") == "end_turn"
        (said,) = client.of(session)[before:]
        assert content(said).startswith("Send a workflow to run")
        assert await prompt(connection, session, "```js\nreturn {\n```") == "end_turn"
        assert client.statuses(session)[before + 1 :] == ["pending", "failed", "agent_message_chunk"]
        assert "workflow script does not parse" in content(client.of(session)[-1])

    served(test, tmp_path)


def test_a_session_file_lets_a_later_process_load_and_replay_a_session(tmp_path: Path) -> None:
    kept: list[str] = []

    async def first(connection: Any, client: Client, cwd: Path) -> None:
        kept.append((await connection.new_session(cwd=str(cwd))).session_id)
        await prompt(connection, kept[0], HELLO)
        with pytest.raises(acp.RequestError):
            await connection.load_session(cwd=str(cwd), session_id=kept[0], mcp_servers=[])

    async def second(connection: Any, client: Client, cwd: Path) -> None:
        with pytest.raises(acp.RequestError):
            await connection.load_session(cwd=str(cwd), session_id="unknown", mcp_servers=[])
        await connection.load_session(cwd=str(cwd), session_id=kept[0], mcp_servers=[])
        assert client.statuses(kept[0]) == ["user_message_chunk", "pending", "completed", "agent_message_chunk"]
        assert await prompt(connection, kept[0], "```js\nreturn 1\n```") == "end_turn"

    for test in (first, second):
        served(test, tmp_path, session_file=str(tmp_path / "sessions.db"))


def test_closing_a_session_ends_its_run_and_unknown_sessions_are_refused(tmp_path: Path) -> None:
    async def test(connection: Any, client: Client, cwd: Path) -> None:
        session = (await connection.new_session(cwd=str(cwd))).session_id
        asked = asyncio.create_task(prompt(connection, session, HANG))
        await until(lambda: "in_progress" in client.statuses(session))
        await connection.close_session(session_id=session)
        assert await asked in ("cancelled", "end_turn")
        with pytest.raises(acp.RequestError):
            await prompt(connection, session, HELLO)
        with pytest.raises(acp.RequestError):
            await prompt(connection, "never", HELLO)
        await connection.cancel(session_id="never")

    served(test, tmp_path, agent_spec=NOISY)


# ------------------------------------------------------------------------------------------------- raw frames


class Raw:
    """A served process and its frames, unparsed by any SDK."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._id = 0

    def send(self, method: str, **params: Any) -> int:
        assert self.process.stdin is not None
        self._id += 1
        frame = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        self.process.stdin.write(json.dumps(frame).encode() + b"\n")
        return self._id

    async def read(self) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            return None
        frame = json.loads(line)  # a line that is no frame fails here
        assert frame["jsonrpc"] == "2.0"
        self.lines.append(frame)
        return frame

    async def answer(self, number: int) -> dict[str, Any]:
        while (frame := await self.read()) is not None:
            if frame.get("id") == number:
                return frame["result"]
        raise AssertionError("the process ended without an answer")

    async def open(self, cwd: Path) -> str:
        await self.answer(self.send("initialize", protocolVersion=1))
        return (await self.answer(self.send("session/new", cwd=str(cwd), mcpServers=[])))["sessionId"]

    def ask(self, session_id: str, text: str) -> int:
        return self.send("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": text}])


@contextlib.asynccontextmanager
async def raw(cwd: Path, **settings: Any) -> AsyncGenerator[Raw]:
    process = await asyncio.create_subprocess_exec(
        *command(**settings), cwd=cwd, env=environment(), limit=1 << 24,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Raw(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def test_stdout_carries_protocol_frames_alone_whatever_the_agents_print(tmp_path: Path) -> None:
    async def main() -> None:
        async with raw(tmp_path, agent_spec=NOISY) as served:
            session = await served.open(tmp_path)
            result = await served.answer(served.ask(session, HELLO))
            assert result == {"stopReason": "end_turn"}
            assert served.process.stdin is not None
            served.process.stdin.write(b"this is no frame\n[1, 2]\n\n")
            assert await served.answer(served.ask(session, "```js\nreturn 1\n```")) == {"stopReason": "end_turn"}
            served.process.stdin.close()
            assert await served.read() is None
            assert served.process.stderr is not None
            printed = (await served.process.stderr.read()).decode()
            assert await served.process.wait() == 0
        for words in ("printed by the agent of greet Ada", "written to descriptor 1", "original stdout", "by a child"):
            assert words in printed
        assert "a line of the client is no JSON object: b'this is no frame" in printed
        assert "Traceback" not in printed

    run_async(main())


@pytest.mark.parametrize("how", ["end of input", "SIGTERM"])
def test_when_the_client_goes_away_every_run_ends_and_no_process_is_left(how: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with raw(tmp_path, agent_spec=NOISY) as served:
            session = await served.open(tmp_path)
            served.ask(session, HANG)
            while True:
                frame = await served.read()
                assert frame is not None
                if "1 at work" in json.dumps(frame):
                    break
            children = psutil.Process(served.process.pid).children(recursive=True)
            assert children
            if how == "SIGTERM":
                served.process.send_signal(signal.SIGTERM)
            else:
                assert served.process.stdin is not None
                served.process.stdin.close()
            while await served.read() is not None:
                pass
            assert served.process.stderr is not None
            printed = (await served.process.stderr.read()).decode()
            assert await served.process.wait() == 0
            assert "Traceback" not in printed
            gone, alive = psutil.wait_procs(children, timeout=10)
            assert alive == []
            assert len(gone) == len(children)

    run_async(main())


def test_a_client_that_reads_no_more_and_hangs_up_does_not_keep_the_process(tmp_path: Path) -> None:
    def unread(descriptor: int) -> int:
        return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)

    async def main() -> None:
        out, into = os.pipe()
        with open(out, "rb", buffering=0) as stdout:  # noqa: ASYNC230 - read in a thread, and then no more
            process = await asyncio.create_subprocess_exec(
                *command(), cwd=tmp_path, env=environment(), stdin=asyncio.subprocess.PIPE, stdout=into, stderr=None
            )
            os.close(into)
            served = Raw(process)
            try:
                for number in (
                    served.send("initialize", protocolVersion=1),
                    served.send("session/new", cwd=str(tmp_path), mcpServers=[]),
                ):
                    frame = json.loads(await asyncio.to_thread(stdout.readline))
                    assert frame["id"] == number
                served.ask(frame["result"]["sessionId"], "```js\nreturn 'x'.repeat(49000)\n```")
                await until(lambda: unread(out) > 60_000)  # the pipe is full: the next write must wait
                assert process.stdin is not None
                process.stdin.close()
                assert await process.wait() == 0
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    run_async(main())


def test_a_method_the_agent_does_not_have_is_refused_and_not_answered_with_null(tmp_path: Path) -> None:
    async def main() -> None:
        async with raw(tmp_path) as served:
            session = await served.open(tmp_path)
            number = served.send("session/set_mode", sessionId=session, modeId="x")
            while (frame := await served.read()) is not None and frame.get("id") != number:
                pass
            assert frame is not None
            assert frame["error"]["code"] == -32601

    run_async(main())


@pytest.mark.parametrize("name", ["a plain file", os.devnull])
def test_what_is_no_pipe_as_stdin_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / name
        with path.open() if path == Path(os.devnull) else path.open("w+") as source:
            process = await asyncio.create_subprocess_exec(
                *command(), stdin=source, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env=environment(), cwd=tmp_path,
            )  # fmt: skip
            out, err = await process.communicate()
        assert out == b""
        assert b"needs pipes as stdin and stdout, not files" in err

    run_async(main())


# ------------------------------------------------------------------------------------------------- acpx


def acpx() -> str:
    """The real client, or a skip that says why."""
    named = os.environ.get("WORKFLOW_ACPX")
    found = shutil.which(named or str(ROOT / "node_modules" / ".bin" / "acpx"))
    if found is None:
        pytest.skip(f"the npm client acpx is not at {'$WORKFLOW_ACPX' if named else 'node_modules/.bin'}")
    return found


@contextlib.asynccontextmanager
async def acpx_running(tmp_path: Path, text: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    client = acpx()
    (tmp_path / "prompt.md").write_text(text)
    agent = " ".join(shlex.quote(word) for word in command(agent_spec=NOISY))
    process = await asyncio.create_subprocess_exec(
        client, "--format", "json", "--agent", agent, "exec", "--file", "prompt.md",
        cwd=tmp_path, env=environment(HOME=str(tmp_path)), limit=1 << 24, start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


def updates_in(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [frame["params"]["update"] for frame in frames if frame.get("method") == "session/update"]


def test_acpx_runs_a_workflow_and_its_frames_are_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with acpx_running(tmp_path, HELLO) as process:
            assert process.stdout is not None
            frames = [json.loads(line) for line in (await process.stdout.read()).splitlines()]
            assert await process.wait() == 0
        updates = updates_in(frames)
        assert [update["sessionUpdate"] for update in updates][:1] == ["tool_call"]
        assert [update.get("status") for update in updates][-2:] == ["completed", None]
        assert {update.get("status") for update in updates[1:-2]} == {"in_progress"}
        assert content(updates[-1]).startswith('workflow "prompt" completed (2 agents).')
        assert frames[-1]["result"] == {"stopReason": "end_turn"}
        methods = [frame["method"] for frame in frames if "method" in frame and frame["method"] != "session/update"]
        assert methods == ["initialize", "session/new", "session/prompt"]

    run_async(main())


def test_acpx_cancels_a_blocked_workflow(tmp_path: Path) -> None:
    async def main() -> None:
        async with acpx_running(tmp_path, HANG) as process:
            assert process.stdout is not None
            frames: list[dict[str, Any]] = []
            while line := await process.stdout.readline():
                frames.append(json.loads(line))
                if "1 at work" in line.decode() and not any(f.get("method") == "session/cancel" for f in frames):
                    process.send_signal(signal.SIGINT)
            await process.wait()
        updates = updates_in(frames)
        assert updates[-1]["status"] == "failed"
        assert content(updates[-1]).startswith("Error: workflow run was cancelled")
        assert [frame["result"]["stopReason"] for frame in frames if "stopReason" in frame.get("result", {})] == [
            "cancelled"
        ]

    run_async(main())
