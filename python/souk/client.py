"""Clients of the search service: `Client`, and `AsyncClient` with the same methods."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .async_operations import AsyncOperations
from .call import Call
from .errors import Busy, SoukError, Unreachable, error_of
from .operations import Operations
from .parse import parse
from .schemas import BulkAnswer

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
URL = "http://127.0.0.1:8080"
CONNECT_SECONDS = 5.0
# Longest pause before a repeated request; if the service asks for more, the caller gets the error at once.
MAX_PAUSE = 30.0
# Pauses are longer by up to this fraction, so that clients do not come back all at once.
JITTER = 0.5


class Client(Operations):
    """A search service over HTTP. Threads can share a client, which keeps its connections open until `close`.

    Args:
        url: Address of the service. Default: the variable SOUK_URL, else http://127.0.0.1:8080.
        api_key: Key, if the service has keys. Default: the variable SOUK_API_KEY.
        timeout: Seconds that the service may be silent.
        retries: How often a request is sent again if the service is busy (429, 503) and sending it twice has the effect of one.
    """

    def __init__(
        self, url: str | None = None, api_key: str | None = None, *, timeout: float = 30.0, retries: int = 2
    ) -> None:
        super().__init__(self._exchange)
        self._http: httpx.Client = load_httpx().Client(**options(url, api_key, timeout))
        self._retries = retries

    def upload(self, lines: Iterable[Mapping[str, Any]], *, chunk: int = 1000) -> BulkAnswer:
        """Sends any number of lines of `items.bulk`, such as a whole catalogue, in requests of `chunk` lines.

        If it fails, the first lines may have been written: send all of them again.
        """
        return total([self.items.bulk(part) for part in chunks(lines, chunk)])

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _exchange(self, call: Call, kind: type[T]) -> T:
        request, num_sent = call.request(), 0
        while True:
            try:
                with no_answer():
                    response = self._http.request(**request)
                return read(response, kind)
            except Busy as error:
                num_sent += 1
                pause = pause_of(error, num_sent)
                if not call.repeatable or num_sent > self._retries or pause > MAX_PAUSE:
                    raise
            time.sleep(pause)


class AsyncClient(AsyncOperations):
    """A search service over HTTP, for asyncio. The arguments and methods are those of `Client`."""

    def __init__(
        self, url: str | None = None, api_key: str | None = None, *, timeout: float = 30.0, retries: int = 2
    ) -> None:
        super().__init__(self._exchange)
        self._http: httpx.AsyncClient = load_httpx().AsyncClient(**options(url, api_key, timeout))
        self._retries = retries

    async def upload(self, lines: Iterable[Mapping[str, Any]], *, chunk: int = 1000) -> BulkAnswer:
        """Sends any number of lines of `items.bulk`, such as a whole catalogue, in requests of `chunk` lines.

        If it fails, the first lines may have been written: send all of them again.
        """
        return total([await self.items.bulk(part) for part in chunks(lines, chunk)])

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _exchange(self, call: Call, kind: type[T]) -> T:
        request, num_sent = call.request(), 0
        while True:
            try:
                with no_answer():
                    response = await self._http.request(**request)
                return read(response, kind)
            except Busy as error:
                num_sent += 1
                pause = pause_of(error, num_sent)
                if not call.repeatable or num_sent > self._retries or pause > MAX_PAUSE:
                    raise
            await asyncio.sleep(pause)


def load_httpx() -> Any:
    """httpx, which only clients need."""
    try:
        import httpx
    except ImportError as error:
        raise ImportError("souk's clients need httpx: pip install souk[client]") from error
    return httpx


def options(url: str | None, api_key: str | None, timeout: float) -> dict[str, Any]:
    """Arguments of both clients of httpx."""
    url = (url or os.environ.get("SOUK_URL") or URL).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"`{url}` is not an address: give one such as {URL}")
    key = os.environ.get("SOUK_API_KEY") if api_key is None else api_key
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return {
        "base_url": url,
        "headers": headers,
        "timeout": load_httpx().Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
    }


@contextmanager
def no_answer() -> Iterator[None]:
    """Turns httpx's errors into ours."""
    httpx = load_httpx()
    try:
        yield
    except httpx.TimeoutException as error:
        raise Unreachable(f"{error.request.url} did not answer in time ({type(error).__name__})") from error
    except httpx.RequestError as error:
        raise Unreachable(f"{error.request.url} cannot be reached: {error or type(error).__name__}") from error


def read(response: httpx.Response, kind: type[T]) -> T:
    """The answer of a response, or its error."""
    if not response.is_success:
        raise error_of(response.status_code, response.headers, response.content)
    try:
        return parse(kind, response.json())
    except ValueError as error:
        message = f"the answer of {response.request.url} cannot be read ({error}): is it a search service of this version?"
        raise SoukError(message) from error


def pause_of(error: Busy, num_sent: int) -> float:
    """Seconds before a request is sent again: never less than the service asks for."""
    pause = error.retry_after if error.retry_after is not None else 0.5 * 2 ** (num_sent - 1)
    return pause * random.uniform(1.0, 1.0 + JITTER)


def chunks(lines: Iterable[Mapping[str, Any]], size: int) -> Iterator[list[Mapping[str, Any]]]:
    if size < 1:
        raise ValueError(f"chunk is {size}: give 1 or more")
    rest = iter(lines)
    while part := list(islice(rest, size)):
        yield part


def total(answers: list[BulkAnswer]) -> BulkAnswer:
    """One answer for several requests."""
    return BulkAnswer(
        put=sum(answer.put for answer in answers),
        updated=sum(answer.updated for answer in answers),
        deleted=sum(answer.deleted for answer in answers),
        catalogue=max((answer.catalogue for answer in answers), default=0),
    )
