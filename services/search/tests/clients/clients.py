"""Clients that others wrote, against a running search service: OpenAI's, Hugging Face's, a tester of OpenAPI documents.

Prints a line for each proof, and ends with 1 at the first that fails. The tester puts in, changes and deletes items,
casts votes, and registers, promotes and rolls back versions: give it a service whose catalogue nobody needs. Events must
be written somewhere there (search.events.path), or /events would refuse all of them.
"""

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import traceback
import urllib.request
from pathlib import Path

import numpy
import openai
import schemathesis
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

TEXTS = ["running shoes for women", "Laufschuhe für Damen, Größe 38", "跑步鞋 👟"]
TOLERANCE = 1e-6
SHORT = 16

# The tester makes about a thousand cases of the document by itself, and draws as many as it is told for each operation
# that takes something; at least so many do.
DRAWN_FOR = 12
START_SECONDS, CASE_SECONDS = 120, 0.1
# So often a value is one that the service has; without these no search names a version that there is.
KNOWN = 0.7
# The document cannot say which versions and fields there are, that a search by terms needs a query, or that one weight is above 0.
# These may be refused with 422, and nothing else that the document allows.
UNSAID = {
    ("POST /models", "parent"), ("POST /search", "filter"), ("POST /search", "hybrid"), ("POST /search", "rerank"),
    ("POST /compare", "filter"),
}
# Refusals of requests that fit the document: names may be unknown, and a version may not be one to promote.
# The tester's own list has 401, 403, 429 and 5xx as well; the key is an admin's, and cases come one at a time.
ACCEPTED = ["2xx", "404", "409", "422"]
# Mistakes of the document, and parts of it that the tester leaves out; unless told, it fails at no warning. The others,
# missing_test_data and validation_mismatch, also come of names and folders that it made up: instead, each operation
# must have done at least once what it is for.
WARNINGS = [
    "missing_auth", "base_url_mismatch", "missing_deserializer", "unused_openapi_auth", "unsupported_regex",
    "method_not_allowed", "unmatched_filter", "unresolvable_reference", "rate_limited", "dictionary_mismatch",
]
# Whether these do depends on what was drawn before: a version with a report to promote, one to go back to. Rounds need a
# trainer, which the service does not have here.
MAY_REFUSE = {"POST /models", "POST /models/{version}/promote", "POST /models/rollback", "GET /rounds/{number}"}
CHANNELS = ["dense", "lexical", "hybrid"]


class Failed(Exception):
    pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base_url", metavar="BASE_URL")
    parser.add_argument("admin_key", metavar="ADMIN_KEY")
    parser.add_argument("read_key", metavar="READ_KEY")
    parser.add_argument("--cases", type=int, default=200, help="the least number of cases of the document's tester")
    options = parser.parse_args()
    base = options.base_url.rstrip("/")
    try:
        served = ask(f"{base}/models", options.read_key)["served"]["version"]
        vectors = prove_openai(base, options.read_key, served)
        prove_tei(base, options.read_key, vectors)
        prove_document(base, options.admin_key, options.cases)
    except Failed as failure:
        sys.exit(f"FAILED: {failure}")
    except Exception as error:
        # an answer that a client did not expect where none of ours was to be checked
        traceback.print_exc()
        sys.exit(f"FAILED: {type(error).__name__}: {error}")


def ask(url, key, body=None):
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def proved(what):
    print(f"proved: {what}", flush=True)


def want(holds, problem):
    if not holds:
        raise Failed(problem)


def refusal(kind, call, what):
    """The error of this kind that a call must end with."""
    try:
        call()
    except kind as error:
        return error
    except Exception as error:
        raise Failed(f"{what}: {kind.__name__} was to come, but {type(error).__name__} did: {error}") from error
    raise Failed(f"{what}: {kind.__name__} was to come, but there was an answer")


def want_same(ours, theirs, what):
    ours, theirs = numpy.asarray(ours), numpy.asarray(theirs)
    want(ours.shape == theirs.shape, f"{what}: of shape {ours.shape}, not {theirs.shape}")
    apart = float(numpy.abs(ours - theirs).max())
    want(apart <= TOLERANCE, f"{what}: {apart:g} apart, and {TOLERANCE:g} is the most")


# ---- OpenAI's client ----


def prove_openai(base, key, model):
    def client(key):
        # a service that is busy or broken is to be seen, not tried again
        return openai.OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0, timeout=30)

    def create(**asked):
        return client(key).embeddings.create(**{"model": model, "input": TEXTS} | asked)

    floats = create(encoding_format="float")
    vectors = [one.embedding for one in floats.data]
    want([one.index for one in floats.data] == [0, 1, 2], "openai: the vectors are not in the texts' order")
    want(floats.model == model, f"openai: the answer is of {floats.model}, not {model}")
    want(floats.usage.prompt_tokens > len(TEXTS), f"openai: {floats.usage.prompt_tokens} tokens were counted")
    want(floats._request_id, "openai: the answer has no x-request-id")
    want(numpy.allclose(numpy.linalg.norm(vectors, axis=1), 1, atol=1e-5), "openai: a vector is not of unit length")
    proved(f"openai {openai.__version__}: a list of texts, as floats")

    # the client's default is base64 too, but it decodes that by itself
    decoded = [one.embedding for one in create().data]
    want_same(decoded, vectors, "openai: base64, which the client asks for by default")
    told = [numpy.frombuffer(base64.b64decode(one.embedding), "<f4") for one in create(encoding_format="base64").data]
    want_same(told, vectors, "openai: base64, asked for")
    proved("openai: base64, by default and asked for, gives the vectors of the floats")

    for text, vector in zip(TEXTS, vectors):
        want_same(create(input=text).data[0].embedding, vector, f"openai: one text, `{text}`")
    proved("openai: one text gives the vector that it has in a list")

    want_same([one.embedding for one in create(dimensions=SHORT).data], shortened(vectors), "openai: dimensions")
    proved("openai: dimensions shortens and normalises")

    names = [one.id for one in client(key).models.list().data]
    want({"served", model} <= set(names), f"openai: the models are {names}")
    served = create(model="served")
    want(served.model == model, f"openai: `served` answers as {served.model}, not {model}")
    proved("openai: lists the models, and `served` means the served one")

    stranger = client("no such key").embeddings
    error = refusal(
        openai.AuthenticationError, lambda: stranger.create(model=model, input="shoes"), "openai: a wrong key"
    )
    want(error.code == "invalid_api_key", f"openai: a wrong key has the code {error.code}")
    error = refusal(openai.NotFoundError, lambda: create(model="no-such-model"), "openai: an unknown model")
    message = (error.body or {}).get("message", "")
    want("no-such-model" in message, f"openai: the message on an unknown model is `{message}`")
    error = refusal(
        openai.UnprocessableEntityError, lambda: create(dimensions=1_000_000), "openai: too many dimensions"
    )
    want(error.param == "dimensions", f"openai: too many dimensions are put down to {error.param}")
    refusal(openai.BadRequestError, lambda: create(encoding_format="hex"), "openai: an unknown encoding")
    proved("openai: a wrong key, an unknown model and wrong values are the errors that they are, and say so")
    return vectors


def shortened(vectors):
    first = numpy.asarray(vectors)[:, :SHORT]
    return first / numpy.linalg.norm(first, axis=1, keepdims=True)


# ---- Hugging Face's client, which asks text-embeddings-inference ----


def prove_tei(base, key, vectors):
    def embed(texts, key=key, **asked):
        # with an address for a model the client asks that address, and no hub
        return InferenceClient(model=f"{base}/embed", token=key, timeout=30).feature_extraction(texts, **asked)

    want_same(embed(TEXTS), vectors, "huggingface_hub: a list of texts")
    for text, vector in zip(TEXTS, vectors):
        # one text is answered with a list of one vector, as TEI does
        want_same(embed(text), [vector], f"huggingface_hub: one text, `{text}`")
    proved("huggingface_hub: /embed gives the vectors of /v1/embeddings")

    # more tokens than a model takes, in fewer letters than a text may have
    long = "shoes " * 300
    want_same(embed(long, truncate=True), embed(long), "huggingface_hub: a text that is cut, asked for and by default")
    want_same(embed(TEXTS, dimensions=SHORT), shortened(vectors), "huggingface_hub: dimensions")
    own = numpy.array(embed(TEXTS, normalize=False))
    want_same(own / numpy.linalg.norm(own, axis=1, keepdims=True), vectors, "huggingface_hub: vectors of other lengths")
    want(abs(numpy.linalg.norm(own[0]) - 1) > TOLERANCE, "huggingface_hub: normalize=False gives vectors of length 1")
    every = {"normalize": True, "truncate": True, "truncation_direction": "right", "prompt_name": "query"}
    for text, vector in zip(TEXTS, embed(TEXTS, **every)):
        by_text, by_vector = (
            [hit["id"] for hit in ask(f"{base}/search", key, body)["hits"]]
            for body in ({"query": text}, {"vector": vector.tolist()})
        )
        want(by_text == by_vector, f"huggingface_hub: its vector of `{text}` finds {by_vector}, and the text {by_text}")
    proved("huggingface_hub: its parameters are understood, and its vectors of queries find what the queries do")

    def status(what, call):
        return refusal(HfHubHTTPError, call, f"huggingface_hub: {what}").response.status_code

    wrong = {
        "a wrong key": (401, lambda: embed("shoes", key="no such key")),
        "a text that may not be cut": (422, lambda: embed(long, truncate=False)),
    }
    for what, (wanted, call) in wrong.items():
        told = status(what, call)
        want(told == wanted, f"huggingface_hub: {what}: {told} instead of {wanted}")
    proved("huggingface_hub: a wrong key, and what cannot be done, are refused")


# ---- The document, and whether the service does what it says ----


@schemathesis.serializer("application/x-ndjson")
def lines_of(ctx, value):
    """JSON lines of a list; of anything else, which the tester sends to be refused, its JSON."""
    values = value if isinstance(value, list) else [value]
    return "\n".join(json.dumps(one) for one in values).encode()


@schemathesis.check
def only_what_the_document_cannot_say_is_unprocessable(ctx, response, case):
    """Runs inside the tester, which takes this file as its extension."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code != 422:
        return
    label, error = case.operation.label, response.json()["error"]
    told = f"{label} refuses what its document allows: {error['param']}: {error['message']}"
    # the tester has few keys, and takes one for several writes
    if error["param"] == "Idempotency-Key" and error["message"].startswith("was used for another write"):
        return
    assert (label, error["param"]) in UNSAID, told


def toml(value):
    """Texts and lists of texts are written as in JSON, but for letters in two halves."""
    return json.dumps(value, ensure_ascii=False)


def prove_document(base, key, cases):
    shop = ask(f"{base}/models", key)
    versions = [one["version"] for one in shop["versions"]]
    channels = [*CHANNELS, *(f"{version}/{channel}" for version in versions for channel in CHANNELS)]
    # an item's field may have any name, and not all can be written down
    fields = [one["name"] for one in ask(f"{base}/fields", key)["fields"] if one["name"].isprintable()]
    paths = [one["path"] for one in shop["versions"]]
    known = {"versions": versions, "channels": channels, "fields": fields, "paths": paths}
    lines = [
        f"hooks = {toml(str(Path(__file__).resolve()))}",
        "request-timeout = 20",
        "continue-on-failure = true",
        "[generation]",
        "deterministic = true",
        f"max-examples = {-(-cases // DRAWN_FOR)}",
        "[checks.positive_data_acceptance]",
        f"expected-statuses = {toml(ACCEPTED)}",
        "[warnings]",
        f"fail-on = {toml(WARNINGS)}",
        "[auth.openapi.key]",
        'bearer = "${SOUK_ADMIN_KEY}"',
    ]
    for name, values in known.items():
        lines += [f"[dictionaries.{name}]", f"values = {toml(values)}"]
    drawn = {
        "path.version": "versions", "body.model": "versions", "body.left": "channels", "body.right": "channels",
        "body.path": "paths", "body.filter.must[*].field": "fields", "body.facets[*]": "fields",
    }
    lines.append("[parameters]")
    lines += [f'"{name}" = {{ dictionary = "{values}", probability = {KNOWN} }}' for name, values in drawn.items()]
    with tempfile.TemporaryDirectory() as folder:
        config, report = Path(folder, "schemathesis.toml"), Path(folder, "report.json")
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [
            sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "--no-color", "run",
            f"{base}/openapi.json", "--checks", "all", "--report", "json", "--report-json-path", str(report),
        ]
        seconds = START_SECONDS + CASE_SECONDS * cases
        # in a folder of its own, because it leaves files where it runs, and so does Python beside this one
        variables = os.environ | {"SOUK_ADMIN_KEY": key, "PYTHONDONTWRITEBYTECODE": "1"}
        run = {"cwd": folder, "env": variables, "timeout": seconds}
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **run)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"schemathesis: not done in {seconds:.0f} s") from error
        _, title, failures = done.stdout.partition("=== FAILURES ===")
        want(done.returncode == 0, f"schemathesis:\n{title + failures if title else done.stdout}")
        told = json.loads(report.read_text(encoding="utf-8"))
    number, operations, rates = told["test_cases"]["generated"], told["operations"], told["valid_rates"]
    want(operations["tested"] == operations["total"], f"schemathesis: {operations} were tested")
    want(number >= cases, f"schemathesis: {number} cases, and {cases} were asked for")
    silent = {name for name, phases in rates.items() if not any(one["accepted"] for one in phases.values())}
    want(silent <= MAY_REFUSE, f"schemathesis: no request to {silent - MAY_REFUSE} was ever granted")
    tester = f"schemathesis {told['schemathesis_version']}"
    proved(f"{tester}: {number} cases, {operations['tested']} operations, all checks")


if __name__ == "__main__":
    main()
