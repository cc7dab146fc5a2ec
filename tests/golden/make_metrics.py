"""Makes `metrics/`: a small data folder, random runs, what ir_measures measures on them, and what scipy says of pairs.

    make_metrics.py [--out DIR] [--seed N]
    make_metrics.py --verify RUN...

`run.trec` has no equal scores. In `tied.trec` most are equal, and only what trec_eval computes is expected: the measures
that ir_measures computes by itself (Judged, RR with a cut) break ties the other way round.

`--verify` instead measures the files of folders that `souk evaluate --judge qrels` wrote, and exits with 1 where a number
of their metrics.json is more than 1e-6 away.
"""

import argparse
import json
import random
import sys
from pathlib import Path

import ir_measures
import numpy
from ir_measures import RR, Judged, P, R, nDCG
from scipy import stats

NUM_ITEMS, NUM_QUERIES, DEPTH = 400, 40, 150
# gains of levels 1 to 4: 2^(level - 1) - 1
GAINS = {1: 0, 2: 1, 3: 3, 4: 7}
MEASURES = {
    f"hitrate@{DEPTH}": R(rel=3) @ DEPTH,
    "goodrate@100": P(rel=3) @ 100,
    "hitrate@100": R(rel=3) @ 100,
    "recall@100": R(rel=3) @ 100,
    "ndcg@10": nDCG(gains=GAINS) @ 10,
    "ndcg_linear@10": nDCG @ 10,
    "ndcg_judged@10": nDCG(gains=GAINS, judged_only=True) @ 10,
    "mrr@10": RR(rel=3) @ 10,
    "judged@100": Judged @ 100,
    "judged@10": Judged @ 10,
}
BY_TREC_EVAL = [name for name in MEASURES if not name.startswith(("mrr", "judged"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verify", type=Path, nargs="+", metavar="RUN")
    options = parser.parse_args()
    if options.verify:
        sys.exit(0 if all([agrees(folder) for folder in options.verify]) else 1)
    chance = random.Random(options.seed)
    folder = options.out / "metrics"
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    items = [f"i{n}" for n in range(NUM_ITEMS)]
    queries = [f"q{n}" for n in range(NUM_QUERIES)]
    qrels = {query: judge(chance, items) for query in queries}
    write_data(folder, items, queries, qrels)
    expected = {
        "depth": DEPTH,
        "run": measured(folder / "run.trec", draw(chance, items, qrels, tied=False), qrels, list(MEASURES)),
        "tied": measured(folder / "tied.trec", draw(chance, items, qrels, tied=True), qrels, BY_TREC_EVAL),
        "pairs": [pair(numpy.random.default_rng(options.seed + num), num) for num in (2, 5, 12, 40, 500)],
    }
    (folder / "expected.json").write_text(json.dumps(expected) + "\n", encoding="utf-8")


def agrees(folder):
    told = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    measures = {name: measure for name, measure in MEASURES.items() if name in told["overall"]}
    measures[f"hitrate@{told['depth']}"] = R(rel=3) @ told["depth"]
    qrels = list(ir_measures.read_trec_qrels(str(folder / "qrels.trec")))
    found = ir_measures.calc_aggregate(measures.values(), qrels, ir_measures.read_trec_run(str(folder / "run.trec")))
    apart = {name: abs(told["overall"][name] - 100 * found[measure]) for name, measure in measures.items()}
    print(f"{folder}: {len(apart)} metrics, at most {max(apart.values()):.1e} from ir_measures")
    return all(difference < 1e-6 for difference in apart.values())


def judge(chance, items):
    """Some queries have no Good item, some have more than ten; one judged item in ten is not in the catalogue."""
    levels = chance.choice([[1, 2], [1, 2, 3, 4], [1, 1, 1, 4], [3, 4]])
    found = chance.sample(items, chance.randint(1, 30))
    return {item if chance.random() > 0.1 else f"gone-{item}": chance.choice(levels) for item in found}


def draw(chance, items, qrels, tied):
    """What is judged better comes out better on the whole; some queries have few hits, one has none."""
    run = {}
    for query in list(qrels)[1:]:
        scores = {item: chance.random() + 0.12 * qrels[query].get(item, 0) for item in items}
        best = sorted(scores, key=scores.get, reverse=True)[: chance.choice([3, 60, DEPTH, DEPTH])]
        apart = lambda rank: round(len(best) - rank + 0.5 * chance.random(), 3)
        run[query] = {item: round(scores[item], 1) if tied else apart(rank) for rank, item in enumerate(best)}
    return run


def write_data(folder, items, queries, qrels):
    lines = lambda rows: "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "corpus.jsonl").write_text(lines({"_id": item, "title": f"item {item}"} for item in items))
    (folder / "queries.jsonl").write_text(lines({"_id": query, "text": f"query {query}"} for query in queries))
    rows = [f"{query}\t{item}\t{level}\n" for query in queries for item, level in qrels[query].items()]
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))


def measured(file, run, qrels, names):
    rows = [(query, item, score) for query, hits in run.items() for item, score in hits.items()]
    random.Random(0).shuffle(rows)
    file.write_text("".join(f"{query} Q0 {item} 0 {score} random\n" for query, item, score in rows))
    evaluator = ir_measures.evaluator([MEASURES[name] for name in names], qrels)
    found = evaluator.calc(list(ir_measures.read_trec_run(str(file))))
    by_query = {}
    for metric in found.per_query:
        by_query.setdefault(str(metric.measure), {})[metric.query_id] = 100 * metric.value
    values = lambda measure: {
        "mean": 100 * found.aggregated[measure],
        "queries": dict(sorted(by_query[str(measure)].items())),
    }
    return {name: values(MEASURES[name]) for name in names} | {f"ordered@{DEPTH}": ordered(run, qrels)}


def ordered(run, qrels):
    """Share of the pairs of different levels whose better item comes first, pair by pair; only queries that have such pairs."""
    values = {}
    for query, levels in sorted(qrels.items()):
        hits = sorted(run.get(query, {}).items(), key=lambda hit: (hit[1], hit[0]), reverse=True)
        rank = {item: at for at, (item, _) in enumerate(hits)}
        pairs = [(a, b) for a in levels for b in levels if levels[a] > levels[b]]
        place = lambda item: rank.get(item, DEPTH)
        right = [1.0 if place(a) < place(b) else 0.5 if place(a) == place(b) else 0.0 for a, b in pairs]
        if pairs:
            values[query] = 100 * sum(right) / len(pairs)
    return {"mean": sum(values.values()) / len(values), "queries": values}


def pair(chance, num):
    """Values of one query after another under two engines, and how likely their difference is by chance."""
    a = chance.integers(0, 101, num).astype(float)
    b = numpy.clip(a + chance.normal(4, 20, num), 0, 100).round(3)
    t = stats.ttest_rel(b, a)
    difference = lambda x, y, axis: numpy.mean(x - y, axis=axis)
    flips = stats.permutation_test(
        (b, a), difference, permutation_type="samples", vectorized=True, n_resamples=50_000, rng=chance
    )
    resampled = stats.bootstrap((b - a,), numpy.mean, n_resamples=20_000, method="percentile", rng=chance)
    return {
        "a": a.tolist(),
        "b": b.tolist(),
        "t": t.statistic,
        "p_t": t.pvalue,
        "p_randomised": flips.pvalue,
        "interval": list(resampled.confidence_interval),
        "error": resampled.standard_error,
    }


if __name__ == "__main__":
    main()
