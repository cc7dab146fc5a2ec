"""Benchmarks queries end to end, text to hits over HTTP: Souk against sentence-transformers and faiss behind uvicorn.

    served.py --souk BINARY --load BENCH --model DIR --data FOLDER [--seconds S] [--rounds N]

All servers run at the same time and are measured in turn with the same queries; Souk's cache is off. Needs a Python with the imports
of benches/server.py. Figures are medians over rounds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
from service import Server, load

PEER, SOUK, CODED = 8472, 8473, 8474
CONNECTIONS = (1, 2, 4, 8)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True)
    parser.add_argument("--load", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        bodies = work / "bodies"
        texts = [json.loads(line)["text"] for line in open(options.data / "queries.jsonl", encoding="utf-8")]
        bodies.write_text("".join(json.dumps({"query": text, "k": 10}) + "\n" for text in texts))
        rows = measured(options, work, bodies)
    print("| connections | sentence-transformers + faiss | Souk, f32 | ratio | Souk, int8 | ratio |")
    print("|---" * 6 + "|")
    for connections, row in rows.items():
        peer, souk, coded = (f"{side['rate']:.0f}/s, p99 {side['p99']:.1f} ms" for side in row)
        ratios = [side["rate"] / row[0]["rate"] for side in row[1:]]
        print(f"| {connections} | {peer} | {souk} | {ratios[0]:.1f} | {coded} | {ratios[1]:.1f} |")


def measured(options, work, bodies):
    command = [sys.executable, Path(__file__).with_name("server.py"), "--model", options.model, "--data", options.data]
    peer = subprocess.Popen([*command, "--port", str(PEER)], stdout=subprocess.PIPE, text=True)
    if not peer.stdout.readline():
        raise SystemExit("the peer did not start")
    side = lambda port, name, *settings: Server(
        options.souk, port, (options.model, options.data, work / name), settings)
    # as for the peer: no rejected requests, no cache
    alike = ("search.bounds.slowdown=1000", "store.cache_bytes=0")
    servers = [side(SOUK, "f32", *alike), side(CODED, "int8", *alike, "model.precision=int8", "index.codes=true")]
    rows = {}
    for connections in CONNECTIONS:
        rounds = [
            [load(options.load, port, bodies, connections, options.seconds) for port in (PEER, SOUK, CODED)]
            for _ in range(options.rounds)
        ]
        medians = lambda sides: {key: statistics.median(side[key] for side in sides) for key in sides[0]}
        rows[connections] = [medians(sides) for sides in zip(*rounds)]
    peer.terminate()
    for server in servers:
        server.stop()
    return rows


if __name__ == "__main__":
    main()
