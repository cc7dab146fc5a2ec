"""Compares ways to fuse both channels, on queries of a BEIR folder's split `train` that are held out of training.

    fusion.py --souk BINARY --model DIR --data DIR --work DIR

Holds out an eighth of the queries, trains the model on the rest (configs/home-depot.toml), and measures BM25 with Lucene's parameters,
the vectors and hybrid search with several settings of `search.hybrid`. Prints nDCG@10, hitrate@100 and MRR@10 of each, and what
`souk fit-fusion` says of weights fitted to the held-out queries. Work that is done is not done again.
"""

import argparse
import hashlib
import json
import subprocess
from pathlib import Path

METRICS = ("ndcg@10", "hitrate@100", "mrr@10")
LUCENE = ("--set", "search.lexical={k1=1.2,typos=false,details=0}")
RANKS = ("{constant=60}", "{constant=20}", "{constant=5}")
SCORES = ("{dense=1,lexical=2}", "{dense=1,lexical=1}", "{dense=2,lexical=1}", "{dense=1,lexical=1,terms=1}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True)
    for name in ("model", "data", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    held = options.work / "held-out"
    hold_out(options.data, held)
    trained = options.work / "trained"
    if not trained.exists():
        run(options, "train", "--config", "configs/home-depot.toml", "--model", options.model, "--data", held, "--out", trained)
    print("| | " + " | ".join(METRICS) + " |\n|---" + "|---" * len(METRICS) + "|")
    measure(options, held, "BM25", "--channel", "lexical")
    measure(options, held, "vectors", "--model", trained)
    for setting in RANKS + SCORES:
        measure(options, held, setting, "--model", trained, "--channel", "hybrid", "--set", f"search.hybrid={setting}")
    print(run(options, "fit-fusion", "--model", trained, "--data", held, "--split", "held", *LUCENE))


def hold_out(data, held, parts=8):
    """A folder with the same items and queries whose split `held` has one of `parts` parts of the queries of `train`."""
    (held / "qrels").mkdir(parents=True, exist_ok=True)
    for name in ("corpus.jsonl", "queries.jsonl"):
        if not (held / name).exists():
            (held / name).symlink_to((data / name).resolve())
    head, *lines = (data / "qrels/train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    is_held = lambda line: int(hashlib.sha256(line.split("\t")[0].encode()).hexdigest(), 16) % parts == 0  # noqa: E731
    for split, wanted in (("held", True), ("train", False)):
        text = head + "".join(line for line in lines if is_held(line) == wanted)
        (held / f"qrels/{split}.tsv").write_text(text, encoding="utf-8")


def measure(options, data, name, *flags):
    out = options.work / "measured" / "".join(letter if letter.isalnum() else "-" for letter in name)
    out.parent.mkdir(exist_ok=True)
    if not out.exists():
        run(options, "evaluate", *flags, *LUCENE, "--data", data, "--split", "held", "--judge", "qrels", "--depth", 1000, "--out", out)
    means = json.loads((out / "metrics.json").read_text())["overall"]
    print(f"| {name} | " + " | ".join(f"{means[metric]:.2f}" for metric in METRICS) + " |", flush=True)


def run(options, *arguments):
    return subprocess.run([options.souk, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
