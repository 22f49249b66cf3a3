"""openai: agents that are a real language model. Optional: skipped where the model is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import EngineConfig, WorkflowEngine, WorkflowResult, WorkflowStartRequest
from orchestrator.providers.openai import OpenAIProvider, OpenAISettings, OpenAIStats
from tests.conftest import run_async
from tests.peers.local_model import local_model

pytest.importorskip("openai", reason="the OpenAI SDK is not installed: pip install 'workflow-orchestrator[openai]'")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = (ROOT / "examples" / "classify-files.js").read_text("utf-8")
KINDS = ["documentation", "source code"]
PATIENCE = 200.0  # the model computes on the processor, next to whatever else the machine does
FILES = ["README.md", "docs/sandbox.md", "docs/embedding.md", "examples/judge-panel.js", "protocol/errors.py"]

pytestmark = pytest.mark.timeout(PATIENCE + 60)


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server, once for all tests: it loads for a second or two."""
    with local_model(tmp_path_factory.mktemp("model")) as url:
        yield url


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key and no proxy of the machine reaches a test."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def classify(base_url: str, files: list[str], **settings: Any) -> tuple[WorkflowResult, OpenAIStats]:
    async def main() -> tuple[WorkflowResult, OpenAIStats]:
        provider = OpenAIProvider(
            OpenAISettings(model="gemma", base_url=base_url, temperature=0, max_tokens=60, **settings)
        )
        texts = {name: (ROOT / name).read_text("utf-8") for name in files}
        async with WorkflowEngine(EngineConfig(max_concurrent_agents=2, spare_workers=0)) as engine:
            engine.agents.register("default", provider)
            request = WorkflowStartRequest(script=SCRIPT, args={"texts": texts, "kinds": KINDS, "characters": 300})
            async with await engine.start(request) as run:
                return await run.result, provider.stats

    return run_async(main(), timeout=PATIENCE)


def test_a_real_model_sorts_real_files_into_the_kinds_the_schema_allows(base_url: str) -> None:
    result, stats = classify(base_url, FILES)
    assert result.stop_reason == "completed", result.error
    assert (result.agents_completed, result.failures) == (len(FILES), ())
    assert result.value["unknown"] == []
    assert set(result.value["kinds"]) <= set(KINDS)
    assert sorted(name for names in result.value["kinds"].values() for name in names) == sorted(FILES)
    assert (stats.requests, stats.retries, stats.invalid_answers, stats.fallbacks) == (len(FILES), 0, 0, 0)
    assert result.output_tokens == stats.output_tokens
    assert len(FILES) <= result.output_tokens < 60 * len(FILES)
    assert result.input_tokens > 100 * len(FILES)


def test_a_real_model_that_is_only_told_the_schema_gives_valid_answers_or_says_why_not(base_url: str) -> None:
    files = FILES[:2]
    result, stats = classify(base_url, files, structured="instruct", structured_retries=1)
    assert result.stop_reason == "completed", result.error
    named = [name for names in result.value["kinds"].values() for name in names]
    assert sorted(named + result.value["unknown"]) == sorted(files)
    assert set(result.value["kinds"]) <= set(KINDS)
    assert result.agents_failed == len(result.value["unknown"])
    reasons = ("no answer that matches the schema after 2 attempts", "cut off at the token limit", "answered nothing")
    assert [failure.reason for failure in result.failures if not any(text in failure.reason for text in reasons)] == []
    assert len(files) <= stats.requests <= 2 * len(files)
