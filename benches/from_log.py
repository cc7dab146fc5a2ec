"""Measures by raters' labels what `souk start` learns from a log alone (the tables of docs/your-shop.md).

    from_log.py --souk BINARY --model DIR --items FILE --log FILE --data RATED --work DIR [--split dev] [--precision int8]

RATED is a BEIR folder with the same catalogue and judgements that the log does not contain. Runs `souk start` on the two files, trains
the same model on seven eighths of RATED's own `train` judgements and fits hybrid search to the rest, and measures both on RATED's
SPLIT, with vectors alone and as hybrid search, beside bm25s, Souk's BM25 and the untrained model with default weights. Prints nDCG@10
and hitrate@100 of each, the share of the raters' gain that the log brought, and paired tests against what `souk start` serves. Work
that is done is not done again.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

import bm25s

DEPTH = 1000
HELD_OUT = 0.125
METRICS = ("ndcg@10", "hitrate@100")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True)
    parser.add_argument("--model", type=Path, required=True)
    for name in ("items", "log", "data", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--split", default="dev")
    parser.add_argument("--precision", default="int8", help="of the measured models: int8, as served, or f32")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    shop, rated = options.work / "shop", options.work / "rated"
    # where `souk start` keeps its models' vectors of the catalogue, in the precision that it measures in
    vectors = ("--precision", options.precision, "--vectors", shop / "vectors")
    finished = options.work / "finished"
    if not finished.exists():
        began = time.time()
        run(options, "start", "--items", options.items, "--log", options.log, "--model", options.model, "--out", shop, "--once")
        print(f"souk start took {time.time() - began:.0f} s")
        finished.touch()
    if not rated.exists():
        held_out = ("--set", f"train.held_out={HELD_OUT}", "--data", options.data)
        run(options, "train", "--config", "configs/home-depot.toml", "--model", options.model, *held_out, "--out", rated)
        run(options, "fit-fusion", "--model", rated, "--split", "train", *vectors, *held_out)
    print("\nby the log's newest days:")
    show({name: overall(shop / f"measured/{name}-test") for name in ("BM25", "untrained", "supervised", "r-grpo")})
    print(f"\nby raters, split {options.split}:")
    table = {"BM25 of bm25s": measure(options, "bm25s", "--run", bm25s_run(options)), "Souk's BM25": measure(options, "bm25", "--channel", "lexical")}
    models = {
        "untrained": options.model, "fitted": shop / "models/untrained", "supervised": shop / "models/supervised",
        "served": shop / "served", "raters": rated,
    }
    for name, model in models.items():
        for kind, flags in (("vectors", vectors), ("hybrid", ("--channel", "hybrid", *vectors))):
            table[f"{name}, {kind}"] = measure(options, f"{name}-{kind}", "--model", model, *flags)
    show(table)
    for kind in ("vectors", "hybrid"):
        base, served, best = (table[f"{name}, {kind}"] for name in ("untrained", "served", "raters"))
        shares = [f"{100 * (b - a) / (c - a):.0f} % of {metric}" for a, b, c, metric in zip(base, served, best, METRICS)]
        print(f"of the gain by raters' labels, the log brought with {kind}: {', '.join(shares)}")
    for first, others in (
        ("served-hybrid", ("bm25s", "bm25", "untrained-vectors", "untrained-hybrid", "fitted-hybrid", "supervised-hybrid")),
        ("served-vectors", ("untrained-vectors", "supervised-vectors")),
    ):
        runs = [options.work / "measured" / name for name in (first, *others)]
        lines = run(options, "compare", *runs, "--metrics", ",".join(METRICS)).splitlines()
        print("\n" + "\n".join(line for line in lines if "against" in line or line.startswith("overall")))


def measure(options, name, *flags):
    out = options.work / "measured" / name
    out.parent.mkdir(exist_ok=True)
    if not out.exists():
        run(options, "evaluate", *flags, "--data", options.data, "--split", options.split, "--judge", "qrels", "--depth", DEPTH,
            "--name", name, "--out", out)
    return overall(out)


def overall(run):
    means = json.loads((run / "metrics.json").read_text())["overall"]
    return [means[metric] for metric in METRICS]


def show(table):
    print(f"| | {' | '.join(METRICS)} |\n|---|---|---|")
    for name, values in table.items():
        print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in values) + " |")


def bm25s_run(options):
    """A TREC run of bm25s with its defaults and its own tokenizer."""
    file = options.work / "bm25s.trec"
    if file.exists():
        return file
    items, queries = rows(options.data / "corpus.jsonl"), rows(options.data / "queries.jsonl")
    with open(options.data / "qrels" / f"{options.split}.tsv", encoding="utf-8") as lines:
        judged = {line.split("\t")[0] for line in lines}
    queries = [query for query in queries if query["_id"] in judged]
    tokens = lambda texts: bm25s.tokenize(texts, stopwords="en", show_progress=False)  # noqa: E731
    retriever = bm25s.BM25()
    retriever.index(tokens([f"{item.get('title', '')} {item.get('text', '')}".strip() for item in items]), show_progress=False)
    found, scores = retriever.retrieve(tokens([query["text"] for query in queries]), k=DEPTH, show_progress=False)
    with open(file, "w", encoding="utf-8") as out:
        for query, hits, of in zip(queries, found, scores):
            for rank, (row, score) in enumerate(zip(hits, of), 1):
                if score > 0:
                    out.write(f"{query['_id']} Q0 {items[row]['_id']} {rank} {score} bm25s\n")
    return file


def rows(file):
    with open(file, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def run(options, *arguments):
    done = subprocess.run([options.souk, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"souk {' '.join(map(str, arguments))}: {done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
