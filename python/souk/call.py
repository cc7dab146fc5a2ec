"""A request of an operation, before it is sent."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """Entries that are None are not sent."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str | None] = field(default_factory=dict)
    # the body: fields of an object, the whole object, or a list of JSON lines
    fields: Mapping[str, Any] | None = None
    json: Mapping[str, Any] | None = None
    lines: Iterable[Any] | None = None
    # sent twice, it has the effect of one
    repeatable: bool = False

    def request(self) -> dict[str, Any]:
        """Arguments of httpx's `request`."""
        headers = given(self.headers)
        content = None
        if self.lines is not None:
            headers["Content-Type"] = "application/x-ndjson"
            content = b"".join(encoded(line) + b"\n" for line in self.lines)
        elif self.json is not None or self.fields is not None:
            headers["Content-Type"] = "application/json"
            content = encoded(self.json if self.json is not None else given(self.fields or {}))
        return {
            "method": self.method,
            "url": self.path,
            "params": given(self.params),
            "headers": headers,
            "content": content,
        }


class Send(Protocol):
    """Sends a call and parses its answer."""

    def __call__(self, call: Call, kind: type[T]) -> T: ...


class AsyncSend(Protocol):
    """Sends a call and parses its answer."""

    async def __call__(self, call: Call, kind: type[T]) -> T: ...


def given(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if value is not None}


def encoded(value: Any) -> bytes:
    # JSON has no NaN, and the service no lone surrogates
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def segment(name: str) -> str:
    """A name as one segment of a path. Dots alone would mean another folder."""
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def fresh_key() -> str:
    """A key under which the service recognizes a repeated write."""
    return uuid.uuid4().hex
