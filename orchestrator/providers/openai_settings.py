"""What the ``openai:`` agent can be told, and the short form of it behind ``--agent openai:``.

Guarantees: a setting that makes no sense is an error that names it and says what it accepts; no message shows a key.
"""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

__all__ = ["OpenAISettings", "StructuredMode", "openai_settings_from_spec"]

StructuredMode = Literal["json_schema", "json_object", "instruct"]

_ACCEPTED = "openai:MODEL, or openai:MODEL@http://HOST:PORT/v1 for another server"
_MANAGED = ("messages", "model", "stream", "stream_options", "response_format", "n")


class OpenAISettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the model is, how it is asked, and what is done when asking fails.

    Args:
        model: its name, for calls that name none themselves.
        base_url: the server, up to and with ``/v1``. Without it the variable ``OPENAI_BASE_URL``, and without that
            OpenAI's own.
        api_key_env: the environment variable that holds the key. It may be unset for servers that ask for none.
        system_prompt: goes before every prompt.
        temperature: the model's own when ``None``.
        max_tokens: bound of one answer.
        structured: how an answer with a schema is asked for. ``auto`` begins with ``json_schema`` and falls back to
            ``json_object`` and ``instruct`` where the server refuses it.
        strict_schema: asks for OpenAI's strict mode, which takes schemas whose objects list every property as required.
        structured_retries: how often an answer that does not match the schema is asked for again.
        max_retries: how often one request is sent again after a rate limit, a server error or a lost connection.
        retry_delay: seconds before the first such retry; doubles with every further one.
        max_retry_delay: the longest wait in seconds, also when the server asks for more with ``Retry-After``.
        timeout: seconds one request may take, with the whole answer.
        headers: further HTTP headers.
        extra_body: further members of the request's body.

    Raises:
        ValueError: a value that makes no sense.
    """

    model: str | None = None
    base_url: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    system_prompt: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    structured: Literal["auto"] | StructuredMode = "auto"
    strict_schema: bool = False
    structured_retries: int = 2
    max_retries: int = 4
    retry_delay: float = 0.5
    max_retry_delay: float = 60.0
    timeout: float = 600.0
    headers: dict[str, str] = {}
    extra_body: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if self.model is not None:
            _require(self.model != "" and self.model == self.model.strip(), "model", "a model's name")
        if self.base_url is not None:
            _require(_is_server(self.base_url), "base_url", "an http:// or https:// address such as https://HOST/v1")
        _require(self.api_key_env.isidentifier(), "api_key_env", "the name of an environment variable, not a key")
        _require(self.temperature is None or 0 <= self.temperature <= 2, "temperature", "a number from 0 to 2")
        _require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "a count of at least 1")
        modes = ("auto", "json_schema", "json_object", "instruct")
        _require(self.structured in modes, "structured", f"one of {', '.join(modes)}")
        _require(0 <= self.structured_retries <= 20, "structured_retries", "a count from 0 to 20")
        _require(0 <= self.max_retries <= 100, "max_retries", "a count from 0 to 100")
        _require(0 < self.retry_delay <= 3600, "retry_delay", "seconds, more than 0 and at most 3600")
        _require(0 < self.max_retry_delay <= 3600, "max_retry_delay", "seconds, more than 0 and at most 3600")
        _require(0 < self.timeout <= 86400, "timeout", "seconds, more than 0 and at most 86400")
        for name in self.extra_body:
            _require(name not in _MANAGED, "extra_body", f"members other than {', '.join(_MANAGED)}")


def openai_settings_from_spec(rest: str) -> OpenAISettings:
    """Settings from what follows ``openai:`` in ``--agent``: ``MODEL`` or ``MODEL@http://HOST:PORT/v1``.

    A model's name may hold an ``@`` of its own. Everything else stays at its default.

    Raises:
        ValueError: it names no model, or no server behind the ``@``.
    """
    model, base_url = rest.strip(), None
    for scheme in ("@http://", "@https://"):
        before, found, after = model.rpartition(scheme)
        if found:
            model, base_url = before, scheme[1:] + after
            break
    if not model:
        raise ValueError(f"agent openai: names no model; write {_ACCEPTED}")
    try:
        return OpenAISettings(model=model, base_url=base_url)
    except ValueError as error:
        raise ValueError(f"agent openai: {error}; write {_ACCEPTED}") from None


def _require(holds: bool, name: str, accepted: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {accepted}")


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
