"""Structured answers from agents that only speak text: say what is wanted, check the answer, say what is wrong.

Guarantees: pure but for the ``ask`` it is given; an answer is returned only when it is valid against the schema;
every text that goes to a model is bounded, whatever the model answered before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from orchestrator.providers.json_answer import JsonAnswerError, parse_json_answer
from orchestrator.schemas import AgentSchema, compile_schema

__all__ = ["StructuredAnswer", "StructuredAnswerError", "answer_errors", "ask_structured", "feedback", "instruction"]

MAX_PROBLEM = 500
"""Characters of one validation error a model gets to see: enough for the path and the rule."""


class StructuredAnswer(msgspec.Struct, frozen=True):
    """A valid answer: its ``value``, the ``text`` it was found in, and how many ``attempts`` it took."""

    value: Any
    text: str
    attempts: int


class StructuredAnswerError(Exception):
    """No answer was valid.

    Args:
        problems: what was wrong with the last answer, one line each.
        text: the last answer.
        attempts: how many answers were asked for.
    """

    def __init__(self, problems: list[str], text: str, attempts: int) -> None:
        self.problems = problems
        self.text = text
        self.attempts = attempts
        after = "" if attempts == 1 else f" after {attempts} attempts"
        super().__init__(f"no answer that matches the schema{after}: {'; '.join(problems)}")


def instruction(schema: dict[str, Any]) -> str:
    """What a model must be told when nothing else constrains its answer; goes after the prompt."""
    text = msgspec.json.encode(schema).decode()
    return (
        "Give your final answer as one JSON object that is valid against this JSON Schema. "
        "Write the object alone: no explanation and no Markdown around it.\n\n"
        f"JSON Schema:\n{text}"
    )


def feedback(problems: list[str]) -> str:
    """What a model is told about an answer with these ``problems``, to answer again."""
    lines = "\n".join(f"- {_cut(problem)}" for problem in problems)
    return (
        "Your last answer was not valid:\n"
        f"{lines}\n"
        "Answer again with the corrected JSON object, complete and alone. Its JSON Schema is the same as before."
    )


def answer_errors(text: str, schema: AgentSchema) -> tuple[Any, list[str]]:
    """The JSON value in ``text`` and what is wrong with it; without a JSON value, ``None`` and what is there."""
    try:
        value = parse_json_answer(text)
    except JsonAnswerError as error:
        return None, [str(error)]
    return value, schema.errors(value)


async def ask_structured(
    ask: Callable[[str], Awaitable[str]], prompt: str, schema: dict[str, Any], *, retries: int
) -> StructuredAnswer:
    """Asks until an answer is valid.

    Args:
        ask: sends a text and returns the answer. Each call continues the same conversation. What it raises ends the
            asking and passes through.
        prompt: the first text. Put `instruction` into it unless the answer is constrained in another way.
        schema: the call's JSON Schema.
        retries: how often an invalid answer is asked for again, with what is wrong with it.

    Raises:
        StructuredAnswerError: the last answer was not valid either.
        WorkflowError: ``UNSUPPORTED_SCHEMA``.
    """
    compiled = compile_schema(msgspec.json.encode(schema))
    text = prompt
    for attempt in range(1, retries + 2):
        answer = await ask(text)
        value, problems = answer_errors(answer, compiled)
        if not problems:
            return StructuredAnswer(value, answer, attempt)
        if attempt > retries:
            raise StructuredAnswerError(problems, answer, attempt)
        text = feedback(problems)
    raise ValueError("retries must not be negative")


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_PROBLEM else f"{text[: MAX_PROBLEM - 1]}…"
