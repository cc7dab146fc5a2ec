"""Benchmarks Souk's BM25 against bm25s on the same terms: ranking and speed.

Takes the built `lexical` bench and a data folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv. Both use Souk's terms;
bm25s gets them as lists, while Souk's time includes analysing the text. Ties are in the order of the catalogue. Prints nDCG@10
and Hitrate@100 of both, of Souk with typo tolerance, and queries per second; also the time of a query with the fusion of hybrid
search, without that of its vectors. Exit code 1 if a metric differs by more than 1e-3 or Souk is less than twice as fast as bm25s
with its default backend (its compiled backend, numba, is also shown).
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bm25s
import numpy

DEPTH = 100
ALLOWED = 1e-3
LEAST_RATIO = 2
MEASURED_SECONDS = 2
GOOD = 3
FUSED = (("fused with 100 hits of the vectors", "fused_one_thread"), ("with details", "details_fused_one_thread"),
         ("by fitted weights", "fitted_one_thread"),
         ("with translations of words", "translated_one_thread"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lexical", type=Path, required=True, help="the built bench benches/lexical.rs")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", default="dev")
    options = parser.parse_args()
    qrels = read_qrels(options.data / "qrels" / f"{options.split}.tsv")
    items = rows(options.data / "corpus.jsonl")
    queries = [row for row in rows(options.data / "queries.jsonl") if row["_id"] in qrels]
    ids = [row["_id"] for row in items]
    print(f"{options.data.name}: {len(items)} items, {len(queries)} queries of {options.split}")

    with tempfile.TemporaryDirectory() as out:
        command = [options.lexical, "search", options.data, options.split, str(DEPTH), out]
        subprocess.run(command, check=True)
        speed = json.loads((Path(out) / "speed.json").read_text())
        hits = [row["rows"] for row in rows(Path(out) / "hits.jsonl")]
        typos = [row["rows"] for row in rows(Path(out) / "typos.jsonl")]
    texts = terms(options.lexical, [passage(row) for row in items])
    asked = terms(options.lexical, [row["text"] for row in queries])
    retriever = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    start = time.perf_counter()
    retriever.index(texts, show_progress=False)
    build = time.perf_counter() - start
    expected = [best(retriever.get_scores(query), DEPTH) if known(retriever, query) else [] for query in asked]

    judged = [qrels[row["_id"]] for row in queries]
    ours, theirs = measures(hits, judged, ids), measures(expected, judged, ids)
    for name, value in (("souk", ours), ("bm25s", theirs), ("souk, typos", measures(typos, judged, ids))):
        print(f"  {name:12} nDCG@10 {100 * value[0]:.3f}  Hitrate@10 {100 * value[1]:.3f}  Hitrate@100 {100 * value[2]:.3f}")
    same = sum(list(a) == list(b) for a, b in zip(hits, expected))
    print(f"  {same} of {len(queries)} queries have the same {DEPTH} rows in the same order")
    print(f"  build: souk {speed['build_s']:.2f} s including reading and analysing the file, bm25s {build:.2f} s from lists of terms")
    slowest = compare_speed(speed, texts, asked)
    different = any(abs(a - b) > ALLOWED for a, b in zip(ours, theirs))
    sys.exit(different or slowest < LEAST_RATIO)


def compare_speed(speed, texts, asked):
    print("  queries/s (CPU time on one thread, wall time on all threads):")
    print(f"  souk: {speed['one_thread']:.0f} on one thread ({speed['typos_one_thread']:.0f} with typos, "
          f"{speed['details_one_thread']:.0f} with details too), "
          f"{speed['all_threads']:.0f} on all")
    fused = [(name, speed[key]) for name, key in FUSED if key in speed]
    times = ", ".join(f"{name} {1e6 / rate:.0f}" for name, rate in [("alone", speed["typos_one_thread"]), *fused])
    print(f"  souk with typos, microseconds a query on one thread: {times}")
    ratios = []
    for backend in ("numpy", "numba"):
        try:
            retriever = bm25s.BM25(method="lucene", k1=1.2, b=0.75, backend=backend)
            retriever.index(texts, show_progress=False)
            one, several = rate(retriever, asked, 0, time.process_time), rate(retriever, asked, -1, time.perf_counter)
        except ImportError:
            print(f"  skipped: {backend} is not installed for bm25s")
            continue
        times = [speed["one_thread"] / one, speed["all_threads"] / several]
        ratios += times if backend == "numpy" else []
        print(f"  bm25s, {backend}: {one:.0f} on one thread ({times[0]:.1f} times), {several:.0f} on all ({times[1]:.1f} times)")
    return min(ratios)


def rate(retriever, asked, threads, seconds):
    """Queries per second over MEASURED_SECONDS, after one warm-up round in which numba compiles."""
    asked = [query for query in asked if known(retriever, query)]
    search = lambda: retriever.retrieve(asked, k=DEPTH, n_threads=threads, show_progress=False)
    search()
    start, rounds = seconds(), 0
    while rounds == 0 or seconds() - start < MEASURED_SECONDS:
        search()
        rounds += 1
    return rounds * len(asked) / (seconds() - start)


def known(retriever, query):
    return any(term in retriever.vocab_dict for term in query)


def best(scores, depth):
    """Rows with a positive score, best first, ties in row order."""
    top = numpy.argsort(-scores, kind="stable")[:depth]
    return [int(row) for row in top if scores[row] > 0]


def measures(found, judged, ids):
    """nDCG@10, Hitrate@10 and Hitrate@100: the mean share of a query's Good items in the top 10 or 100."""
    gains, shares, deep = [], [], []
    for hits, levels in zip(found, judged):
        hits = [ids[row] for row in hits]
        ideal = gain(sorted((level - 1 for level in levels.values()), reverse=True)[:10])
        if ideal:
            gains.append(gain([levels.get(hit, 1) - 1 for hit in hits[:10]]) / ideal)
        good = {item for item, level in levels.items() if level >= GOOD}
        if good:
            shares.append(len(good.intersection(hits[:10])) / len(good))
            deep.append(len(good.intersection(hits[:100])) / len(good))
    return tuple(sum(values) / max(len(values), 1) for values in (gains, shares, deep))


def gain(grades):
    return sum(grade / math.log2(rank + 2) for rank, grade in enumerate(grades))


def rows(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def passage(row):
    return " ".join(part for part in (row.get("title"), row.get("text")) if part)


def terms(lexical, texts):
    lines = "".join(" ".join(text.split()) + "\n" for text in texts)
    done = subprocess.run([lexical, "terms"], input=lines, capture_output=True, text=True, check=True, encoding="utf-8")
    return [json.loads(line) for line in done.stdout.splitlines()]


def read_qrels(path):
    """Levels of judged items by query."""
    levels = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        query, item, level = line.split("\t")
        levels.setdefault(query, {})[item] = int(level)
    return levels


if __name__ == "__main__":
    main()
