"""The commands and requests of docs/integrations.md against real OpenSearch and Solr.

Runs the page's export of a small catalogue and starts `souk serve`. Then starts each engine with 512 MB, sends it the page's requests,
and compares ids and scores of its hits with Souk's exact search. Prints a line for each proof. Stops all that it started.
"""

import argparse
import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs/integrations.md"
# The first is the page's; the last needs escaping in the connector's template.
QUERIES = ["oak desk", "a lamp made of glass", 'a "quoted" query']
QUERY_PROMPT = "query: "
KEY = "SOUK_KEY"
NUM_HITS = 100
TOLERANCE = 1e-4
START_SECONDS = 180
JAVA = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opensearch", metavar="HOME", type=Path)
    parser.add_argument("--solr", metavar="HOME", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        work = Path(folder)
        page = Page(PAGE.read_text(encoding="utf-8"), work)
        write_catalogue(work / "items.csv")
        page.run("Export")
        souk = running.enter_context(start_souk(work))
        page.addresses["souk:8080"] = souk.address
        expected = Expected(souk, page)
        if options.opensearch:
            with start_opensearch(options.opensearch, work) as engine:
                prove_opensearch(engine, page, expected)
        if options.solr:
            with start_solr(options.solr, work) as engine:
                prove_solr(engine, page, expected)
                prove_solr_client(options.solr, page, expected)


class Page:
    """The document's commands and requests, with the addresses that this run has instead of the usual ones."""

    def __init__(self, text, work):
        self.text, self.work = text, work
        self.addresses = {}

    def commands(self, section):
        body = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", self.text, re.S | re.M)[1]
        lines = "".join(re.findall(r"```console\n(.*?)```", body, re.S)).replace("\\\n", " ").splitlines()
        commands = [line[2:] for line in lines if line.startswith("$ ")]
        assert commands, section
        return commands

    def run(self, section, beginning=""):
        """Runs the section's commands with this beginning; returns the JSON objects that they print."""
        commands = [command for command in self.commands(section) if command.startswith(beginning)]
        assert commands, f"{section} has no command {beginning}"
        answers = []
        for command in commands:
            filled = re.sub(r"\bcurl ", "curl -sS --fail ", self.filled(command))
            shell = ["bash", "-c", f"set -o pipefail; {filled}"]
            ran = subprocess.run(shell, cwd=self.work, text=True, capture_output=True)
            assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
            if "curl" in command:
                answers += json_objects(ran.stdout)
        return answers

    def block(self, mark):
        found = re.findall(rf"<!-- {mark} -->\n```json\n(.*?)```", self.text, re.S)
        assert len(found) == 1, f"{mark} stands at {len(found)} blocks"
        return json.loads(self.filled(found[0]))

    def filled(self, text):
        for usual, address in self.addresses.items():
            text = text.replace(usual, address)
        return text


class Server:
    """A process and its address."""

    def __init__(self, address, headers=()):
        self.address = address
        self.headers = {"Content-Type": "application/json", **dict(headers)}

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.address}{path}", data, self.headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code}: {error.read().decode()}") from error
        return json.loads(text) if text.startswith((b"{", b"[")) else text


    def refusal(self, method, path, body):
        try:
            answer = self.ask(method, path, body)
        except AssertionError as error:
            return str(error)
        raise AssertionError(f"{method} {path} is not refused: {answer}")


class Expected:
    """Souk's answers: for each query, its vector and the hits of exact search."""

    def __init__(self, souk, page):
        self.souk = souk
        self.request = page.block("request: POST /v1/embeddings")
        self.vectors = self.embed(QUERIES, self.request)
        self.hits = []
        for text in QUERIES:
            hits = souk.ask("POST", "/search", {"query": text, "k": NUM_HITS, "hybrid": False})["hits"]
            self.hits.append([(hit["id"], hit["score"]) for hit in hits])
        about = json.loads((page.work / "OPENSEARCH/souk.json").read_text())
        assert about["model"] == souk.ask("GET", "/info")["model_sha"]
        self.num_items = about["num_items"]

    def embed(self, texts, request):
        answer = self.souk.ask("POST", "/v1/embeddings", request | {"input": texts})
        return [entry["embedding"] for entry in answer["data"]]

    def same(self, found):
        """Compares the hits of all queries: ids in order, and inner products."""
        for text, hits, expected in zip(QUERIES, found, self.hits, strict=True):
            assert len(hits) == len(expected) == NUM_HITS, f"{text}: {len(hits)} hits"
            for rank, (hit, right) in enumerate(zip(hits, expected), start=1):
                is_same = hit[0] == right[0] and abs(hit[1] - right[1]) < TOLERANCE
                assert is_same, f"{text}: hit {rank} is {hit}, Souk has {right}"


def write_catalogue(path):
    materials = ["oak", "steel", "glass", "bamboo", "marble"]
    things = ["desk", "lamp", "shelf", "chair", "mirror", "vase", "bed", "stool"]
    sizes = range(40, 190, 10)
    names = [f"{material} {thing} {size} cm" for size in sizes for thing in things for material in materials]
    rows = [f"p{at},{name},Home,{10 + at}.90\n" for at, name in enumerate(names)]
    path.write_text("sku,name,category,price\n" + "".join(rows))


def start_souk(work):
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    flags = f"--data SHOP --state STATE --listen {address} --set index.type=exact"
    command = ["bash", "-c", f'SOUK_SEARCH_KEYS={KEY} exec souk serve --model "$MODEL" {flags}']
    return started(command, Server(address, {"Authorization": f"Bearer {KEY}"}), "/readyz", work / "souk.log")


def start_opensearch(home, work):
    http, transport = free_ports(2)
    data = work / "opensearch"
    data.mkdir()
    arguments = [str(home), str(data), str(http), str(transport)]
    command = [*JAVA, "-cp", f"{home}/lib/*", f"{HERE}/OpenSearchNode.java", *arguments]
    server = Server(f"127.0.0.1:{http}")
    return started(command, server, "/_cluster/health?wait_for_status=green", work / "opensearch.log")


def start_solr(home, work):
    (port,) = free_ports(1)
    cores = work / "solr"
    shutil.copytree(HERE / "solr", cores)
    command = [*JAVA, f"-Dsolr.log.dir={cores}", "-cp", f"{home}/*", f"{HERE}/SolrNode.java", str(cores), str(port)]
    return started(command, Server(f"127.0.0.1:{port}"), "/solr/items/admin/ping", work / "solr.log")


@contextlib.contextmanager
def started(command, server, ready, log):
    """A process that answers on the path `ready`. It is killed at the end; after a failure, its log is printed."""
    with open(log, "wb") as output, subprocess.Popen(command, cwd=log.parent, stdout=output, stderr=output) as process:
        try:
            until_ready(process, server, ready)
            yield server
        except AssertionError:
            print(f"end of {log.name}:\n{log.read_text(errors='replace')[-2000:]}", file=sys.stderr)
            raise
        finally:
            process.kill()


def until_ready(process, server, path):
    end = time.monotonic() + START_SECONDS
    while True:
        assert process.poll() is None, f"{process.args[0]} ended with {process.returncode}"
        try:
            return server.ask("GET", path)
        except (OSError, AssertionError) as error:
            assert time.monotonic() < end, f"{path} does not answer: {error}"
            time.sleep(0.2)


def free_ports(number):
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def prove_opensearch(engine, page, expected):
    page.addresses["localhost:9200"] = engine.address
    version = engine.ask("GET", "/")["version"]["number"]
    plugins = {plugin["component"] for plugin in engine.ask("GET", "/_cat/plugins?format=json")}
    print(f"OpenSearch {version} with {', '.join(sorted(plugins))}", flush=True)
    assert f"OpenSearch {version} " in page.text, "the page names another version"

    definition = page.work / "OPENSEARCH/index.json"
    exported = json.loads(definition.read_text())
    engine.ask("PUT", "/items", exported)
    engine.ask("DELETE", "/items")
    proved("OpenSearch accepts index.json as exported")
    # Faiss's native library is missing
    method = exported["mappings"]["properties"]["souk_vector"]["method"]
    assert method["engine"] == "faiss"
    method["engine"] = "lucene"
    definition.write_text(json.dumps(exported))

    engine.ask("PUT", "/items", {"settings": {"index": {"knn": True}}})
    engine.ask("PUT", "/items/_doc/p0", {"title": "mine"})
    engine.ask("PUT", "/items/_mapping", {"properties": exported["mappings"]["properties"]})
    assert not any(answer["errors"] for answer in page.run("OpenSearch", "for f in"))
    source = engine.ask("GET", "/items/_doc/p0")["_source"]
    assert source["title"] == "mine" and len(source["souk_vector"]) == 384, source
    engine.ask("DELETE", "/items")
    proved("OpenSearch adds the vectors to documents of an index that exists, and they keep their fields")

    created, *loaded = page.run("OpenSearch")
    assert created["acknowledged"] and not any(answer["errors"] for answer in loaded)
    engine.ask("POST", "/items/_refresh")
    assert engine.ask("GET", "/items/_count")["count"] == expected.num_items
    body = page.block("body: opensearch knn")
    query = body["query"]["knn"]["souk_vector"]
    found = []
    for query["vector"] in expected.vectors:
        found.append(opensearch_hits(engine, body))
    expected.same(found)
    proved(f"OpenSearch, with the engine Lucene, loads {expected.num_items} items and finds what Souk's exact search finds")
    prove_connector(engine, page, expected)


def prove_connector(engine, page, expected):
    connector = page.block("connector: opensearch")
    refused = engine.refusal("POST", "/_plugins/_ml/connectors/_create", connector)
    assert "trusted connector endpoint" in refused, refused
    engine.ask("PUT", "/_cluster/settings", page.block("settings: opensearch"))
    created = engine.ask("POST", "/_plugins/_ml/connectors/_create", connector)
    model = page.block("model: opensearch")
    assert model["connector_id"] == "CONNECTOR_ID"
    registered = engine.ask("POST", "/_plugins/_ml/models/_register?deploy=true", model | created)
    end = time.monotonic() + 60
    while engine.ask("GET", f"/_plugins/_ml/models/{registered['model_id']}")["model_state"] != "DEPLOYED":
        assert time.monotonic() < end, "the model is not deployed"
        time.sleep(0.2)
    body = page.block("body: opensearch")
    query = body["query"]["neural"]["souk_vector"]
    assert (query["query_text"], query["model_id"]) == (QUERIES[0], "MODEL_ID")
    query["model_id"] = registered["model_id"]
    found = []
    for query["query_text"] in QUERIES:
        found.append(opensearch_hits(engine, body))
    expected.same(found)
    proved("OpenSearch's connector gets the vectors of queries, with the prompt, and its neural query finds the same")


def opensearch_hits(engine, body):
    hits = engine.ask("POST", "/items/_search?_source=false", body)["hits"]["hits"]
    inner_product = lambda score: score - 1 if score >= 1 else 1 - 1 / score
    return [(hit["_id"], inner_product(hit["_score"])) for hit in hits]


def prove_solr(engine, page, expected):
    page.addresses["localhost:8983"] = engine.address
    version = engine.ask("GET", "/solr/admin/info/system")["lucene"]["solr-spec-version"]
    print(f"Solr {version}", flush=True)
    assert f"Solr {version}," in page.text, "the page names another version"
    engine.ask("POST", "/solr/items/schema", page.block("body: solr"))
    body = page.block("body: solr knn")
    mine = {"id": "p0", "title": "mine"}

    update_solr(engine, mine)
    page.run("Solr", "curl")
    assert "title" not in solr_item(engine), "the page says that documents are replaced"
    expected.same([solr_hits(engine, body, vector) for vector in expected.vectors])
    proved(f"Solr loads {expected.num_items} items and finds what Souk's exact search finds")

    if shutil.which("jq"):
        engine.ask("POST", "/solr/items/update?commit=true", {"delete": {"query": "*:*"}})
        update_solr(engine, mine)
        page.run("Solr", "jq")
        assert solr_item(engine)["title"] == "mine"
        expected.same([solr_hits(engine, body, vector) for vector in expected.vectors])
        proved("Solr adds the vectors to documents that exist, and they keep their fields")
    else:
        print("skipped: Solr's atomic updates: needs jq", flush=True)

    update_solr(engine, {"id": "p0", "title": {"set": "changed"}})
    assert solr_item(engine)["title"] == "changed"
    expected.same([solr_hits(engine, body, vector) for vector in expected.vectors])
    proved("Solr keeps the vector of a document when another field changes")


def update_solr(engine, document):
    engine.ask("POST", "/solr/items/update?commit=true", [document])


def solr_item(engine):
    return engine.ask("GET", "/solr/items/select?q=id:p0&fl=id,title")["response"]["docs"][0]


def solr_hits(engine, body, vector):
    before, _, after = re.fullmatch(r"(\{!knn .*\})(\[.*\])(.*)", body["query"]).groups()
    answer = engine.ask("POST", "/solr/items/select", body | {"query": before + json.dumps(vector) + after})
    return [(hit["id"], 2 * hit["score"] - 1) for hit in answer["response"]["docs"]]


def prove_solr_client(home, page, expected):
    """The class and the parameters of the page's model, used as Solr's module uses them."""
    model = page.block("model: solr")
    parameters = [f"{name}={value}" for name, value in model["params"].items()]
    with_prompt = [QUERY_PROMPT + text for text in QUERIES]
    arguments = [model["class"], *parameters, "--", *QUERIES, *with_prompt]
    command = [*JAVA, "-cp", f"{home}/*", f"{HERE}/EmbeddingClient.java", *arguments]
    ran = subprocess.run(command, text=True, capture_output=True)
    assert ran.returncode == 0, ran.stderr
    vectors = json_objects(ran.stdout)
    plain = {name: value for name, value in expected.request.items() if name != "prompt_name"}
    for found, right in zip(vectors, expected.embed(QUERIES, plain) + expected.vectors, strict=True):
        assert max(abs(left - other) for left, other in zip(found, right, strict=True)) < TOLERANCE
    proved("the client of Solr's module gets Souk's vectors, and those of queries when the text has the prompt")


def json_objects(text):
    decoder, objects, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        objects.append(value)
    return objects


def proved(what):
    print(f"proved: {what}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (AssertionError, OSError, KeyError) as error:
        sys.exit(f"FAILED: {type(error).__name__}: {error}")
