"""Benchmarks `souk embed` against sentence-transformers' `encode`: texts per second on the same machine and texts.

Takes the built program and the model's folder. Prints a table of medians and ratios, and the share of the machine's peak
matrix-product rate that is reached. Both run alternately, round by round, so that other load on the machine affects both.
sentence-transformers gets its best batch size, found on a part of the texts. Times include tokenizing but not loading the
model; Souk's also include reading lines and writing JSON.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import torch
import transformers
from sentence_transformers import SentenceTransformer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "golden"))
from titles import titles  # noqa: E402

BATCH_SIZES = (16, 32, 64, 128, 256)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--souk", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    reference = SentenceTransformer(str(options.model), device="cpu")
    for longest in (60, 200):
        compare(options, reference, longest)


def compare(options, reference, longest):
    texts, num_tokens = draw(reference, options.texts, longest)
    print(f"\n{len(texts)} texts of 3 to {longest} tokens, {num_tokens / len(texts):.1f} on average, {options.threads} threads")
    best = max(BATCH_SIZES, key=lambda size: len(texts) / seconds_of(reference, texts[:1000], size))
    print(f"sentence-transformers is fastest with batches of {best}")
    peak = {"plain": peak_plain(), "packed": peak_packed()}

    speeds = {"sentence-transformers": [], "souk f32": [], "souk int8": []}
    busy = {"f32": [], "int8": []}
    for round_ in range(options.rounds):
        speeds["sentence-transformers"].append(len(texts) / seconds_of(reference, texts, best))
        for precision in ("f32", "int8"):
            stats = souk(options, texts, precision)
            speeds[f"souk {precision}"].append(stats["texts_per_second"])
            busy[precision].append(stats["model_seconds"] / stats["seconds"])
        print(f"round {round_ + 1}: " + ", ".join(f"{name} {values[-1]:.0f}/s" for name, values in speeds.items()))
    report(speeds, flops(reference, num_tokens / len(texts)), peak)
    for precision, shares in busy.items():
        print(f"souk {precision}: the model runs {100 * statistics.median(shares):.0f} % of the time; tokenizing and "
              "writing run in parallel (docs/decisions/0002-fast-on-a-cpu.md has the shares)")


def draw(reference, count, longest):
    """Texts of 3 to `longest` tokens, and their total number of tokens. Above 60 tokens a text is several titles, so that
    lengths spread over the whole range."""
    tokenizer = reference.tokenizer
    random = Random(longest)
    kept = []
    num_tokens = 0
    seed = 0
    while len(kept) < count:
        pool = [text for text in titles(count, seed) if "\n" not in text]
        seed += 1
        while pool and len(kept) < count:
            text = pool.pop()
            goal = random.randint(3, longest) if longest > 60 else 0
            while pool and len(tokenizer(text)["input_ids"]) < goal:
                text += " " + pool.pop()
            length = len(tokenizer(text)["input_ids"])
            if 3 <= length <= longest:
                kept.append(text)
                num_tokens += length
    return kept, num_tokens


def seconds_of(reference, texts, batch_size):
    start = time.perf_counter()
    reference.encode(texts, batch_size=batch_size, show_progress_bar=False)
    return time.perf_counter() - start


def souk(options, texts, precision):
    command = [options.souk, "embed", "--model", options.model, "--precision", precision, "--stats"]
    command += ["--set", f"model.threads={options.threads}"]
    lines = "".join(text + "\n" for text in texts)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == len(texts)
    return json.loads(done.stderr.splitlines()[-1])


def flops(reference, tokens):
    """FLOPs of one text: matrix products with weights, and attention."""
    config = reference[0].auto_model.config
    width, inner = config.hidden_size, config.intermediate_size
    per_token = config.num_hidden_layers * 2 * (4 * width * width + 2 * width * inner)
    attention = config.num_hidden_layers * 2 * 2 * tokens * width
    return tokens * (per_token + attention)


def peak_plain():
    """FLOP/s of torch's own f32 product at its best size."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return best_rate(lambda: a @ b, 2 * 2048**3)


def peak_packed():
    """FLOP/s of the packed f32 product, at this model's widest shape."""
    x, w = torch.randn(1024, 384), torch.randn(1536, 384)
    packed = torch.ops.mkldnn._reorder_linear_weight(w, 1024)
    return best_rate(lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""), 2 * 1024 * 384 * 1536)


def best_rate(run, work):
    fastest = float("inf")
    with torch.no_grad():
        for _ in range(40):
            start = time.perf_counter()
            run()
            fastest = min(fastest, time.perf_counter() - start)
    return work / fastest


def report(speeds, work, peak):
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    base = medians["sentence-transformers"]
    print()
    print("| | texts/s (median) | ratio | GFLOP/s |")
    print("|---|---|---|---|")
    for name, speed in medians.items():
        print(f"| {name} | {speed:.0f} | {speed / base:.2f} | {speed * work / 1e9:.0f} |")
    print()
    f32 = medians["souk f32"] * work
    print(f"f32 product at its best: plain {peak['plain'] / 1e9:.0f} GFLOP/s, packed {peak['packed'] / 1e9:.0f} GFLOP/s; "
          f"souk f32 reaches {100 * f32 / peak['packed']:.0f} % of the packed peak, "
          f"sentence-transformers {100 * base * work / peak['plain']:.0f} % of the plain one")


if __name__ == "__main__":
    main()
