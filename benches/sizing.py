"""Measures disk and memory of the search service by the number of items and dimensions, beside the formulas of docs/sizing.md.

    sizing.py --souk BINARY [--items N ...] [--dimensions D ...] [--model DIR] [--set NAME=VALUE ...]

Simulated shops with descriptions, and a model of one layer with random weights (or --model): disk and memory do not depend on how
vectors were made. What the process of the first, small shop holds beside its items is the base of the others. Each service is
started twice. The second process answers 200 hybrid searches and is measured. Then as many items change as a new snapshot needs,
and the most that the process holds and stores until it is served is noted. Prints a JSON line for each service, in MiB.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

sys.dont_write_bytecode = True
from service import Server

MODEL = """architecture.hidden_size=384 architecture.num_hidden_layers=1 architecture.num_attention_heads=6
    architecture.intermediate_size=64 max_tokens=16 vocab=2000"""
MIB = 2**20


class Watched(Server):
    """Notes at each request the most anonymous memory and the most bytes in the state folder and its journal so far."""

    def __init__(self, souk, folders, settings):
        self.state, self.most = folders[2], {}
        super().__init__(souk, 8473, folders, settings)

    def ask(self, route, body=None):
        now = {"memory": self.memory(), "disk": size(self.state), "journal": size(self.state / "journal")}
        self.most = {name: max(value, self.most.get(name, 0)) for name, value in now.items()}
        return super().ask(route, body)

    def put(self, items):
        body, head = json.dumps({"items": items}).encode(), {"content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/items", body, head, method="PUT")
        urllib.request.urlopen(request, timeout=600).close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True)
    parser.add_argument("--items", type=int, nargs="+", default=[1_000, 10_000, 50_000, 200_000])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[384, 128])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--set", nargs="+", default=[])
    options, base = parser.parse_args(), None
    for num in options.items:
        with tempfile.TemporaryDirectory() as work:
            shop, model = prepare(options.souk, Path(work), num)
            for width in options.dimensions:
                folders = (options.model or model, shop, Path(work) / f"state-{width}")
                row = measured(options.souk, folders, [f"encoder.dimensions={width}", *options.set])
                base = base or row["memory"] - row["memory of items, formula"]
                row["memory, formula"] = base + row["memory of items, formula"]
                print(json.dumps({name: round(value, 1) for name, value in row.items()}), flush=True)


def prepare(souk, work, num):
    shop, model = work / "shop", work / "model"
    market = ["market", "--items", str(num), "--queries", "300", "--events", "1000", "--out", shop]
    init = ["init", "--config", "configs/scratch-bert.toml", "--data", shop, "--out", model]
    for command in (market, [*init, *(f"--set=scratch.{text}" for text in MODEL.split())]):
        subprocess.run([souk, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return shop, model


def measured(souk, folders, settings):
    items = [json.loads(line) for line in open(folders[1] / "corpus.jsonl", encoding="utf-8")]
    queries = [json.loads(line)["text"] for line in open(folders[1] / "queries.jsonl", encoding="utf-8")]
    # the recall of random weights says nothing
    settings += ["search.min_recall=0", "search.recall=0", "search.bounds.deadline_ms=600000"]
    first = Watched(souk, folders, settings)
    first.stop()
    second = Watched(souk, folders, settings)
    try:
        for query in queries[:200]:
            second.ask("/search", {"query": query, "k": 10, "hybrid": True})
        time.sleep(15)  # jemalloc gives freed pages back after 10 s
        files = re.search(r"RssFile:\s+(\d+)", Path(f"/proc/{second.process.pid}/status").read_text())
        row = disk(second.state) | {"memory": second.memory(), "mapped files": int(files[1]) / 1024}
        row |= {"memory of items, formula": held(items), "first start, most memory": first.most["memory"]}
        # a changed item counts twice, without its old state and with its new one
        return row | changes(second, items[: max(1000, math.ceil(0.05 * len(items))) // 2])
    finally:
        second.stop()


def disk(state):
    """The snapshot by kind of file, and the formula for what depends on the dimensions."""
    snapshot = next(state.glob("generations/*/snapshot-*"))
    about = json.loads((snapshot / "manifest.json").read_text())
    num, rows, width, layers = about["num_items"], about["num_rows"], about["dimensions"], about.get("layers")
    # int8 codes and their steps; up to 32 links and their number, 16 in upper layers
    graph = rows * (width + 4) + 4 * (33 * rows + 17 * sum(layers[1:])) if layers else 0
    lines = size(snapshot / "items.jsonl")
    return {
        "items": num, "dimensions": width, "vectors": rows,
        "snapshot": size(snapshot), "items.jsonl": lines, "lexical": size(snapshot / "lexical"),
        "vectors and graph": sum(file["bytes"] for file in about["files"].values()) / MIB - lines,
        "vectors and graph, formula": (4 * rows * width + 4 * (rows + 1 + num) + graph) / MIB,
    }


def held(items):
    """Formula: anonymous memory for the items of one open index. These shops have neither lists nor long values."""
    columns = sum(column_bytes({**item, "_id": {}, "title": {}, "text": {}}) for item in items)
    slots = 2 ** math.ceil(math.log2(len(items) * 8 / 7))
    ids = sum(8 * math.ceil(len(item["_id"]) / 8) for item in items)
    return (16 * len(items) + 25 * slots + ids + columns) / MIB


def column_bytes(field):
    if isinstance(field, dict):
        return sum(map(column_bytes, field.values()))
    return 8 if isinstance(field, str) else 16


def changes(server, items):
    """Puts these items with other titles, and waits for the snapshot that has them."""
    before, server.most = size(server.state), {}
    for at in range(0, len(items), 500):
        server.put([{**item, "title": f"new {item['title']}"} for item in items[at : at + 500]])
        server.ask("/healthz")
    while not server.metric("souk_index_rebuilds_total"):
        time.sleep(0.05)
    most = {"rebuild, most memory": server.most["memory"], "rebuild, disk / before": server.most["disk"] / before}
    return most | {"changes": len(items), "journal, bytes of a change": server.most["journal"] * MIB / len(items)}


def size(place):
    """Of a folder or a file; files may vanish meanwhile."""
    total = 0
    for file in [place, *place.rglob("*")]:
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total / MIB


if __name__ == "__main__":
    main()
