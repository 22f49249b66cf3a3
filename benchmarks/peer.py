"""The reference as a subject: installed from npm into a cache folder, served by one long-lived Node process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.tasks import Memory, Series, Task

__all__ = ["PEER_PACKAGES", "PeerEngine", "PeerError", "install_peer"]

PEER_PACKAGES = {
    "@deepseek-ai/cordis": "4.0.4",
    "@deepseek-ai/dsh-subagent": "0.1.0-rc.8",
    "@deepseek-ai/dsh-workflow": "0.1.0-rc.8",
    "@deepseek-ai/dsh-workflow-worker-thread": "0.1.0-rc.8",
    "node": "24.21.0",
}
"""What is measured, pinned. The package ``node`` brings the Node that the reference needs."""

_HARNESS = Path(__file__).with_name("peer_harness.mjs")
_INSTALL_BOUND = 600.0
_START_BOUND = 30.0
_ANSWER_BOUND = 120.0
_LINE_LIMIT = 64 * 1024 * 1024


class PeerError(RuntimeError):
    """The reference could not be installed, or failed at a task."""


class _Answer(msgspec.Struct):
    series: Series | None = None
    error: str | None = None


def _default_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(cache) / "workflow-orchestrator" / "reference"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir()) / "workflow-orchestrator-reference"
    return folder


async def _run(*command: str, folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_INSTALL_BOUND):
            output, _ = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise PeerError(f"{' '.join(command)} failed:\n{output.decode(errors='replace')[-2000:]}")


async def install_peer(folder: Path | None = None) -> Path:
    """Installs the reference unless it is there already; returns its folder. Needs ``npm``."""
    folder = folder if folder is not None else _default_folder()
    folder.mkdir(parents=True, exist_ok=True)
    # npm 11 runs a package's install scripts only when they are allowed by name; `node` downloads nothing else: its
    # script links the binary of the package for this platform.
    package = {"private": True, "type": "module", "dependencies": PEER_PACKAGES, "allowScripts": {"node": True}}
    text = json.dumps(package, indent=2)
    marker = folder / "package.json"
    installed = marker.exists() and marker.read_text("utf-8") == text and _node(folder).exists()
    if not installed:
        npm = shutil.which("npm")
        if npm is None:
            raise PeerError("--peer needs npm on the PATH to install the reference")
        marker.write_text(text, "utf-8")
        await _run(npm, "install", "--no-audit", "--no-fund", folder=folder)
        if not _node(folder).exists():  # an npm that knows no allowScripts
            await _run(npm, "rebuild", "node", folder=folder)
    if not _node(folder).exists():
        raise PeerError(f"npm did not install Node into {folder}; remove the folder and try again")
    shutil.copyfile(_HARNESS, folder / _HARNESS.name)
    return folder


def _node(folder: Path) -> Path:
    return folder / "node_modules" / "node" / "bin" / "node"


class PeerEngine:
    """One Node process for all tasks; a task that breaks it costs only itself. Make it with `install`."""

    name = "reference"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self.node_version = ""

    @classmethod
    async def install(cls, folder: Path | None = None) -> PeerEngine:
        """Installs it, unless it is there already, and starts it."""
        peer = cls(await install_peer(folder))
        await peer._launch()
        return peer

    async def measure(self, task: Task) -> Series:
        if isinstance(task, Memory):
            await self.close()  # what a process grows by depends on what it has freed before
        process = self._process if self._process is not None else await self._launch()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(task) + b"\n")
        try:
            async with asyncio.timeout(_ANSWER_BOUND):
                line = await process.stdout.readline()
        except TimeoutError:
            await self._kill()
            raise PeerError(f"the reference did not answer within {_ANSWER_BOUND:g} s") from None
        if not line:
            await self._kill()
            raise PeerError("the reference's process died")
        answer = msgspec.json.decode(line, type=_Answer)
        if answer.series is None:
            raise PeerError(f"the reference failed: {answer.error}")
        return answer.series

    async def close(self) -> None:
        """Hangs up, and kills what does not go."""
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await process.wait()
                self._process = None
        await self._kill()

    async def _launch(self) -> asyncio.subprocess.Process:
        self._process = process = await asyncio.create_subprocess_exec(
            str(_node(self._folder)), "--expose-gc", _HARNESS.name, cwd=self._folder, limit=_LINE_LIMIT,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_START_BOUND):
                hello: dict[str, Any] = json.loads(await process.stdout.readline() or b"{}")
        except BaseException:
            await self._kill()
            raise
        if "node" not in hello:
            await self._kill()
            raise PeerError(f"the reference does not start; remove {self._folder} and try again")
        self.node_version = hello["node"]
        return process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
