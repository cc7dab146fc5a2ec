"""The requests of docs/integrations.md, and exported files in another engine, against a running search service.

Sends the page's requests to the service. Fills in the templates of OpenSearch's connector and Elasticsearch's inference endpoint as those
engines document it. Loads an export with Qdrant's client in its local mode. Prints a line for each proof.
"""

import argparse
import json
import re
import sys
import urllib.request
from pathlib import Path

import numpy
from qdrant_client import QdrantClient, models

PAGE = Path(__file__).resolve().parents[4] / "docs/integrations.md"
QUERIES = ["red lamp", "oak lamp number 7", 'a "quoted" query']
TOLERANCE = 1e-5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base_url", metavar="BASE_URL")
    parser.add_argument("qdrant", metavar="QDRANT", type=Path, help="folder of `souk export-vectors --to qdrant`")
    options = parser.parse_args()
    base = options.base_url.rstrip("/")
    blocks = blocks_of(PAGE.read_text(encoding="utf-8"))
    expected = vectors_of(ask(f"{base}/v1/embeddings", request(QUERIES)))
    prove_requests(base, blocks)
    prove_connector(base, blocks["connector: opensearch"], expected)
    prove_endpoint(base, blocks["inference: elasticsearch"], expected)
    prove_solr_model(base, blocks["model: solr"])
    prove_qdrant(base, options.qdrant, blocks["body: qdrant"], expected)


def blocks_of(text):
    """JSON blocks by the mark before them; a mark may stand at one block only."""
    found = re.findall(r"<!-- (\w+: [^>]*) -->\n```json\n(.*?)```", text, re.S)
    assert len({mark for mark, _ in found}) == len(found), "a mark stands at two blocks"
    return {mark: json.loads(body) for mark, body in found}


def request(texts):
    return {"input": texts, "model": "served", "prompt_name": "query"}


def ask(url, body, headers=()):
    sent = urllib.request.Request(url, json.dumps(body).encode() if isinstance(body, dict) else body, dict(headers))
    with urllib.request.urlopen(sent, timeout=30) as answer:
        return json.load(answer)


def vectors_of(answer):
    return numpy.array([entry["embedding"] for entry in answer["data"]])


def prove_requests(base, blocks):
    for mark, body in blocks.items():
        if mark.startswith("request: "):
            _, method, path = mark.split()
            assert method == "POST"
            answer = ask(f"{base}{path}", body)
            vectors = vectors_of(answer) if isinstance(answer, dict) else numpy.array(answer)
            assert abs(numpy.linalg.norm(vectors[0]) - 1) < TOLERANCE
            proved(f"the page's request to {path} gives a vector")


def prove_connector(base, connector, expected):
    """OpenSearch: `${parameters.…}` is replaced, and the preprocessing function makes `input` a JSON list of texts."""
    action = connector["actions"][0]
    parameters = connector["parameters"] | {"endpoint": base.split("://")[1], "input": json.dumps(QUERIES)}
    fill = lambda text: re.sub(r"\$\{parameters\.(\w+)\}", lambda found: parameters[found[1]], text)
    assert action["pre_process_function"] == "connector.pre_process.openai.embedding"
    assert action["post_process_function"] == "connector.post_process.openai.embedding"
    answer = ask(fill(action["url"]), fill(action["request_body"]).encode(), {"Content-Type": "application/json"})
    same(vectors_of(answer), expected)
    proved("OpenSearch's connector asks for the vectors of queries")


def prove_endpoint(base, endpoint, expected):
    """Elasticsearch: the service `openai` sends `input` and `model` to `url`; it has no field for a prompt."""
    settings = endpoint["service_settings"]
    path = re.fullmatch(r"http://souk:8080(/.*)", settings["url"])[1]
    vectors = vectors_of(ask(f"{base}{path}", {"input": QUERIES, "model": settings["model_id"]}))
    assert vectors.shape == expected.shape
    proved("Elasticsearch's inference endpoint gets a vector for each query")


def prove_solr_model(base, model):
    """langchain4j's client adds `/embeddings` to the base URL."""
    parameters = model["params"]
    path = re.fullmatch(r"http://souk:8080(/.*)", parameters["baseUrl"])[1]
    answer = ask(f"{base}{path}/embeddings", {"model": parameters["modelName"], "input": QUERIES[:1]})
    assert len(answer["data"]) == 1
    proved("the address of Solr's model is a route")


def prove_qdrant(base, folder, query, expected):
    about = json.loads((folder / "souk.json").read_text())
    definition = json.loads((folder / "collection.json").read_text())
    client = QdrantClient(":memory:")
    vectors = {name: models.VectorParams(**sizes) for name, sizes in definition["vectors"].items()}
    client.create_collection("items", vectors_config=vectors)
    for file in about["files"]:
        points = json.loads((folder / file).read_text())["points"]
        client.upsert("items", [models.PointStruct(**point) for point in points])
    assert client.count("items").count == about["num_items"]
    for text, vector in zip(QUERIES, expected):
        # as the page's request, with the query's vector and as many hits as are compared
        asked = query | {"query": vector.tolist(), "limit": 5}
        hits = client.query_points("items", **asked).points
        found = ask(f"{base}/search", {"query": text, "k": 5, "hybrid": False})["hits"]
        assert [hit.payload["_id"] for hit in hits] == [hit["id"] for hit in found], (hits, found)
        same([hit.score for hit in hits], [hit["score"] for hit in found])
        assert all(hit.payload["souk_model"] == about["model"] for hit in hits)
    proved(f"Qdrant's client loads {about['num_items']} points and finds what the service finds")


def same(found, expected):
    numpy.testing.assert_allclose(found, expected, atol=TOLERANCE)


def proved(what):
    print(f"proved: {what}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (AssertionError, OSError) as error:
        sys.exit(f"FAILED: {type(error).__name__}: {error}")
