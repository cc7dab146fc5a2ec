"""Ranking quality of int8: nDCG@10 of `souk embed` in f32 and in int8 on a BEIR folder.

Takes the built program, the model's folder and a data folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv.
Prints both values and their difference in points; exit code 1 if they differ by more than half a point.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy

DEPTH = 10
ALLOWED = 0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--souk", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", default="dev")
    options = parser.parse_args()
    qrels = read_qrels(options.data / "qrels" / f"{options.split}.tsv")
    items = [(row["_id"], passage(row)) for row in rows(options.data / "corpus.jsonl")]
    queries = [(row["_id"], row["text"]) for row in rows(options.data / "queries.jsonl") if row["_id"] in qrels]
    print(f"{len(items)} items, {len(queries)} queries of {options.split}")
    found = {precision: ndcg(options, precision, items, queries, qrels) for precision in ("f32", "int8")}
    lost = found["f32"] - found["int8"]
    print(f"nDCG@10: f32 {found['f32']:.2f}, int8 {found['int8']:.2f}, {abs(lost):.2f} points {'lost' if lost > 0 else 'won'}")
    sys.exit(abs(lost) > ALLOWED)


def rows(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def passage(row):
    return " ".join(part for part in (row.get("title"), row.get("text")) if part)


def read_qrels(path):
    """Gains of judged items by query; level 1 (irrelevant) has gain 0."""
    gains = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        query, item, level = line.split("\t")
        gains.setdefault(query, {})[item] = int(level) - 1
    return {query: judged for query, judged in gains.items() if any(judged.values())}


def ndcg(options, precision, items, queries, qrels):
    item_vectors = embed(options, precision, "item", [text for _, text in items])
    query_vectors = embed(options, precision, "query", [text for _, text in queries])
    ids = [id_ for id_, _ in items]
    values = []
    for (query, _), vector in zip(queries, query_vectors):
        scores = item_vectors @ vector
        top = numpy.argpartition(-scores, DEPTH)[:DEPTH]
        top = top[numpy.argsort(-scores[top], kind="stable")]
        found = [qrels[query].get(ids[at], 0) for at in top]
        ideal = sorted(qrels[query].values(), reverse=True)[:DEPTH]
        values.append(gain(found) / gain(ideal))
    return 100 * sum(values) / len(values)


def gain(grades):
    return sum(grade / math.log2(rank + 2) for rank, grade in enumerate(grades))


def embed(options, precision, kind, texts):
    command = [options.souk, "embed", "--model", options.model, "--precision", precision, "--kind", kind]
    lines = "".join(" ".join(text.split()) + "\n" for text in texts)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return numpy.array([json.loads(line) for line in done.stdout.splitlines()], dtype=numpy.float32)


if __name__ == "__main__":
    main()
