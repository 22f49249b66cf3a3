"""Why a request to a model server failed, as one line a person can act on, and whether it is worth another try.

Guarantees: no line holds the API key, a header's value, or more than `MAX_SAID` characters of what the server said.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Literal, cast

import msgspec
import openai

__all__ = ["RequestFailed", "Target", "broken_off", "malformed", "read_failure", "retry_after"]

MAX_SAID = 300

Kind = Literal["rate_limited", "server_error", "connection", "refused"]
"""``refused`` is the one that another try would not change."""

_QUOTA = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
_HIDDEN = 6  # a shorter value is no secret, and hiding it would hit common words


class Target(msgspec.Struct, frozen=True):
    """Who was asked: for the texts of failures."""

    host: str
    model: str
    key_variable: str
    has_key: bool
    secrets: tuple[str, ...]

    def clean(self, text: str) -> str:
        """One line of bounded length without secrets."""
        for secret in self.secrets:
            if len(secret) >= _HIDDEN:
                text = text.replace(secret, "…")
        text = " ".join(text.split())
        return text if len(text) <= MAX_SAID else f"{text[: MAX_SAID - 1]}…"


class RequestFailed(Exception):
    """One request failed.

    Args:
        kind: what to do about it.
        reason: one line for the person who waits for the agent.
        said: what the server wrote, for telling what it refuses.
        status: the HTTP status, where there was one.
        retry_after: seconds the server asks to wait.
    """

    def __init__(
        self, kind: Kind, reason: str, *, said: str = "", status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.kind: Kind = kind
        self.reason = reason
        self.said = said
        self.status = status
        self.retry_after = retry_after

    def mentions(self, words: Iterable[str]) -> bool:
        """Whether the server's text holds one of ``words``."""
        text = self.said.lower()
        return any(word in text for word in words)


def read_failure(error: Exception, target: Target) -> RequestFailed | None:
    """What ``error`` of the SDK means; ``None`` when it is none of the ways in which a request fails."""
    match error:
        case openai.APIStatusError():
            return _refused_by_status(error, target)
        case openai.APITimeoutError():
            return RequestFailed("connection", f"{target.host} did not answer in time")
        case openai.APIConnectionError():
            cause = target.clean(str(error.__cause__ or "no details"))
            return RequestFailed(
                "connection", f"the connection to {target.host} failed ({cause}); check base_url and that it is running"
            )
        case openai.APIResponseValidationError() | json.JSONDecodeError() | UnicodeDecodeError():
            return malformed(target)
        case openai.APIError():  # the server told of an error inside a stream that it had begun with status 200
            said = target.clean(_message(error.body) or error.message)
            status = int(error.code) if error.code is not None and error.code.isdecimal() else 500
            return _by_status(status, said, target, code=error.code or "", wait=None)
        case _:
            return None


def malformed(target: Target) -> RequestFailed:
    """What came back is not what the API promises."""
    return RequestFailed("connection", f"{target.host} answered something that is no stream of chat completion chunks")


def broken_off(target: Target) -> RequestFailed:
    """The stream ended without saying that the answer is complete."""
    return RequestFailed("connection", f"{target.host} broke its answer off")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait: ``retry-after-ms``, or ``Retry-After`` in seconds or as a date."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, date.timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _refused_by_status(error: openai.APIStatusError, target: Target) -> RequestFailed:
    said = target.clean(_message(error.body) or "")
    return _by_status(
        error.status_code, said, target, code=f"{error.code} {error.type}", wait=retry_after(error.response.headers)
    )


def _by_status(status: int, said: str, target: Target, *, code: str, wait: float | None) -> RequestFailed:
    host = target.host
    quoted = f" ({status}: {said})" if said else f" ({status})"

    def failed(kind: Kind, reason: str) -> RequestFailed:
        return RequestFailed(kind, reason, said=said, status=status, retry_after=wait)

    match status:
        case 401 | 403 if not target.has_key:
            return failed("refused", f"{host} wants an API key{quoted}; set the variable {target.key_variable}")
        case 401 | 403:
            return failed("refused", f"{host} refused the API key{quoted}; check the variable {target.key_variable}")
        case 404:
            return failed("refused", f"{host} has no model {target.model!r}{quoted}; check model and base_url")
        case 429 if any(word in f"{code} {said}" for word in _QUOTA):
            return failed("refused", f"the quota at {host} is used up{quoted}; check its plan and billing")
        case 429:
            return failed("rate_limited", f"{host} limits the rate of requests{quoted}")
        case 408 | 409:
            return failed("server_error", f"{host} could not answer now{quoted}")
        case _ if status >= 500:
            return failed("server_error", f"{host} failed{quoted}")
        case _:
            return failed("refused", f"{host} refused the request{quoted}")


def _message(body: object) -> str:
    """The server's own words: the shapes of OpenAI, of FastAPI servers, and plain text."""
    if isinstance(body, Mapping):
        members = cast("Mapping[str, Any]", body)
        for name in ("message", "detail", "error"):
            value = members.get(name)
            if isinstance(value, str) and value:
                return value
            if isinstance(value, Mapping):
                return _message(cast(object, value))
        return json.dumps(body, default=str)
    return body if isinstance(body, str) else ""
