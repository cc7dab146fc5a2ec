"""Makes `bm25/expected.json`: what bm25s scores on the items of docs/demo, with the terms that Souk's analyser gives.

    make_bm25.py --lexical PROGRAM [--out DIR] [--seed N]

Takes the built bench benches/lexical.rs and a seed, which draws the queries from the items' words. Each hit is a row of
the catalogue and its score, best first, equal scores in the order of the rows.
"""

import argparse
import json
import random
import subprocess
from pathlib import Path

import bm25s

ROOT = Path(__file__).parents[2]
NUM_QUERIES = 60
# sizes, plurals, repeated terms, what no item has, and nothing
QUERIES = ["oak desk", "desks with drawers", "120x60 cm", 'lamp 12"', "usb-c usb c cable", "chair chair", "xylophone desk", "the"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lexical", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with open(ROOT / "docs/demo/corpus.jsonl", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    texts = [" ".join(part for part in (row.get("title"), row.get("text")) if part) for row in rows]
    queries = QUERIES + draw(texts, random.Random(options.seed))
    items, asked = terms(options.lexical, texts), terms(options.lexical, queries)
    retriever = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    retriever.index(items, show_progress=False)
    expected = [
        {"query": query, "terms": found, "hits": hits(retriever, found)} for query, found in zip(queries, asked)
    ]
    folder = options.out / "bm25"
    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in expected)
    (folder / "expected.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def draw(texts, chance):
    """One to four words of one item, and now and then a word of another."""
    queries = []
    while len(queries) < NUM_QUERIES:
        words = chance.choice(texts).split()
        drawn = chance.sample(words, min(len(words), chance.randint(1, 4)))
        if chance.random() < 0.3:
            drawn.append(chance.choice(chance.choice(texts).split()))
        queries.append(" ".join(drawn))
    return queries


def hits(retriever, query):
    if not any(term in retriever.vocab_dict for term in query):
        return []
    scores = retriever.get_scores(query)
    order = sorted((row for row in range(len(scores)) if scores[row] > 0), key=lambda row: (-scores[row], row))
    return [[row, round(float(scores[row]), 6)] for row in order]


def terms(lexical, texts):
    lines = "".join(" ".join(text.split()) + "\n" for text in texts)
    done = subprocess.run([lexical, "terms"], input=lines, capture_output=True, text=True, check=True, encoding="utf-8")
    return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    main()
