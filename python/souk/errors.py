"""Errors of the clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

BUSY = (429, 503)


class SoukError(Exception):
    """The service refused a request, or its answer cannot be read. `str(error)` says why and what to do."""

    message: str
    status: int | None = None
    """HTTP status; None if there was no answer."""
    code: str | None = None
    """Kind of error, such as `not_found`."""
    type: str | None = None
    """The error type that OpenAI's clients distinguish, such as `invalid_request_error`."""
    param: str | None = None
    """Field of the request that is wrong."""
    retry_after: float | None = None
    """Seconds after which the service says to try again."""
    request_id: str | None = None
    """Id of the request in the service's log."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return ": ".join(str(part) for part in (self.status, self.param, self.message) if part)


class Busy(SoukError):
    """The service is overloaded, starting, or lacks something that the request needs (429, 503). Try again later."""


class Unreachable(SoukError):
    """There was no answer: the service cannot be reached, or took too long. A write may have happened."""


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> SoukError:
    """Error of an answer. One that is not in the service's format comes from something else, such as a proxy."""
    detail: dict[str, Any]
    try:
        detail = json.loads(body)["error"]
        message = str(detail["message"])
    except (ValueError, LookupError, TypeError):
        text = body[:200].decode(errors="replace").strip()
        detail, message = {}, f"not an answer of a search service: {text or 'no text'}"
    error = Busy(message) if status in BUSY else SoukError(message)
    error.status = status
    error.code, error.type, error.param = detail.get("code"), detail.get("type"), detail.get("param")
    error.retry_after = seconds_of(headers.get("retry-after"))
    error.request_id = headers.get("x-request-id")
    return error


def seconds_of(value: Any) -> float | None:
    """Seconds of a Retry-After header. A date, which proxies may send, gives None."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return seconds if 0 <= seconds < float("inf") else None
