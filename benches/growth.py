"""Benchmarks how the search service's cost grows with the size of the catalogue, on simulated shops.

    growth.py --souk BINARY --load BENCH --model DIR [--sizes N ...] [--seconds S] [--svg FILE]

For each size: time of the first start (encodes all titles in int8 and indexes them) and of a second one, disk and memory, recall as
measured by the build, and latency on one connection for four kinds of search: vector, vector with a filter, text, text with hybrid
search.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
from service import Server, load

PORT = 8471
QUERIES = 1000
WAYS = ("vector", "vector, filtered", "words", "words, hybrid")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True)
    parser.add_argument("--load", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as work:
            rows.append(measured(options, size, Path(work)))
        print(json.dumps(rows[-1]), flush=True)
    table(rows)
    if options.svg:
        plot(rows, options.svg)


def measured(options, size, work):
    shop, state = work / "shop", work / "state"
    command = [options.souk, "market", "--items", str(size), "--queries", str(QUERIES), "--events", "1000", "--out", shop]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    titles_alone(shop / "corpus.jsonl")
    start = lambda: Server(options.souk, PORT, (options.model, shop, state), ["model.precision=int8"])
    first = start()
    encoding = first.metric("souk_encoder_batch_seconds_sum")
    first.stop()
    second = start()
    answers, file = {}, work / "bodies"
    for way, bodies in asked(second, shop).items():
        file.write_text("".join(json.dumps(body) + "\n" for body in bodies))
        answers[way] = load(options.load, PORT, file, 1, options.seconds)
    anonymous = second.memory()
    second.stop()
    record = json.loads(next(state.glob("generations/*/generation.json")).read_text())
    disk = sum(file.stat().st_size for file in state.rglob("*") if file.is_file())
    return {
        "items": size, "first start": first.seconds, "encoding": encoding, "start": second.seconds,
        "disk": disk / 2**20, "memory": anonymous, "recall": record["recall"], "answers": answers,
    }


def titles_alone(corpus):
    """Removes the descriptions: encoding a million of them takes half an hour and does not affect the index."""
    items = (json.loads(line) for line in open(corpus, encoding="utf-8"))
    short = corpus.with_name("short")
    with open(short, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(item | {"text": ""}, ensure_ascii=False) + "\n" for item in items)
    short.replace(corpus)


def asked(server, shop):
    texts = [json.loads(line)["text"] for line in open(shop / "queries.jsonl", encoding="utf-8")][:QUERIES]
    vectors = []
    for at in range(0, len(texts), 100):
        vectors += json.loads(server.ask("/embed", {"inputs": texts[at : at + 100], "prompt_name": "query"}))
    filter = {"must": [commonest(server)]}
    return {
        "vector": [{"vector": vector, "k": 10} for vector in vectors],
        "vector, filtered": [{"vector": vector, "k": 10, "filter": filter} for vector in vectors],
        "words": [{"query": text, "k": 10} for text in texts],
        "words, hybrid": [{"query": text, "k": 10, "hybrid": True} for text in texts],
    }


def commonest(server):
    """A typical filter: the most common value of any field, among values that fewer than 60 % of the items have."""
    answer = json.loads(server.ask("/fields"))
    most = answer["num_items"] * 0.6
    values = [(value["count"], field["name"], value["value"]) for field in answer["fields"] for value in field["values"]]
    count, field, value = max(value for value in values if value[0] < most)
    print(f"filter: {field} is {value}, which {count} of {answer['num_items']} items have", flush=True)
    return {"field": field, "eq": value}


def table(rows):
    print("| items | first start, s | of it encoding | start, s | on disk, MiB | memory, MiB | recall@10 |", end="")
    print("".join(f" {way}, ms |" for way in WAYS))
    print("|---" * (7 + len(WAYS)) + "|")
    for row in rows:
        times = "".join(f" {row['answers'][way]['p50']:.2f}, {row['answers'][way]['p99']:.2f} |" for way in WAYS)
        print(f"| {row['items']:,} | {row['first start']:.0f} | {row['encoding']:.0f} | {row['start']:.1f} | "
              f"{row['disk']:.0f} | {row['memory']:.0f} | {row['recall']:.3f} |{times}")


def plot(rows, file):
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(9, 6.5), layout="constrained")
    sizes = [row["items"] for row in rows]
    lines = [
        ("seconds", {name: [row[name] for row in rows] for name in ("first start", "encoding", "start")}),
        ("MiB", {"on disk": [row["disk"] for row in rows], "memory": [row["memory"] for row in rows]}),
        ("p99, ms", {way: [row["answers"][way]["p99"] for row in rows] for way in WAYS}),
        ("recall@10", {"against brute force": [row["recall"] for row in rows]}),
    ]
    for panel, (unit, named) in zip(panels.flat, lines):
        for name, values in named.items():
            panel.plot(sizes, values, marker="o", label=name)
        panel.set(xscale="log", xlabel="items", ylabel=unit)
        panel.set(**({"ylim": (0.9, 1.002)} if unit.startswith("recall") else {"yscale": "log"}))
        panel.grid(alpha=0.3)
        panel.legend(frameon=False)
    figure.savefig(file)


if __name__ == "__main__":
    main()
