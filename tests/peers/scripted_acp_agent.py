"""An ACP agent that does what the first line of a prompt says, and misbehaves as its arguments say. No SDK in it.

Its arguments are words: ``exit`` (before the first answer), ``garbage`` (prints lines that are no messages),
``version`` (speaks another one), ``login`` (wants authentication), ``silent`` (answers nothing), ``odd`` (answers
without the fields it must have), ``stubborn`` (ignores SIGTERM and the end of its input, and keeps a child that does
too), ``plain`` (offers no choices), ``options`` (offers configuration options), ``crash-on-new``.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from typing import Any

MODES = set(sys.argv[1:])
MODELS = [{"modelId": "small", "name": "Small One"}, {"modelId": "large", "name": "Large"}]
HANG = object()


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def say(session: str, text: str, kind: str = "agent_message_chunk", **more: Any) -> None:
    update = {"sessionUpdate": kind, "content": {"type": "text", "text": text}, **more}
    send({"method": "session/update", "params": {"sessionId": session, "update": update}})


class Agent:
    def __init__(self) -> None:
        self.sessions: dict[str, dict[str, Any]] = {}
        self.prompts: dict[str, Any] = {}  # session → id of the request at work
        self.deaf: set[str] = set()
        self.asked: dict[Any, str] = {}  # our request → session
        self.waiting: list[str] = []
        self.calls: list[str] = []
        self.child: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "method" not in message:
                self.answered(message)
                continue
            self.calls.append(message["method"])
            handler = getattr(self, message["method"].replace("/", "_"), None)
            if handler is None:
                send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
                continue
            answer = handler(message.get("id"), message["params"])
            if answer is not HANG:
                send({"id": message["id"], **answer})

    def initialize(self, _id: Any, params: dict[str, Any]) -> Any:
        if "silent" in MODES:
            print("waiting for nothing", file=sys.stderr, flush=True)
            return HANG
        if "odd" in MODES:
            return {"result": {"agentCapabilities": 5}}
        self.capabilities = params["clientCapabilities"]
        closes = {"sessionCapabilities": {"close": {}}}
        version = 7 if "version" in MODES else 1
        methods = [{"id": "browser-login", "name": "In the browser"}] if "login" in MODES else []
        return {"result": {"protocolVersion": version, "agentCapabilities": closes, "authMethods": methods}}

    def authenticate(self, _id: Any, params: dict[str, Any]) -> Any:
        MODES.discard("login")
        return {"result": {}}

    def session_new(self, _id: Any, params: dict[str, Any]) -> Any:
        if "crash-on-new" in MODES:
            sys.exit("no room for a session")
        if "login" in MODES:
            return {"error": {"code": -32000, "message": "Authentication required"}}
        session = f"s{len(self.sessions) + 1}"
        self.sessions[session] = {"cwd": params["cwd"], "chosen": {}, "answers": []}
        result: dict[str, Any] = {"sessionId": session}
        if "plain" not in MODES and "options" not in MODES:
            result["models"] = {"currentModelId": "small", "availableModels": MODELS}
            result["modes"] = {
                "currentModeId": "code",
                "availableModes": [{"id": "code", "name": "Code"}, {"id": "plan", "name": "Plan"}],
            }
        if "options" in MODES:
            result["configOptions"] = self.config_options(session)
        return {"result": result}

    def config_options(self, session: str) -> list[dict[str, Any]]:
        models = [{"group": "all", "name": "All", "options": [{"value": "m1", "name": "One"}, {"value": "m2"}]}]
        efforts = [{"value": "low", "name": "Low"}, {"value": "high", "name": "High"}]
        if self.sessions[session]["chosen"].get("model") == "m1":
            efforts = efforts[:1]
        modes = [{"value": "ask", "name": "Ask"}]
        return [
            {"id": "pick", "name": "Model", "category": "model", "type": "select", "options": models},
            {"id": "think", "name": "Effort", "category": "thought_level", "type": "select", "options": efforts},
            {"id": "how", "name": "Mode", "category": "mode", "type": "select", "options": modes},
        ]

    def session_set_model(self, _id: Any, params: dict[str, Any]) -> Any:
        if params["modelId"] == "large" and "no-large" in MODES:
            return {"error": {"code": -32603, "message": "Internal error", "data": {"details": "no quota for it"}}}
        self.sessions[params["sessionId"]]["chosen"]["model"] = params["modelId"]
        return {"result": {}}

    def session_set_mode(self, _id: Any, params: dict[str, Any]) -> Any:
        self.sessions[params["sessionId"]]["chosen"]["mode"] = params["modeId"]
        return {"result": {}}

    def session_set_config_option(self, _id: Any, params: dict[str, Any]) -> Any:
        names = {"pick": "model", "think": "effort", "how": "mode"}
        self.sessions[params["sessionId"]]["chosen"][names[params["configId"]]] = params["value"]
        return {"result": {"configOptions": self.config_options(params["sessionId"])}}

    def session_close(self, _id: Any, params: dict[str, Any]) -> Any:
        del self.sessions[params["sessionId"]]
        return {"result": {}}

    def session_cancel(self, _id: Any, params: dict[str, Any]) -> Any:
        session = params["sessionId"]
        if session in self.prompts and session not in self.deaf:
            self.end(session, "cancelled")
        return HANG

    def session_prompt(self, request: Any, params: dict[str, Any]) -> Any:
        session, text = params["sessionId"], params["prompt"][0]["text"]
        self.prompts[session] = request
        if text.startswith("Your last answer was not valid"):
            self.sessions[session]["complaint"] = text
            self.next_answer(session)
            return HANG
        word, _, rest = text.partition("\n")[0].partition(" ")
        getattr(self, f"do_{word}")(session, rest)
        return HANG

    def end(self, session: str, reason: str = "end_turn", **more: Any) -> None:
        send({"id": self.prompts.pop(session), "result": {"stopReason": reason, **more}})

    def answered(self, message: dict[str, Any]) -> None:
        session = self.asked.pop(message["id"])
        say(session, json.dumps(message.get("result", message.get("error"))))
        self.end(session)

    # --- what a prompt may say ---

    def do_echo(self, session: str, rest: str) -> None:
        say(session, "thinking", "agent_thought_chunk")
        for word in rest.split(" "):
            say(session, word + " ")
        self.end(session)

    def do_stop(self, session: str, rest: str) -> None:
        say(session, "half an ans")
        self.end(session, rest)

    def do_tokens(self, session: str, rest: str) -> None:
        say(session, "counted")
        given, produced = map(int, rest.split())
        usage = {"totalTokens": given + produced, "inputTokens": given, "outputTokens": produced}
        self.end(session, usage=usage)

    def do_tools(self, session: str, rest: str) -> None:
        say(session, "Let me look.")
        call = {"toolCallId": "t1", "title": "read", "status": "pending"}
        send(
            {
                "method": "session/update",
                "params": {"sessionId": session, "update": {"sessionUpdate": "tool_call", **call}},
            }
        )
        say(session, "It is ")
        say(session, "fine.")
        if rest == "again":
            send(
                {
                    "method": "session/update",
                    "params": {"sessionId": session, "update": {"sessionUpdate": "tool_call", **call}},
                }
            )
        self.end(session)

    def do_emoji(self, session: str, rest: str) -> None:
        say(session, "half: \ud83d")
        say(session, "\ude00, lone: \ud83d")
        self.end(session)

    def do_answers(self, session: str, rest: str) -> None:
        self.sessions[session]["answers"] = shlex.split(rest)
        self.next_answer(session)

    def next_answer(self, session: str) -> None:
        say(session, self.sessions[session]["answers"].pop(0))
        self.end(session, usage={"totalTokens": 7, "inputTokens": 5, "outputTokens": 2})

    def do_about(self, session: str, rest: str) -> None:
        state = {
            **{name: self.sessions[session][name] for name in ("cwd", "chosen")},
            "pid": os.getpid(),
            "process_cwd": os.getcwd(),
            "environment": {name: os.environ.get(name) for name in rest.split()},
            "calls": self.calls,
            "capabilities": self.capabilities,
            "open": len(self.sessions),
        }
        say(session, json.dumps(state))
        self.end(session)

    def do_together(self, session: str, rest: str) -> None:
        """Answers when as many sessions wait as it says: each gets its own name."""
        self.waiting.append(session)
        if len(self.waiting) == int(rest):
            for waiting in self.waiting:
                say(waiting, f"I am {waiting}")
            for waiting in self.waiting:
                self.end(waiting)

    def do_hang(self, session: str, rest: str) -> None:
        say(session, "hanging")

    def do_deaf(self, session: str, rest: str) -> None:
        self.deaf.add(session)
        say(session, "hanging")

    def do_exit(self, session: str, rest: str) -> None:
        print("line one\nout of luck", file=sys.stderr, flush=True)
        os._exit(int(rest))

    def do_die(self, session: str, rest: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_mute(self, session: str, rest: str) -> None:
        """Closes its output and lives on."""
        os.close(1)

    def do_fail(self, session: str, rest: str) -> None:
        error = {"code": -32603, "message": "Internal error", "data": {"details": rest}}
        send({"id": self.prompts.pop(session), "error": error})

    def do_nonsense(self, session: str, rest: str) -> None:
        print("[1, 2]\nnull\n{}\nnot json \x1b[31m\n" + '{"id": [1], "result": 3}\n{"id": {}, "method": "x"}')
        print("[" * 100_000)
        send({"method": 5})
        send({"method": "session/update", "params": [1]})
        send({"method": "session/update", "params": {"sessionId": session, "update": 7}})
        send(
            {
                "method": "session/update",
                "params": {"sessionId": session, "update": {"sessionUpdate": "from the future"}},
            }
        )
        say("someone else's", "not for you")
        say(session, "still here")
        self.end(session)

    def do_malformed(self, session: str, rest: str) -> None:
        send({"id": self.prompts.pop(session), "result": json.loads(rest)})

    def do_flood(self, session: str, rest: str) -> None:
        """Says that many thousand characters."""
        for _ in range(int(rest)):
            say(session, "x" * 1000)
        self.end(session)

    def do_updates(self, session: str, rest: str) -> None:
        """That many updates of 10,000 characters that say nothing."""
        update = {"sessionUpdate": "tool_call_update", "toolCallId": "t1", "title": "y" * 10_000}
        for _ in range(int(rest)):
            send({"method": "session/update", "params": {"sessionId": session, "update": update}})
        say(session, "done")
        self.end(session)

    def do_line(self, session: str, rest: str) -> None:
        """One line without an end of that many megabytes."""
        for _ in range(int(rest)):
            os.write(1, b"z" * (1 << 20))
        self.end(session)

    def do_permission(self, session: str, rest: str) -> None:
        options = [{"optionId": f"id-{kind}", "name": kind, "kind": kind} for kind in rest.split()]
        params = {"sessionId": session, "toolCall": {"toolCallId": "t1"}, "options": options}
        self.ask(session, "session/request_permission", params)

    def do_read(self, session: str, rest: str) -> None:
        self.ask(session, "fs/read_text_file", {"sessionId": session, "path": "/etc/passwd"})

    def do_run(self, session: str, rest: str) -> None:
        self.ask(session, "terminal/create", {"sessionId": session, "command": "id"})

    def ask(self, session: str, method: str, params: dict[str, Any]) -> None:
        number = f"ask-{len(self.asked)}"
        self.asked[number] = session
        send({"id": number, "method": method, "params": params})

    def do_nag(self, session: str, rest: str) -> None:
        """Asks without end, and never reads an answer."""
        params = {"sessionId": session, "toolCall": {"toolCallId": "t1"}, "options": []}
        number = 0
        while True:
            number += 1
            send({"id": number, "method": "session/request_permission", "params": params})


def main() -> None:
    if "garbage" in MODES:
        print("Welcome!\nusage: agent [--acp]", flush=True)
    if "exit" in MODES:
        sys.exit("error: unknown option --acp")
    if "stubborn" in MODES:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["sleep", "86399"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        subprocess.Popen(["sleep", "86399"], start_new_session=True)
    Agent().run()
    if "stubborn" in MODES:
        signal.pause()


main()
