"""Benchmarks a relevance model against sentence-transformers' CrossEncoder: training, and judging with the same weights.

    relevance.py --souk BINARY --model DIR --data DIR [--pairs N] [--rounds N]

DATA is a BEIR folder with judged pairs in qrels/train.tsv. Both train one epoch on the same number of them, from the same encoder, 32 pairs
a step for sentence-transformers and 1,792 tokens for Souk, which are as many pairs of a simulated shop.
Souk's time includes its calibration on held-out queries; sentence-transformers computes dropout, which Souk does not. Judging: one
query with 50 items per request, over HTTP for Souk, in f32 and int8, and `predict` with its best batch size for the other. Prints
how many levels int8 and f32 agree on.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
from sft import read_texts  # noqa: E402

ITEMS = 50
BATCH = 32
BATCH_TOKENS = 1792


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    with tempfile.TemporaryDirectory() as work:
        options.data = thinned(options.data, Path(work) / "data", options.pairs)
        judge = train(options, Path(work))
        judging(options, judge)


def thinned(data, out, count):
    """A data folder with about `count` judged pairs of all queries, so that few are held out."""
    (out / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl"):
        (out / name).symlink_to((data / name).resolve())
    head, *lines = (data / "qrels" / "train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (out / "qrels" / "train.tsv").write_text(head + "".join(lines[:: max(1, len(lines) // count)]), encoding="utf-8")
    return out


def train(options, work):
    """Prints pairs/s of both; returns Souk's model."""
    rates = {"CrossEncoder": [], "Souk": []}
    for round_ in range(max(1, options.rounds - 1)):
        out = work / f"judge-{round_}"
        command = [options.souk, "relevance", "train", "--model", options.model, "--data", options.data, "--out", out]
        sets = {"loss": "ordinal", "pooling": "cls", "epochs": 1, "max_pairs": options.pairs, "random_negatives": 0,
                "held_out": 0.05, "batch_tokens": BATCH_TOKENS}
        for name, value in sets.items():
            command += ["--set", f"relevance.{name}={value}"]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        metrics = json.loads((out / "relevance-metrics.json").read_text())
        rates["Souk"].append(metrics["draws"] / metrics["seconds"])
        rates["CrossEncoder"].append(train_theirs(options, work / f"theirs-{round_}", metrics["draws"]))
    print(f"training, {options.threads} threads:")
    report(rates, "pairs/s")
    return out


def train_theirs(options, out, count):
    import torch
    from datasets import Dataset
    from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    torch.set_num_threads(options.threads)
    model = CrossEncoder(str(options.model), num_labels=1, device="cpu", max_length=128)
    rows = judged(options.data)[:count]
    data = Dataset.from_dict({"query": [row[0] for row in rows], "item": [row[1] for row in rows],
                              "label": [float(row[2] >= 3) for row in rows]})
    settings = CrossEncoderTrainingArguments(
        output_dir=str(out), num_train_epochs=1, per_device_train_batch_size=BATCH, use_cpu=True, save_strategy="no",
        report_to=[], disable_tqdm=True, logging_steps=1000,
    )
    trainer = CrossEncoderTrainer(model=model, args=settings, train_dataset=data, loss=BinaryCrossEntropyLoss(model))
    begin = time.perf_counter()
    trainer.train()
    return len(rows) / (time.perf_counter() - begin)


def judging(options, judge):
    from sentence_transformers.cross_encoder import CrossEncoder

    rows = judged(options.data)
    queries = sorted({query for query, _, _ in rows})[: max(1, options.pairs // ITEMS)]
    items = [item for _, item, _ in rows]
    asked = [(query, [items[(at * 7919 + i * 31) % len(items)] for i in range(ITEMS)]) for at, query in enumerate(queries)]
    pairs = [(query, item) for query, items in asked for item in items]
    model = CrossEncoder(str(judge), device="cpu")
    best = max((16, 32, 64, 128), key=lambda size: rate(lambda: predict(model, pairs[:300], size), 300))
    rates = {"CrossEncoder": [], "Souk f32": [], "Souk int8": []}
    levels = {}
    for _ in range(options.rounds):
        rates["CrossEncoder"].append(rate(lambda: predict(model, pairs, best), len(pairs)))
        for precision in ("f32", "int8"):
            with Server(options, judge, precision) as server:
                server.score(asked[:4])
                begin = time.perf_counter()
                levels[precision] = server.score(asked)
                rates[f"Souk {precision}"].append(len(pairs) / (time.perf_counter() - begin))
    print(f"\njudging {len(pairs)} pairs, the same weights:")
    report(rates, "pairs/s")
    same = statistics.mean(a == b for a, b in zip(levels["f32"], levels["int8"]))
    print(f"\nint8 and f32 agree on {100 * same:.2f} % of the levels")


def predict(model, pairs, size):
    model.predict(pairs, batch_size=size, show_progress_bar=False)


def rate(work, count):
    begin = time.perf_counter()
    work()
    return count / (time.perf_counter() - begin)


class Server:
    """`souk relevance serve`."""

    def __init__(self, options, judge, precision):
        command = [options.souk, "--json", "relevance", "serve", "--model", judge, "--listen", "127.0.0.1:0",
                   "--set", f"model.precision={precision}", "--set", f"model.threads={options.threads}"]
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        text = ""
        while not text.rstrip().endswith("}"):
            text += self.process.stdout.readline()
        self.url = f"http://{json.loads(text)['address']}/score"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def score(self, asked):
        """Levels of all pairs."""

        def ask(query, items):
            items = [{"id": str(at), "text": text} for at, text in enumerate(items)]
            body = json.dumps({"query": query, "items": items}).encode()
            request = urllib.request.Request(self.url, body, {"content-type": "application/json"})
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)["levels"]

        with ThreadPoolExecutor(8) as pool:
            return [level for levels in pool.map(lambda one: ask(*one), asked) for level in levels]


def judged(data):
    """Query, item and level of each judged pair."""
    queries, items = read_texts(data)
    with (data / "qrels" / "train.tsv").open(encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    return [(queries[query], items[item], int(level)) for query, item, level in rows if level.isdigit() and item in items]


def report(rates, unit):
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"\n| | {unit} (median) | ratio |\n|---|---|---|")
    for name, median in medians.items():
        print(f"| {name} | {median:.1f} | {median / medians['CrossEncoder']:.2f} |")


if __name__ == "__main__":
    main()
