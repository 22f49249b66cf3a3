"""Turns the ``meta`` of a request, or of a script's header, into a normalised `WorkflowMeta`.

Guarantees: one error names every violation; whatever object is passed, the only exception is `WorkflowError`
(``META_INVALID``); the result shares nothing with the caller's object and holds plain strings without lone surrogates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from protocol.errors import ErrorCode, WorkflowError
from protocol.events import PhaseDeclaration, WorkflowMeta

__all__ = ["replace_lone_surrogates", "validate_meta"]

_META_FIELDS = ("name", "description", "whenToUse", "phases")
_PHASE_FIELDS = ("title", "detail", "provider", "model")
_PHASE_TEXTS = ("detail", "model", "provider")

_MAX_VIOLATIONS = 100  # a list of 100,000 wrong phases must not become a message of megabytes
_MAX_KEY = 64


def validate_meta(value: object) -> WorkflowMeta:
    """Checks plain data against the contract of ``meta`` and returns a normalised copy.

    Args:
        value: a mapping with ``name``, ``description``, and optionally ``whenToUse`` and ``phases`` (a list or tuple
            of mappings), or a `WorkflowMeta`.

    Raises:
        WorkflowError: ``META_INVALID``, naming every violation in the order of the contract.
    """
    violations: list[str] = []
    try:
        meta = _read_meta(value, violations)
    except Exception as error:
        # A host's object may run code of its own when it is looked at; that code's failure is a bad meta, no more.
        violations.append(f"meta cannot be read ({type(error).__name__} while reading it)")
        meta = None
    if meta is None or violations:
        if len(violations) > _MAX_VIOLATIONS:
            more = len(violations) - _MAX_VIOLATIONS
            violations[_MAX_VIOLATIONS:] = [f"… and {more} more"]
        raise WorkflowError(ErrorCode.META_INVALID, f"invalid meta: {'; '.join(violations)}")
    return meta


def replace_lone_surrogates(text: str) -> str:
    """``text`` as a plain ``str`` in which each lone surrogate is U+FFFD, as everywhere at the boundary."""
    plain = str.__str__(text)
    if plain.isascii():
        return plain
    try:
        plain.encode()
    except UnicodeEncodeError:
        # Through UTF-16, so that a high and a low surrogate that stand together become the one character they mean.
        return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return plain


def _read_meta(value: object, violations: list[str]) -> WorkflowMeta | None:
    if isinstance(value, WorkflowMeta):
        value = _fields_of(value)
    fields = _string_keyed(value)
    if fields is None:
        violations.append("meta must be an object")
        return None
    violations.extend(
        f"meta.{_shown(key)} is not a recognized field (name/description/whenToUse/phases)"
        for key in fields
        if key not in _META_FIELDS
    )
    name = _required_text(fields, "name", "meta", violations)
    description = _required_text(fields, "description", "meta", violations)
    when_to_use = _optional_text(fields, "whenToUse", "meta", violations)
    phases = _read_phases(fields["phases"], violations) if "phases" in fields else ()
    return WorkflowMeta(name=name, description=description, when_to_use=when_to_use, phases=phases)


def _read_phases(value: object, violations: list[str]) -> tuple[PhaseDeclaration, ...]:
    if not isinstance(value, (list, tuple)):
        violations.append("meta.phases must be an array")
        return ()
    return tuple(
        _read_phase(entry, f"meta.phases[{index}]", violations)
        for index, entry in enumerate(cast("Iterable[object]", value))
    )


def _read_phase(value: object, path: str, violations: list[str]) -> PhaseDeclaration:
    if isinstance(value, PhaseDeclaration):
        value = _fields_of_phase(value)
    fields = _string_keyed(value)
    if fields is None:
        violations.append(f"{path} must be an object")
        return PhaseDeclaration(title="")
    violations.extend(f"{path}.{_shown(key)} is not a recognized field" for key in fields if key not in _PHASE_FIELDS)
    title = _required_text(fields, "title", path, violations)
    detail = _optional_text(fields, "detail", path, violations)
    provider = _optional_text(fields, "provider", path, violations)
    model = _optional_text(fields, "model", path, violations)
    return PhaseDeclaration(title=title, detail=detail, provider=provider, model=model)


def _fields_of(meta: WorkflowMeta) -> dict[str, object]:
    fields: dict[str, object] = {"name": meta.name, "description": meta.description}
    if meta.when_to_use is not None:
        fields["whenToUse"] = meta.when_to_use
    if meta.phases:
        fields["phases"] = meta.phases
    return fields


def _fields_of_phase(phase: PhaseDeclaration) -> dict[str, object]:
    fields: dict[str, object] = {"title": phase.title}
    fields.update({name: text for name in _PHASE_TEXTS if (text := getattr(phase, name)) is not None})
    return fields


def _string_keyed(value: object) -> dict[object, object] | None:
    """A copy of a mapping with every string key as a plain ``str``; ``None`` for anything else."""
    if not isinstance(value, Mapping):
        return None
    mapping = cast("Mapping[object, object]", value)
    return {str.__str__(key) if isinstance(key, str) else key: mapping[key] for key in mapping}


def _required_text(fields: Mapping[object, object], name: str, path: str, violations: list[str]) -> str:
    value = fields.get(name)
    if isinstance(value, str) and len(text := replace_lone_surrogates(value)) > 0:
        return text
    violations.append(f"{path}.{name} must be a non-empty string")
    return ""


def _optional_text(fields: Mapping[object, object], name: str, path: str, violations: list[str]) -> str | None:
    if name not in fields:
        return None
    value = fields[name]
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    violations.append(f"{path}.{name} must be a string")
    return None


def _shown(key: object) -> str:
    """A field's name for a message: bounded, on one line, never running the key's own code."""
    if not isinstance(key, str):
        key = repr(key) if key is None or type(key) in (bool, int, float) else f"<{type(key).__name__}>"
    text = replace_lone_surrogates(key)
    text = "".join(char if char.isprintable() else "\ufffd" for char in text[: _MAX_KEY + 1])
    return text if len(text) <= _MAX_KEY else text[: _MAX_KEY - 1] + "…"
