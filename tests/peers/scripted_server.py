"""A chat-completions server on loopback whose every reply a test decides: what a mock with fault modes cannot do.

It runs in the test's own loop, records the requests, and knows which connections are open.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP answer. ``end`` says what follows the events: the proper end, a lost connection, or nothing at all."""

    status: int = 200
    headers: Mapping[str, str] = {}
    body: Any = None
    events: tuple[str, ...] = ()
    end: Literal["complete", "drop", "hang"] = "complete"


def text(answer: str, *, finish: str | None = "stop", usage: tuple[int, int] | None = (10, 5), **reply: Any) -> Reply:
    """A streamed answer in two pieces."""
    middle = len(answer) // 2
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
        for piece in (answer[:middle], answer[middle:])
    ]
    if finish is not None:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if usage is not None:
        chunks.append({"choices": [], "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}})
    return Reply(events=(*(json.dumps({"id": "c", "model": "m", **chunk}) for chunk in chunks), "[DONE]"), **reply)


def error(status: int, message: str, **headers: str) -> Reply:
    """An error in OpenAI's shape."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status=status, headers=named, body={"error": {"message": message, "type": "test", "code": None}})


class ScriptedServer:
    """The running server.

    Args:
        reply: gets the number of the request, from 0, and its JSON body.
    """

    def __init__(self, reply: Callable[[int, dict[str, Any]], Reply]) -> None:
        self._reply = reply
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.open = 0
        self.accepted = 0
        self.changed = asyncio.Condition()

    async def until(self, holds: Callable[[ScriptedServer], bool]) -> None:
        """Waits for a state of the server."""
        async with self.changed:
            await self.changed.wait_for(lambda: holds(self))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        await self._note(opened=1)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()
            await self._note(opened=-1)

    async def _note(self, opened: int = 0) -> None:
        async with self.changed:
            self.open += opened
            self.accepted += opened > 0
            self.changed.notify_all()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head)}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.bodies.append(body)
        self.headers.append(headers)
        await self._note()
        return await self._answer(self._reply(len(self.bodies) - 1, body), reader, writer)

    async def _answer(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        streamed = reply.body is None
        kind = "text/event-stream" if streamed else "application/json"
        head = [f"HTTP/1.1 {reply.status} status", f"Content-Type: {kind}"]
        head += [f"{name}: {value}" for name, value in reply.headers.items()]
        if streamed:
            head.append("Transfer-Encoding: chunked")
            parts = [f"data: {event}\n\n".encode() for event in reply.events]
            data = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        else:
            data = json.dumps(reply.body).encode()
            head.append(f"Content-Length: {len(data)}")
        if streamed and reply.end == "complete":
            data += b"0\r\n\r\n"
        writer.write("\r\n".join([*head, "", ""]).encode() + data)
        await writer.drain()
        if reply.end == "hang":
            await reader.read()  # ends when the client closes
        return reply.end == "complete"


@asynccontextmanager
async def scripted_server(reply: Callable[[int, dict[str, Any]], Reply]) -> AsyncIterator[ScriptedServer]:
    """Serves for the ``async with`` block, and ends its connections with it."""
    scripted = ScriptedServer(reply)
    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(scripted.serve(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield scripted
        finally:
            for task in tuple(connections):
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)
