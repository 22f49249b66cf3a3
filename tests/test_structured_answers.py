"""The loop that gets a structured answer out of an agent that only speaks text."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import WorkflowError
from orchestrator.providers.structured import StructuredAnswer, StructuredAnswerError, ask_structured, instruction
from tests.conftest import run_async

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def asked(
    answers: list[str], *, retries: int = 2, schema: dict[str, Any] = SCHEMA
) -> tuple[StructuredAnswer, list[str]]:
    """The answer, and every text that was sent for it."""
    sent: list[str] = []

    async def ask(text: str) -> str:
        sent.append(text)
        return answers[len(sent) - 1]

    return run_async(ask_structured(ask, "how many?", schema, retries=retries)), sent


def test_a_valid_answer_is_taken_at_once_wherever_the_text_has_it() -> None:
    answer, sent = asked(['Well:\n```json\n{"n": 3}\n```'])
    assert (answer.value, answer.attempts, sent) == ({"n": 3}, 1, ["how many?"])


def test_an_invalid_answer_is_told_what_is_wrong_with_it() -> None:
    answer, sent = asked(["many", '{"n": "three"}', '{"n": 3}'])
    assert (answer.value, answer.attempts) == ({"n": 3}, 3)
    assert "is not JSON" in sent[1]
    assert "$.n" in sent[2]


def test_the_last_problems_are_the_reason_when_no_answer_is_valid() -> None:
    with pytest.raises(StructuredAnswerError, match=r"after 2 attempts: \$\.n") as caught:
        asked(["many", '{"n": "three"}'], retries=1)
    assert (caught.value.attempts, caught.value.text) == (2, '{"n": "three"}')


def test_what_a_model_is_told_is_bounded_however_long_its_answer_was() -> None:
    _, sent = asked(['{"n": "' + "x" * 100_000 + '"}', "y" * 100_000, '{"n": 3}'])
    assert max(map(len, sent)) < 1000


def test_the_instruction_holds_the_whole_schema() -> None:
    assert '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}' in instruction(SCHEMA)


def test_a_schema_that_cannot_be_checked_is_refused_before_anyone_is_asked() -> None:
    with pytest.raises(WorkflowError, match="unsupported JSON schema"):
        asked([], schema={"type": "array"})
