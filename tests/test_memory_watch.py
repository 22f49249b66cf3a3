"""The host's own look at its workers' memory, with the kernel's limit out of the way."""

from __future__ import annotations

import pytest

from orchestrator import EngineConfig
from orchestrator.zygote_client import ZygoteClient
from protocol.messages import Fork
from tests.support import run_script


def test_a_worker_over_the_limit_is_ended_even_without_a_kernel_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    send = ZygoteClient._send

    def without_limit(client: ZygoteClient, message: object, descriptor: object) -> None:
        if isinstance(message, Fork):
            message = Fork(message.worker, None, message.cpu_limit, message.sandbox)
        send(client, message, descriptor)  # type: ignore[arg-type]

    monkeypatch.setattr(ZygoteClient, "_send", without_limit)
    # Fills 240 MiB, then waits: only the watch can end it.
    script = """
    const held = []
    for (let i = 0; i < 240; i++) { const block = new Uint8Array(1 << 20); block.fill(7); held.push(block) }
    await agent('hang')
    return held.length
    """
    result = run_script(script, config=EngineConfig(memory_limit=64 << 20, spare_workers=0)).result
    assert result.stop_reason == "error"
    assert result.code == "WORKER_MEMORY"
    assert "limit of 64 MiB" in (result.error or "")
