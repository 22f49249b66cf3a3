"""Whole workflows of openai: agents against aimock and its faults: drop, malformed, disconnect, rate limit, latency."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from orchestrator import EngineConfig, WorkflowEngine, WorkflowResult, WorkflowStartRequest
from orchestrator.providers.openai import OpenAIProvider, OpenAISettings
from tests.conftest import run_async
from tests.peers.aimock import Aimock, aimock

pytest.importorskip("openai", reason="the OpenAI SDK is not installed: pip install 'workflow-orchestrator[openai]'")

META = {"name": "audit", "description": "audits files", "phases": [{"title": "Audit"}, {"title": "Summary"}]}
AUDIT = """
const FINDINGS = {
  type: 'object',
  properties: { issues: { type: 'integer', minimum: 0 }, worst: { enum: ['high', 'low', 'none'] } },
  required: ['issues', 'worst'],
  additionalProperties: false,
}
phase('Audit')
const audits = await parallel(args.files.map((file) => () => agent(`audit ${file}`, { label: file, schema: FINDINGS })))
phase('Summary')
const issues = audits.filter(Boolean).reduce((sum, audit) => sum + audit.issues, 0)
return { issues, audited: audits.filter(Boolean).length, summary: await agent(`summarise ${issues} issues`) }
"""
AUDITED = {"content": '{"issues": 3, "worst": "low"}', "usage": {"prompt_tokens": 40, "completion_tokens": 9}}
SUMMARY = {"content": "Nothing urgent.", "usage": {"prompt_tokens": 11, "completion_tokens": 4}}
FIXTURES = [
    {"match": {"userMessage": "audit slow"}, "response": {"content": "x" * 4000}, "latency": 1000},
    {"match": {"userMessage": "audit"}, "response": AUDITED},
    {"match": {"userMessage": "summarise"}, "response": SUMMARY},
]
FAULTS = ("dropRate", "malformedRate", "disconnectRate", "rateLimitRate")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key and no proxy of the machine reaches a test."""
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def provider_for(server: Aimock, **settings: Any) -> OpenAIProvider:
    quick = {"retry_delay": 0.001, "max_retry_delay": 0.02}  # aimock's Retry-After is a second, which this cuts short
    return OpenAIProvider(OpenAISettings(model="small", base_url=server.openai_url, **{**quick, **settings}))


def connections_to(server: Aimock) -> int:
    """This process's own connections to the server, in whatever state."""
    port = int(server.url.rpartition(":")[2])
    return sum(bool(found.raddr) and found.raddr.port == port for found in psutil.Process().net_connections("tcp"))


async def audit(
    provider: OpenAIProvider, files: list[str], in_the_middle: Callable[[], None] | None = None
) -> WorkflowResult:
    """Runs the audit. Once 18 agents have started and 8 ended, ``in_the_middle`` is called and the run cancelled."""
    seen: Counter[str] = Counter()
    async with WorkflowEngine(EngineConfig(max_concurrent_agents=10, spare_workers=0)) as engine:
        engine.agents.register("default", provider)
        request = WorkflowStartRequest(script=AUDIT, meta=META, args={"files": files})
        async with await engine.start(request) as run:
            async for event in run.events():
                seen[event.type] += 1
                if in_the_middle is not None and seen["workflow/agent-start"] == 18 and seen["workflow/agent-end"] == 8:
                    await asyncio.to_thread(in_the_middle)
                    in_the_middle = None
                    run.cancel("seen enough")
            return await run.result


def test_an_audit_of_thirty_agents_completes_through_all_faults_and_counts_its_retries() -> None:
    faults = {**dict.fromkeys(FAULTS, 0.15), "latencyMs": 5}
    with aimock(FIXTURES, chaos=faults, chunkSize=8, latency=1) as server:
        provider = provider_for(server, max_retries=60)
        result = run_async(audit(provider, [f"file-{number}.py" for number in range(29)]))
        assert result.value == {"issues": 87, "audited": 29, "summary": "Nothing urgent."}
        assert (result.agents_started, result.agents_completed, result.agents_failed) == (30, 30, 0)
        journal = server.journal(path="chat/completions")
        happened = [entry["response"].get("chaosAction") for entry in journal]
        assert set(happened) == {None, "drop", "malformed", "disconnect", "rateLimit"}
        stats = provider.stats
        assert stats.requests == len(journal)
        assert stats.retries == len(journal) - 30
        assert stats.server_errors == happened.count("drop")
        assert stats.rate_limited == happened.count("rateLimit")
        assert stats.connections == happened.count("malformed") + happened.count("disconnect")
        assert (result.input_tokens, result.output_tokens) == (29 * 40 + 11, 29 * 9 + 4)
        assert (stats.input_tokens, stats.output_tokens) == (result.input_tokens, result.output_tokens)
        tokens = {phase.title: phase.output_tokens for phase in result.phases}
        assert tokens == {"Audit": 29 * 9, "Summary": 4}
        assert connections_to(server) == 0
        server.wait_for_connections(0)


def test_a_cancel_in_the_middle_leaves_no_connection_and_no_agent() -> None:
    files = [f"quick-{number}.py" for number in range(8)] + [f"slow-{number}.py" for number in range(21)]
    with aimock(FIXTURES) as server:
        provider = provider_for(server)
        held: list[int] = []

        def ten_answers_are_on_their_way() -> None:
            server.wait_for_connections(10)
            held.append(connections_to(server))

        result = run_async(audit(provider, files, ten_answers_are_on_their_way))
        assert held == [10]
        assert result.stop_reason == "cancelled"
        assert (result.agents_started, result.agents_completed, result.agents_cancelled) == (18, 8, 10)
        assert (provider.stats.requests, provider.stats.active) == (18, 0)
        assert connections_to(server) == 0
        server.wait_for_connections(0)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_never_recovers_costs_the_agents_and_not_the_run(fault: str) -> None:
    with aimock(FIXTURES, chaos={fault: 1.0}) as server:
        provider = provider_for(server, max_retries=2)
        result = run_async(audit(provider, ["one.py", "two.py"]))
        assert result.stop_reason == "completed"
        assert result.value == {"issues": 0, "audited": 0, "summary": None}
        assert [failure.reason.endswith(", after 2 retries") for failure in result.failures] == [True] * 3
        assert provider.stats.requests == len(server.journal()) == 9
