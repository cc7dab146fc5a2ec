"""Benchmarks the supervised stage against sentence-transformers' trainer: same pairs, batches, steps, temperature and schedule.

    sft.py --souk BINARY --model DIR --data DIR speed [--steps N]
    sft.py --souk BINARY --model DIR --data DIR quality --out DIR [--batch N] [--rate X]

`speed` trains a few steps with both, alternately, in rounds, and prints pairs/s, peak memory and the time per phase of Souk's step:
in batches of 1,024 with gradient caching, and of 128 without. Souk trains without dropout, its default, and with the model's, as
sentence-transformers does.
`quality` trains one epoch on the Good pairs of the split `train` with both, and evaluates both, the untrained model and BM25 on
the split `dev` with `souk evaluate`. Shuffling differs, and so does dropout: sentence-transformers uses the model's, Souk none.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.dont_write_bytecode = True

GOOD = ("3", "4")
TEMPERATURE = 0.05
DROPOUT = "souk, with dropout"
# `train.keep_tokens`, by default: texts beyond it run forward twice
KEPT_TOKENS = 8192


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("what", choices=["speed", "quality", "theirs"])
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rate", type=float, default=2e-5)
    parser.add_argument("--split", default="train")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cached", action="store_true", help="theirs: use the cached loss (gradient caching)")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    return {"speed": speed, "quality": quality, "theirs": theirs}[arguments.what](arguments)


def speed(arguments) -> int:
    for batch, cached in ((1024, True), (128, False)):
        with tempfile.TemporaryDirectory() as work:
            speed_of(arguments, Path(work), batch, cached)
    return 0


def speed_of(arguments, work, batch, cached):
    data = work / "data"
    steps = arguments.steps if cached else 3 * arguments.steps
    steps = some_pairs(arguments.data, data, arguments.split, batch * steps) // batch
    print(f"{steps} steps of {batch} pairs, {arguments.threads} threads; {'with' if cached else 'without'} gradient caching")
    rates = {"sentence-transformers": [], "souk": [], DROPOUT: []}
    memory, last, limits = {}, None, []
    for round_ in range(1, arguments.rounds + 1):
        limits.append(best_products(arguments.threads))
        for name in rates:
            out = work / f"{name}-{round_}"
            peak = run(arguments, name, data, out, batch, cached)
            log = out / ("times.jsonl" if name == "sentence-transformers" else "steps.jsonl")
            lines = [json.loads(line) for line in log.read_text().splitlines()][1:]
            seconds = [line.get("step_seconds") or sum(line["seconds"].values()) for line in lines]
            rates[name].append(batch / statistics.median(seconds))
            memory[name] = max(peak, memory.get(name, 0))
            if name == "souk":
                last = lines
            shutil.rmtree(out)
        print(f"round {round_}: " + ", ".join(f"{name} {rate[-1]:.1f} pairs/s" for name, rate in rates.items()), flush=True)
    base = statistics.median(rates["sentence-transformers"])
    texts = statistics.median(line["texts"] for line in last)
    print(f"\n{2 * batch} texts per step; Souk encodes an item that several pairs share only once: {texts:.0f}")
    print("\n| | pairs/s (median) | ratio | peak memory, MiB |\n|---|---|---|---|")
    for name, found in rates.items():
        rate = statistics.median(found)
        print(f"| {name} | {rate:.1f} | {rate / base:.2f} | {memory[name]:.0f} |")
    phases = {phase: statistics.median(line["seconds"][phase] for line in last) for phase in last[0]["seconds"]}
    total = sum(phases.values())
    print("\n| phase of a step | seconds | share |\n|---|---|---|")
    for phase, seconds in phases.items():
        print(f"| {phase} | {seconds:.3f} | {100 * seconds / total:.1f} % |")
    tokens = statistics.median(line["tokens"] for line in last)
    limits.append(best_products(arguments.threads))
    work_done(arguments, tokens, phases, KEPT_TOKENS if cached else tokens, [max(kind) for kind in zip(*limits, strict=True)])


def best_products(threads):
    """GFLOP/s of torch's plain product and of oneDNN's packed one, at their best in a few seconds."""
    import torch

    torch.set_num_threads(threads)
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    plain = 2 * 2048**3 / min(timed(lambda: a @ b) for _ in range(20)) / 1e9
    x, w = torch.randn(2048, 384), torch.randn(1536, 384)
    packed = torch.ops.mkldnn._reorder_linear_weight(w, 2048)
    product = lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    with torch.no_grad():
        return plain, 2 * 2048 * 384 * 1536 / min(timed(product) for _ in range(200)) / 1e9


def work_done(arguments, tokens, phases, kept, limits):
    """Share of the fastest product. Texts without a kept graph run forward twice; backward counts as two forwards."""
    plain, packed = limits
    config = json.loads((Path(arguments.model) / "config.json").read_text())
    width, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    once = 2 * layers * (4 * width * width + 2 * width * inner) * tokens
    total = once * (3 + max(0, tokens - kept) / tokens)
    rate = total / (phases["forward"] + phases["backward"]) / 1e9
    print(f"\n{tokens:.0f} tokens per step; the model's matrix products alone run at {rate:.0f} GFLOP/s: {100 * rate / packed:.0f} % of "
          f"oneDNN's packed product on this machine ({packed:.0f}), {rate / plain:.2f} times torch's plain one ({plain:.0f})\n")


def timed(work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def quality(arguments) -> int:
    batch = arguments.batch or 128
    arguments.out.mkdir(parents=True)
    models = {"base": arguments.model}
    for name in ("sentence-transformers", "souk"):
        out = arguments.out / name
        run(arguments, name, arguments.data, out, batch, cached=False)
        models[name] = out
        print(f"{name}: trained", flush=True)
    common = ["--data", str(arguments.data), "--split", "dev"]
    runs = [arguments.out / "run-bm25"]
    subprocess.run([arguments.souk, "evaluate", "--channel", "lexical", *common, "--out", runs[0]], check=True)
    for name, model in models.items():
        runs.append(arguments.out / f"run-{name}")
        subprocess.run([arguments.souk, "evaluate", "--model", model, *common, "--out", runs[-1]], check=True)
    subprocess.run([arguments.souk, "compare", *runs[::-1]], check=True)
    return 0


def run(arguments, name, data, out, batch, cached) -> float:
    """Trains in a separate process; returns its peak memory in MiB."""
    environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads)}
    if name != "sentence-transformers":
        command = [arguments.souk, "train", "--model", arguments.model, "--data", data, "--out", out]
        sets = {
            "train.batch": batch,
            "train.split": arguments.split,
            "train.pairs": "qrels",
            "train.dropout": str(name == DROPOUT).lower(),
            "train.optimizer.learning_rate": arguments.rate,
            "train.checkpoint_steps": 1000000,
            "objective.temperature": TEMPERATURE,
            "objective.type": "info_nce",
            "train.keep_tokens": KEPT_TOKENS if cached else 1 << 20,
        }
        for key, value in sets.items():
            command += ["--set", f"{key}={value}"]
    else:
        command = [sys.executable, __file__, "--souk", arguments.souk, "--model", arguments.model, "--data", data, "theirs"]
        command += ["--batch", str(batch), "--rate", str(arguments.rate), "--out", out, "--split", arguments.split]
        command += ["--cached"] if cached else []
    child = subprocess.Popen([str(part) for part in command], env=environment, stdout=sys.stderr)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{name} failed")
    return usage.ru_maxrss / 1024


def theirs(arguments) -> int:
    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer import losses
    from transformers import TrainerCallback

    torch.set_num_threads(arguments.threads)
    model = SentenceTransformer(str(arguments.model), device="cpu")
    pairs = read_pairs(arguments.data, arguments.split)
    data = Dataset.from_dict({"anchor": [query for query, _ in pairs], "positive": [item for _, item in pairs]})
    loss = losses.CachedMultipleNegativesRankingLoss if arguments.cached else losses.MultipleNegativesRankingLoss
    arguments.out.mkdir(parents=True)
    log = (arguments.out / "times.jsonl").open("w")

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.begin = time.perf_counter()

        def on_step_end(self, _, state, *__, **___):
            seconds = time.perf_counter() - self.begin
            print(json.dumps({"step": state.global_step, "step_seconds": seconds}), file=log, flush=True)

    settings = SentenceTransformerTrainingArguments(
        output_dir=str(arguments.out / "trainer"),
        num_train_epochs=1,
        per_device_train_batch_size=arguments.batch,
        learning_rate=arguments.rate,
        lr_scheduler_type="cosine",
        warmup_ratio=0.05,
        weight_decay=0.01,
        adam_beta1=0.9,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        seed=1,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_steps=20,
    )
    rule = loss(model, scale=1 / TEMPERATURE)
    SentenceTransformerTrainer(model=model, args=settings, train_dataset=data, loss=rule, callbacks=[Clock()]).train()
    model.save_pretrained(str(arguments.out))
    return 0


def read_texts(data: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Texts of queries and items by id."""

    def texts(name, of):
        with (data / name).open(encoding="utf-8") as lines:
            return {row["_id"]: of(row) for row in map(json.loads, lines)}

    items = texts("corpus.jsonl", lambda row: " ".join(filter(None, [row.get("title"), row.get("text")])))
    return texts("queries.jsonl", lambda row: row["text"]), items


def read_pairs(data: Path, split: str) -> list[tuple[str, str]]:
    queries, items = read_texts(data)
    with (data / "qrels" / f"{split}.tsv").open(encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    return [(queries[query], items[item]) for query, item, level in rows if level in GOOD]


def some_pairs(data: Path, out: Path, split: str, most: int) -> int:
    """Makes a data folder with only the first Good pairs."""
    (out / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl"):
        (out / name).symlink_to((data / name).resolve())
    kept = 0
    with (data / "qrels" / f"{split}.tsv").open(encoding="utf-8") as lines, (out / "qrels" / f"{split}.tsv").open("w") as to:
        for line in lines:
            good = line.rstrip("\n").split("\t")[2] in GOOD
            if kept < most and good:
                to.write(line)
                kept += 1
    return kept


if __name__ == "__main__":
    sys.exit(main())
