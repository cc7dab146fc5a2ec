"""Measures what reranking costs: latency of hybrid search without and with a version's reranker, by depth.

    rerank.py --souk BINARY --load BENCH --model DIR --data FOLDER [--depths 0 10 20 50] [--connections 1 2] [--seconds S] [--rounds N]

MODEL has a reranker (`souk fit-fusion --reranker`), BENCH is the built bench `load` of souk-search. One service in int8 without cache
answers the data folder's queries; the depths take turns. Figures are medians over rounds.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
from service import Server, load

PORT = 8475


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("souk", "load"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("model", "data"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--depths", type=int, nargs="+", default=(0, 10, 20, 50))
    parser.add_argument("--connections", type=int, nargs="+", default=(1, 2))
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        rows = measured(options, Path(work))
    print("| connections | hits reranked | p50 ms | p99 ms | answers/s |")
    print("|---" * 5 + "|")
    for (connections, depth), row in rows.items():
        print(f"| {connections} | {depth} | {row['p50']:.1f} | {row['p99']:.1f} | {row['rate']:.0f} |")


def measured(options, work):
    texts = [json.loads(line)["text"] for line in open(options.data / "queries.jsonl", encoding="utf-8")]
    for depth in options.depths:
        rerank = {"depth": depth} if depth else False
        lines = (json.dumps({"query": text, "k": 10, "hybrid": True, "rerank": rerank}) + "\n" for text in texts)
        (work / f"bodies-{depth}").write_text("".join(lines), encoding="utf-8")
    settings = ("search.bounds.slowdown=1000", "store.cache_bytes=0", "model.precision=int8", "index.codes=true")
    server = Server(options.souk, PORT, (options.model, options.data, work / "state"), settings)
    answer = json.loads(server.ask("/search", {"query": texts[0], "hybrid": True}))
    if not answer.get("reranked"):
        raise SystemExit(f"{options.model} has no reranker, or it took too long")
    rows = {}
    for connections in options.connections:
        sides = {depth: [] for depth in options.depths}
        for _ in range(options.rounds):
            for depth, rounds in sides.items():
                rounds.append(load(options.load, PORT, work / f"bodies-{depth}", connections, options.seconds))
        for depth, rounds in sides.items():
            rows[connections, depth] = {key: statistics.median(round[key] for round in rounds) for key in rounds[0]}
    server.stop()
    return rows


if __name__ == "__main__":
    main()
