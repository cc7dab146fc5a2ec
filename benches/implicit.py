"""Checks judgements from a log against the oracle of a simulated shop: do both rank models in the same order?

    implicit.py --souk BINARY --model DIR --work DIR [--searches N]

Makes a shop, derives judgements from its log (with and without the correction for position), trains small models of different
quality, and evaluates them, MiniLM, BM25 and hybrid search on the log's held-out queries: by the oracle and by the log. Prints nDCG@10
of each, and Kendall's tau between the oracle's order and the log's.
Also derives the quality of items, with and without the catalogue's sales figures, and prints Spearman's rank correlation with the
simulated shop's own quality.
"""

import argparse
import json
import sqlite3
import subprocess
from itertools import combinations
from pathlib import Path

# judgements of the same queries: by the oracle, by the log, by the log without the correction for position
ORACLE, LOG, PLAIN = "oracle-test", "log-test", "plain-test"
# steps of supervised training of the small models
STEPS = (0, 40, 120)
# Matryoshka prefixes of MiniLM's vectors: the shorter, the worse
DIMENSIONS = (8, 24, 64, 384)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--items", type=int, default=8000)
    parser.add_argument("--events", type=int, default=400_000)
    options = parser.parse_args()
    shop = options.work / "shop"
    if not shop.exists():
        run(options, "market", "--seed", 7, "--items", options.items, "--queries", 3000, "--events", options.events, "--out", shop)
    run(options, "judgements", "--data", shop, "--prefix", "plain-", "--set", "judgements.position_bias=0", "--set",
        "judgements.prior_clicks=1e12")
    run(options, "judgements", "--data", shop, "--prefix", "log-")
    judge_by_oracle(shop)
    models = candidates(options, shop)
    table = {name: [measure(options, shop, name, flags, split) for split in (ORACLE, LOG, PLAIN)] for name, flags in models.items()}
    print("\n| model | oracle | log | log, not corrected for position |\n|---|---|---|---|")
    for name, values in sorted(table.items(), key=lambda row: -row[1][0]):
        print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in values) + " |")
    truth, corrected, plain = zip(*table.values())
    print(f"\nKendall's tau with the oracle's order: {tau(truth, corrected):.2f}, not corrected for position {tau(truth, plain):.2f}")
    for name, fields in (("log and sales figures", True), ("log alone", False)):
        correlation, num = quality(options, shop, fields)
        print(f"Spearman's correlation of quality, {name}: {correlation:.2f} ({num} items)")


def judge_by_oracle(shop):
    """Writes the oracle's judgements of the queries that the log has in its held-out days."""
    queries = {line.split("\t")[0] for line in open(shop / f"qrels/{LOG}.tsv", encoding="utf-8")}
    judged = open(shop / "qrels/train.tsv", encoding="utf-8")
    (shop / f"qrels/{ORACLE}.tsv").write_text("".join(line for line in judged if line.split("\t")[0] in queries), encoding="utf-8")


def candidates(options, shop):
    """Flags of `souk evaluate` by display name."""
    models = {}
    for dimensions in DIMENSIONS:
        models[f"MiniLM, {dimensions} dimensions"] = ["--model", options.model, "--set", f"encoder.dimensions={dimensions}"]
    base = options.work / "base"
    if not base.exists():
        run(options, "init", "--config", "configs/scratch-bert.toml", "--set", "scratch.architecture.num_hidden_layers=2",
            "--data", shop, "--out", base)
    for steps in STEPS:
        trained = options.work / f"sft-{steps}"
        if steps and not trained.exists():
            run(options, "train", "--config", "configs/sft-market.toml", "--set", f"train.max_steps={steps}", "--model", base,
                "--data", shop, "--out", trained)
        models[f"small, {steps} steps"] = ["--model", trained if steps else base]
    hybrids = {f"hybrid of BM25 and {name}": [*flags, "--channel", "hybrid"] for name, flags in models.items()}
    titles = ["--channel", "lexical", "--set", "encoder.item_text={title}"]
    return {"BM25": ["--channel", "lexical"], "BM25 of titles": titles, **models, **hybrids}


def measure(options, shop, name, flags, split):
    """nDCG@10."""
    out = options.work / f"{name.replace(' ', '').replace(',', '-')}-{split}"
    subprocess.run(["rm", "-rf", out], check=True)
    done = run(options, "--json", "evaluate", *flags, "--data", shop, "--split", split, "--judge", "qrels", "--depth", 200,
               "--out", out)
    return json.loads(done)["overall"]["ndcg@10"]


def quality(options, shop, with_fields):
    """Spearman's correlation of the items' quality from the log with the catalogue's, and the number of items."""
    data = shop if with_fields else options.work / "bare"
    items = [json.loads(line) for line in open(shop / "corpus.jsonl", encoding="utf-8")]
    if not with_fields:
        data.mkdir(exist_ok=True)
        kept = lambda item: {name: item[name] for name in ("_id", "title", "text", "brand") if name in item}  # noqa: E731
        lines = [json.dumps(kept(item)) + "\n" for item in items]
        (data / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
    database = options.work / f"quality-{with_fields}.db"
    database.unlink(missing_ok=True)
    run(options, "judgements", "--data", data, "--from", shop / "logs.ndjson", "--prefix", "quality-", "--quality",
        "--set", f"store.database=sqlite:{database}")
    known = dict(sqlite3.connect(database).execute("SELECT item, score FROM quality"))
    pairs = [(known[item["_id"]], item["quality"]) for item in items if item["_id"] in known]
    return spearman(*zip(*pairs)), len(pairs)


def spearman(a, b):
    """Pearson's correlation of the ranks; equal values share their mean rank."""
    a, b = ranks(a), ranks(b)
    middle = (len(a) - 1) / 2
    dot = lambda a, b: sum((x - middle) * (y - middle) for x, y in zip(a, b))  # noqa: E731
    return dot(a, b) / (dot(a, a) * dot(b, b)) ** 0.5


def ranks(values):
    order = sorted(range(len(values)), key=lambda at: values[at])
    found, at = [0.0] * len(values), 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for place in order[at:end]:
            found[place] = (at + end - 1) / 2
        at = end
    return found


def tau(a, b):
    """Concordant less discordant pairs, of all pairs."""
    pairs = list(combinations(range(len(a)), 2))
    sign = lambda x: (x > 0) - (x < 0)  # noqa: E731
    return sum(sign(a[i] - a[j]) * sign(b[i] - b[j]) for i, j in pairs) / len(pairs)


def run(options, *arguments):
    done = subprocess.run([options.souk, *map(str, arguments)], check=True, capture_output=True, text=True)
    return done.stdout


if __name__ == "__main__":
    main()
