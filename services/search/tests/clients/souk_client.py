"""Souk's own Python client against a running search service.

Prints a line for each proof, and ends with 1 at the first that fails. It puts in and deletes items, casts votes, and registers
and promotes a version: give it a service whose catalogue nobody needs. Items with a price must match `red lamp`, and events must
be written somewhere there (search.events.path).
"""

import argparse
import asyncio
import dataclasses
import inspect
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "python"))

import generate
import souk
from souk import async_operations, operations
from souk.schemas import Event, Filter, ItemsAnswer

QUERY = "red lamp"
FILTER: Filter = {"must": [{"field": "price", "gte": 1}]}
CHANGING = ("took_ms", "query_id")
GROUPS = ["Events", "Items", "Models", "Votes", "Operations"]
# The page registers this version with a model in this folder; the test, a version of its own with the served model.
PAGE_VERSION, PAGE_MODEL = '"v2"', '"/models/v2"'
PROMOTE_SECONDS = 120
TOLERANCE = 1e-4

Json = dict[str, Any]
# status, headers, body
Scripted = tuple[int, Json, Json]
Error = TypeVar("Error", bound=Exception)


class Failed(Exception):
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base_url", metavar="BASE_URL")
    parser.add_argument("admin_key", metavar="ADMIN_KEY")
    parser.add_argument("read_key", metavar="READ_KEY")
    options = parser.parse_args()
    base, admin, reader = options.base_url.rstrip("/"), options.admin_key, options.read_key
    try:
        prove_modules(base)
        prove_imports()
        prove_retries()
        with souk.Client(base, admin) as client:
            prove_answers(client, base, admin)
            prove_errors(client, base, reader)
            prove_items(client)
            prove_upload(client, base, admin)
            prove_votes(client)
            prove_page(client, base, admin)
        prove_example(base, reader)
    except Failed as failure:
        sys.exit(f"FAILED: {failure}")
    except Exception as error:
        traceback.print_exc()
        sys.exit(f"FAILED: {type(error).__name__}: {error}")


def proved(what: str) -> None:
    print(f"proved: {what}", flush=True)


def want(holds: object, problem: str) -> None:
    if not holds:
        raise Failed(problem)


def want_same(ours: object, theirs: object, what: str) -> None:
    want(ours == theirs, f"{what}: {ours!r} instead of {theirs!r}")


def refusal(kind: type[Error], call: Callable[[], object], what: str) -> Error:
    """The error of exactly this kind that a call must end with."""
    try:
        answer = call()
    except Exception as error:
        if type(error) is kind:
            return error
        raise Failed(f"{what}: {kind.__name__} was to come, but {type(error).__name__} did: {error}") from error
    raise Failed(f"{what}: {kind.__name__} was to come, but there was an answer: {answer}")


# ---- The package ----


def prove_modules(base: str) -> None:
    for name, text in generate.generate(generate.read(f"{base}/openapi.json")).items():
        stored = (generate.PACKAGE / name).read_text(encoding="utf-8")
        want(stored == text, f"python/souk/{name} is not current: run python3 python/generate.py {base}/openapi.json")
    proved("the generated modules are those of the service's document")

    for group in GROUPS:
        ours, theirs = methods(getattr(operations, group)), methods(getattr(async_operations, f"Async{group}"))
        want(ours, f"{group} has no methods")
        want_same(theirs, ours, f"the async methods of {group}")
    for name in ("__init__", "upload"):
        sync, other = (str(inspect.signature(getattr(kind, name))) for kind in (souk.Client, souk.AsyncClient))
        want_same(other, sync, f"the signature of {name}")
    proved("both clients have the same methods with the same arguments")


def methods(kind: type) -> dict[str, tuple[str, str | None]]:
    found = inspect.getmembers(kind, inspect.isfunction)
    return {name: (str(inspect.signature(method)), method.__doc__) for name, method in found if not name.startswith("_")}


def prove_imports() -> None:
    done = python("-c", "import sys, souk; print({'httpx', 'souk.client'} & set(sys.modules))")
    want_same(done.stdout.strip(), "set()", "modules that `import souk` loads")
    done = python("-c", "import sys; sys.modules['httpx'] = None; import souk; souk.Client()")
    want("ImportError" in done.stderr and "pip install souk[client]" in done.stderr, f"without httpx: {done.stderr}")
    proved("`import souk` does not load httpx, and a client without httpx says what to install")


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1"} | variables
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60)


# ---- Repeated requests, with a server that is busy ----


@contextmanager
def server(*answers: Scripted) -> Iterator[tuple[str, list[Json]]]:
    """Address of a server that gives these answers in turn, and the requests that it gets."""
    left: list[Scripted] = list(answers)
    requests: list[Json] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            heads = {name.lower(): value for name, value in self.headers.items()}
            requests.append({"request": self.requestline, "headers": heads, "body": body, "time": time.monotonic()})
            status, headers, content = left.pop(0)
            self.send_response(status)
            data = json.dumps(content).encode()
            for name, value in {**headers, "Content-Length": len(data)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", requests
        finally:
            http.shutdown()
            thread.join()


def busy(status: int, retry_after: float) -> Scripted:
    error = {"message": "the queue is full", "type": "rate_limit_error", "param": None, "code": "busy"}
    return status, {"Retry-After": retry_after, "x-request-id": "r-1"}, {"error": error}


def prove_retries() -> None:
    good: Scripted = (200, {}, {"upserted": 1, "new": 1, "catalogue": 5})
    item = {"id": "ü", "title": "Lampe"}

    def put(url: str) -> ItemsAnswer:
        with souk.Client(url) as client:
            return client.items.put([item])

    async def put_async(url: str) -> ItemsAnswer:
        async with souk.AsyncClient(url) as client:
            return await client.items.put([item])

    calls: dict[str, Callable[[str], ItemsAnswer]] = {"sync": put, "async": lambda url: asyncio.run(put_async(url))}
    for name, call in calls.items():
        with server(busy(429, 0.3), busy(503, 0.1), good) as (url, requests):
            want_same(call(url).catalogue, 5, f"{name}: the answer after a 429 and a 503")
        first, *others = requests
        want_same(len(others), 2, f"{name}: repeated requests")
        pause = others[0]["time"] - first["time"]
        want(pause >= 0.3, f"{name}: sent again after {pause} s, and Retry-After was 0.3")
        want_same(json.loads(first["body"]), {"items": [item]}, f"{name}: the body")
        for other in others:
            same = {"body": first["body"], "key": first["headers"]["idempotency-key"]}
            want_same({"body": other["body"], "key": other["headers"]["idempotency-key"]}, same, f"{name}: a repeated request")
    proved("a write of items is sent again after 429 and 503, when Retry-After is over, with the same body and key")

    prove_no_retries()


def prove_no_retries() -> None:
    with server(*[busy(503, 0)] * 3) as (url, requests):
        error = refusal(souk.Busy, lambda: souk.Client(url).search(QUERY), "a service that stays busy")
        want_same(len(requests), 3, "requests to a service that stays busy")
        told = (error.status, error.code, error.type, error.retry_after, error.request_id, str(error))
        want_same(told, (503, "busy", "rate_limit_error", 0, "r-1", "503: the queue is full"), "the error of a busy service")
    cases: dict[str, tuple[int, int, Callable[[souk.Client], object]]] = {
        "a rollback": (2, 0, lambda client: client.models.roll_back()),
        "a search without retries": (0, 0, lambda client: client.search(QUERY)),
        "a search with a Retry-After of a minute": (2, 60, lambda client: client.search(QUERY)),
    }
    for what, (retries, seconds, call) in cases.items():
        # a second request would get no answer, and another error
        with server(busy(429, seconds)) as (url, requests):
            with souk.Client(url, retries=retries) as client:
                refusal(souk.Busy, lambda: call(client), what)
            want_same(len(requests), 1, f"requests of {what}")
    proved("no more than `retries`, nothing that is not safe to repeat, and no long pause")


# ---- Answers ----


def prove_answers(client: souk.Client, base: str, key: str) -> None:
    search = {"query": QUERY, "k": 3, "explain": True, "facets": ["brand"], "filter": FILTER, "hybrid": {"lexical": 2}}
    routes: dict[str, tuple[Json | None, Callable[[Any], Any]]] = {
        "/search": (search, lambda one: one.search(**search)),
        "/embed": ({"inputs": [QUERY], "dimensions": 8}, lambda one: one.embed([QUERY], dimensions=8)),
        "/v1/embeddings": ({"input": QUERY, "model": "served"}, lambda one: one.embeddings(QUERY, "served")),
        "/v1/models": (None, lambda one: one.openai_models()),
        "/info": (None, lambda one: one.info()),
        "/fields": (None, lambda one: one.fields()),
        "/items?limit=2": (None, lambda one: one.items.list(limit=2)),
        "/models": (None, lambda one: one.models.list()),
        "/training": (None, lambda one: one.models.training()),
        "/votes/summary": (None, lambda one: one.votes.summary()),
        "/readyz": (None, lambda one: one.ready()),
    }

    async def ask_all() -> list[Any]:
        async with souk.AsyncClient(base, key) as other:
            return await asyncio.gather(*(call(other) for _, call in routes.values()))

    for (route, (body, call)), answer in zip(routes.items(), asyncio.run(ask_all()), strict=True):
        raw = plain(ask(f"{base}{route}", key, body))
        for name, ours in {"client": plain(call(client)), "async client": plain(answer)}.items():
            want(is_close(ours, raw), f"{route} of the {name}: {ours} instead of {raw}")
    hits = client.search(QUERY, filter=FILTER).hits
    want(hits and all(hit.fields["price"] >= 1 for hit in hits), f"the hits with a price are {hits}")
    [vector] = client.embed(QUERY, prompt_name="query")
    by_text, by_vector = client.search(QUERY, hybrid=False), client.search(vector=vector, hybrid=False)
    want(is_close(plain(by_vector.hits), plain(by_text.hits)), f"hits of the query's vector: {by_vector} not {by_text}")
    proved(f"{len(routes)} routes: the answers of both clients have what the raw answers have")


def ask(url: str, key: str, body: Json | None) -> Any:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def plain(value: Any) -> Any:
    """An answer, of the client or raw, without what differs from request to request and without empty fields."""
    if dataclasses.is_dataclass(value):
        entries = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        value = entries | (entries.pop("fields") if isinstance(entries.get("fields"), dict) else {})
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if one not in (None, []) and name not in CHANGING}
    return [plain(one) for one in value] if isinstance(value, list) else value


def is_close(ours: Any, theirs: Any) -> bool:
    """Whether two answers are equal, but for the rounding of texts that are encoded together with others."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(is_close(ours[name], theirs[name]) for name in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(is_close, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return abs(ours - theirs) <= TOLERANCE
    return bool(ours == theirs)


def prove_errors(client: souk.Client, base: str, reader: str) -> None:
    def told(call: Callable[[], object], what: str) -> tuple[int | None, str | None, str | None]:
        error = refusal(souk.SoukError, call, what)
        want(error.message and error.request_id and str(error.status) in str(error), f"{what}: {vars(error)}")
        return error.status, error.code, error.param

    calls: dict[str, tuple[tuple[int, str, str | None], Callable[[], object]]] = {
        "a wrong key": ((401, "invalid_api_key", None), souk.Client(base, "no such key").models.list),
        "a key without the role": ((403, "forbidden", None), lambda: souk.Client(base, reader).items.delete("x")),
        "an unknown item": ((404, "not_found", None), lambda: client.items.get("no such item")),
        "too many hits": ((422, "unprocessable", "k"), lambda: client.search(QUERY, k=10**9)),
        "neither query nor vector": ((400, "malformed", "query"), client.search),
    }
    for what, (wanted, call) in calls.items():
        want_same(told(call, what), wanted, what)
    proved("a wrong key, a missing role, an unknown item and wrong values are the errors that they are")

    with socket.socket() as taken:
        # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        none = refusal(souk.Unreachable, lambda: souk.Client(url).ready(), "a port without a service")
        want(url in str(none) and none.status is None, f"a port without a service: {none}")
        taken.listen()
        silent = refusal(souk.Unreachable, lambda: souk.Client(url, timeout=0.2).ready(), "a silent service")
        want("did not answer in time" in str(silent), f"a silent service: {silent}")
    with server((200, {}, {"hello": "world"}), (502, {}, {})) as (url, _):
        error = refusal(souk.SoukError, lambda: souk.Client(url).search(QUERY), "another service")
        want("is it a search service" in str(error), f"another service: {error}")
        want_same(refusal(souk.SoukError, lambda: souk.Client(url).search(QUERY), "a proxy's error").status, 502, "its status")
    refusal(ValueError, lambda: souk.Client("localhost:8080"), "an address without http")
    proved("no service, a silent one and another one are errors of the client")


# ---- Items, votes ----


def prove_items(client: souk.Client) -> None:
    names = ["desk 7", "a/b c?d#e%", "Größe 38 👟", "..", "x" * 256]
    items: dict[str, Json] = {name: {"id": name, "title": f"Oak desk {at}", "price": at} for at, name in enumerate(names)}
    # leftovers of an earlier run
    client.items.bulk([{"id": name, "_deleted": True} for name in names])
    put = client.items.put([*items.values()])
    want_same((put.upserted, put.new), (len(names), len(names)), "the answer of a new put")
    for name, item in items.items():
        want_same(client.items.get(name, at_least=put.catalogue) | item, {"text": ""} | item, f"the item `{name}`")
    by_terms = client.search("oak desk 0", hybrid={"dense": 0, "lexical": 1}, at_least=put.catalogue)
    want_same(by_terms.hits[0].id, "desk 7", "the first hit of a new item's title")
    client.items.update("desk 7", {"price": 89, "stock": 4, "title": None})
    changed = client.items.get("desk 7")
    want_same((changed["price"], changed["stock"], changed["title"]), (89, 4, ""), "an updated item")
    client.items.put([changed | {"price": 90}])
    want_same(client.items.get("desk 7"), changed | {"price": 90}, "an item that was read, changed and put back")
    proved("items are put, read, found and updated, also with ids that a URL must quote")

    for what, call in {
        "a stale condition": lambda: client.items.delete("desk 7", if_position=put.catalogue),
        "a read of a later change": lambda: client.items.get("desk 7", at_least=10**9),
        "a search of a later change": lambda: client.search(QUERY, at_least=10**9),
    }.items():
        want_same(refusal(souk.SoukError, call, what).status, 409, what)
    key = f"run-{time.time_ns()}"
    deleted = client.items.delete("desk 7", idempotency_key=key)
    want_same(client.items.delete("desk 7", idempotency_key=key), deleted, "a delete that is repeated with its key")
    for name in names[1:]:
        want(client.items.delete(name).deleted, f"`{name}` was not deleted")
    want_same(refusal(souk.SoukError, lambda: client.items.get("desk 7"), "a deleted item").status, 404, "a deleted item")
    proved("conditions, positions and repeat keys reach the service, and items are deleted")


def prove_upload(client: souk.Client, base: str, key: str) -> None:
    lines = [{"id": f"up {number}", "title": "Shelf"} for number in range(5)]
    done = client.upload(iter(lines), chunk=2)
    want_same((done.put, done.updated, done.deleted), (5, 0, 0), "an upload")
    want_same(client.items.get("up 4", at_least=done.catalogue)["title"], "Shelf", "the last item of an upload")
    want_same(client.upload([]).put, 0, "an upload of nothing")
    refusal(ValueError, lambda: client.upload(lines, chunk=0), "chunks of nothing")

    async def upload() -> Any:
        async with souk.AsyncClient(base, key) as other:
            return await other.upload([{"id": line["id"], "_deleted": True} for line in lines], chunk=3)

    want_same(asyncio.run(upload()).deleted, 5, "an upload of deletions")
    answers: list[Scripted] = [(200, {}, {"put": size, "updated": 0, "deleted": 0, "catalogue": 9}) for size in (2, 2, 1)]
    with server(*answers) as (url, requests):
        want_same(souk.Client(url).upload(lines, chunk=2).put, 5, "the sum of three answers")
        want_same([one["body"].count(b"\n") for one in requests], [2, 2, 1], "lines of each request")
    proved("an upload is split into requests")


def prove_votes(client: souk.Client) -> None:
    num_votes = count_votes(client)
    pages = client.compare(QUERY, left="dense", right="lexical", k=5)
    want(pages.left.hits and pages.right.hits, f"a side has no hits: {pages}")
    best = pages.left.hits[0].id
    vote = client.votes.cast(
        f"vote of {time.time_ns()}", QUERY, "dense", "lexical", "good", comparison=pages.comparison,
        grades=[{"side": "left", "item": best, "good": True}], voter="souk_client.py",
    )
    want(vote.counted, "the vote was not counted")
    channels = {f"{served_version(client)}/{name}" for name in ("dense", "lexical")}
    want_same({vote.left, vote.right}, channels, "the channels of a comparison")
    want_same(count_votes(client), num_votes + 1, "votes after a vote")
    searched = client.search(QUERY, client_id="shopper")
    event: Event = {"action_name": "click", "query_id": searched.query_id, "item": searched.hits[0].id, "position": 1}
    want_same(client.events.tell([event]).taken, 1, "events taken")
    proved("a comparison is voted on, the vote is counted, and an event is taken")


def count_votes(client: souk.Client) -> int:
    return sum(pair.num_good + pair.num_same + pair.num_bad for pair in client.votes.summary().pairs)


def served_version(client: souk.Client) -> str:
    served = client.models.list().served
    return served.version if served else ""


# ---- The page and the example ----


def prove_page(client: souk.Client, base: str, key: str) -> None:
    os.environ.update(SOUK_URL=base, SOUK_API_KEY=key)
    first, second = served_version(client), f"v{time.time_ns()}"
    [path] = [version.path for version in client.models.list().versions if version.version == first]
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    for name in (PAGE_VERSION, PAGE_MODEL):
        want(name in "".join(blocks), f"no block of docs/python.md names {name}")
    names: Json = {}
    for number, block in enumerate(blocks, 1):
        if "souk.Encoder(" in block:
            # services/python/tests/encode.py runs it, in the wheel
            continue
        print(f"docs/python.md, block {number}:")
        code = block.replace(PAGE_MODEL, repr(path)).replace(PAGE_VERSION, repr(second))
        exec(compile(code, f"docs/python.md, block {number}", "exec"), names)
    end = time.monotonic() + PROMOTE_SECONDS
    while served_version(client) != second:
        want(time.monotonic() < end, f"{second} is not served: {client.models.list()}")
        time.sleep(0.2)
    client.models.roll_back(version=second)
    want_same(served_version(client), first, "the version after a rollback")
    names["client"].close()
    proved(f"the {len(blocks)} blocks of docs/python.md run")


def prove_example(base: str, key: str) -> None:
    done = python(str(ROOT / "examples/search.py"), "red", "lamp", SOUK_URL=base, SOUK_API_KEY=key)
    want(done.returncode == 0 and len(done.stdout.splitlines()) == 5, f"examples/search.py: {done.stdout}{done.stderr}")
    done = python(str(ROOT / "examples/search.py"), "lamp", SOUK_URL=base, SOUK_API_KEY="no such key")
    want(done.returncode == 1 and "error: 401" in done.stderr, f"examples/search.py with a wrong key: {done.stderr}")
    proved("examples/search.py prints the hits, and an error")


if __name__ == "__main__":
    main()
