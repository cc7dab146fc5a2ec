"""Runs the checks of docs/gpu-checks.md that need one GPU, and measures training and encoding on it.

    python3 benches/gpu.py --souk target/release/souk --out OUT [--only NAME]

Needs PyTorch 2.11.0 with CUDA; `LIBTORCH_USE_PYTORCH=1` makes souk use its libraries. Simulated shop, models with random weights. For
each check it prints what the GPU and the CPU computed and the limit of their difference; logs are in OUT. The peak is measured: the
bf16 product of two 8192 x 8192 matrices of random numbers. Operations are six for each weight that a token passes.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import time
import urllib.request
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
# steps before the timed ones: memory is allocated, kernels are chosen
WARM = 4
TRAINER = "127.0.0.1:8179"
QWEN = {
    "scratch.vocab": 8000, "scratch.pooling": "last_token", "scratch.max_tokens": 512, "scratch.seed": 1,
    "scratch.architecture.model_type": "qwen2", "scratch.architecture.hidden_size": 896,
    "scratch.architecture.num_hidden_layers": 24, "scratch.architecture.num_attention_heads": 14,
    "scratch.architecture.num_key_value_heads": 2, "scratch.architecture.intermediate_size": 4864,
    "scratch.architecture.max_position_embeddings": 32768, "scratch.architecture.vocab_size": 151936,
    "scratch.architecture.rope_theta": 1000000.0, "scratch.architecture.tie_word_embeddings": "true",
}
# weights of Qwen2.5-0.5B that a token passes: all but the embeddings
QWEN_WEIGHTS = 358e6
MINILM = {
    "scratch.vocab": 8000, "scratch.max_tokens": 256, "scratch.architecture.hidden_size": 384,
    "scratch.architecture.num_hidden_layers": 6, "scratch.architecture.num_attention_heads": 12,
    "scratch.architecture.intermediate_size": 1536, "scratch.architecture.max_position_embeddings": 512,
}


class Bench:
    def __init__(self, souk, out):
        self.souk, self.out, self.peak = souk, out, None
        out.mkdir(parents=True, exist_ok=True)

    def run(self, name, *arguments, settings=None, text=None, seconds=240):
        """Runs souk; returns its output. Raises with the end of its log."""
        extra = [part for key, value in (settings or {}).items() for part in ("--set", f"{key}={value}")]
        command = [str(self.souk), *map(str, arguments), *extra]
        began = time.perf_counter()
        with open(self.out / f"{name}.log", "w") as log:
            done = subprocess.run(command, cwd=ROOT, input=text, stdout=subprocess.PIPE, stderr=log, text=True,
                                  timeout=seconds)
        self.seconds = time.perf_counter() - began
        if done.returncode:
            raise RuntimeError((self.out / f"{name}.log").read_text()[-700:])
        return done.stdout

    def log(self, name):
        return (self.out / f"{name}.log").read_text()

    def train(self, name, config, model, device, settings=None, data="shop", seconds=240):
        """The lines of steps.jsonl."""
        out = self.out / f"run-{name}"
        self.run(name, "train", "--config", f"configs/{config}", "--model", self.out / model, "--data", self.out / data,
                 "--out", out, "--device", device, settings=settings, seconds=seconds)
        return [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]

    # the shop and the models

    def prepare(self):
        self.run("shop", "market", "--seed", 7, "--items", 4000, "--queries", 2000, "--events", 20000, "--out",
                 self.out / "shop")
        init = lambda name, config, settings=None: self.run(
            name, "init", "--config", f"configs/{config}", "--data", self.out / "shop", "--out", self.out / name,
            settings=settings)
        init("bert", "scratch-bert.toml")
        init("decoder", "scratch-decoder.toml")
        init("writer", "scratch-writer.toml")
        init("minilm", "scratch-bert.toml", MINILM)
        titles = (json.loads(line) for line in open(self.out / "shop/corpus.jsonl"))
        self.titles = [title for item in titles if (title := " ".join(item["title"].split()))]
        return f"{len(self.titles)} items"

    # checks

    def version(self):
        return self.run("version", "--version").replace("\n", "; ")

    def vectors(self):
        results = []
        texts = "\n".join(self.titles[:200] + [" ".join(self.titles[at:at + 9]) for at in range(100)])
        for model in ("bert", "decoder"):
            def embed(device, precision):
                lines = self.run(f"embed-{model}-{device}-{precision}", "embed", "--model", self.out / model, "--device",
                                 device, "--precision", precision, text=texts).splitlines()
                return torch.tensor([json.loads(line) for line in lines])
            cpu, exact, short = embed("cpu", "f32"), embed("cuda", "f32"), embed("cuda", "bf16")
            cosine = torch.nn.functional.cosine_similarity(exact, short).min()
            results.append(f"{model}: largest difference {(cpu - exact).abs().max():.1e} (limit 1e-4), "
                           f"lowest cosine of bf16 {cosine:.5f} (limit 0.999)")
        return "; ".join(results)

    def compared(self, name, config, model, fields, limit, settings):
        """Trains on the CPU and on the GPU, in f32 and bf16."""
        rows = {kind: self.train(f"{name}-{kind}", config, model, device, {**settings, **more}) for kind, device, more in (
            ("cpu", "cpu", {}), ("f32", "cuda", {}), ("bf16", "cuda", {"model.precision": "bf16"}))}
        results = []
        for kind in ("f32", "bf16"):
            worst = {field: max(relative(value(a, field), value(b, field)) for a, b in zip(rows["cpu"], rows[kind])) for field in fields}
            first = {field: relative(value(rows["cpu"][0], field), value(rows[kind][0], field)) for field in fields}
            seconds = statistics.median(sum(row["seconds"].values()) for row in rows[kind][WARM:])
            results.append(f"{kind}: " + ", ".join(
                f"{field} differs by {first[field]:.1e} in step 1, {worst[field]:.1e} at most" for field in fields
            ) + f", {seconds * 1000:.0f} ms a step")
        return f"limit {limit}; " + "; ".join(results)

    def sft(self):
        return self.compared("sft", "sft-market.toml", "bert", ["loss"], "1e-3, 2e-2", {"train.max_steps": 20})

    def sft_decoder(self):
        return self.compared("sft-decoder", "sft-market.toml", "decoder", ["loss"], "1e-3, 2e-2", {"train.max_steps": 20})

    def r_grpo(self):
        self.train("grpo-start", "sft-market.toml", "bert", "cuda", {"train.max_steps": 60})
        return self.compared("grpo", "rgrpo-market.toml", "run-grpo-start", ["reward", "kl"], "1e-2",
                             {"train.max_steps": 10, "train.pairs": "qrels"})

    def gircse(self):
        return self.compared("gircse", "gircse-market.toml", "writer", ["loss", "grad_norm"], "1e-3 in step 1",
                             {"train.max_steps": 20})

    def relevance(self):
        results = []
        for device in ("cpu", "cuda"):
            settings = {"relevance.epochs": 1, "relevance.max_pairs": 8000}
            began = time.perf_counter()
            self.run(f"relevance-{device}", "relevance", "train", "--config", "configs/relevance-market.toml", "--model",
                     self.out / "bert", "--data", self.out / "shop", "--out", self.out / f"judge-{device}", "--device",
                     device, settings=settings)
            report = json.loads((self.out / f"judge-{device}/relevance-metrics.json").read_text())
            results.append(f"{device}: AUC of Good {report['judged']['auc_good']:.3f}, {time.perf_counter() - began:.0f} s")
        return "; ".join(results)

    def trainer(self):
        """The daemon's first round."""
        settings = {"trainer.state": self.out / "state", "store.database": f"sqlite:{self.out}/trainer.db",
                    "trainer.listen": TRAINER, "trainer.alarms.free_bytes": 0,
                    "trainer.pace": "{examples=500, seconds=5, min_examples=100, look_back=1.0}"}
        command = [self.souk, "trainer", "--config", "configs/trainer-market.toml", "--model", self.out / "bert", "--from",
                   self.out / "shop/logs.ndjson", "--data", self.out / "shop", "--device", "cuda"]
        command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        with open(self.out / "trainer.log", "w") as log:
            daemon = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=log, stderr=log)
        try:
            for _ in range(100):
                time.sleep(1)
                if daemon.poll() is not None:
                    raise RuntimeError(self.log("trainer")[-700:])
                try:
                    with urllib.request.urlopen(f"http://{TRAINER}/status") as answer:
                        status = json.load(answer)
                except OSError:
                    continue
                if status["last_round"]:
                    return json.dumps(status["last_round"])
            raise RuntimeError(f"no round in 100 seconds: {json.dumps(status)[:600]}")
        finally:
            daemon.terminate()
            daemon.wait()

    # speed

    def measure_peak(self):
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        times = []
        for _ in range(20):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            a @ b
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / 1000)
        self.peak = 2 * 8192**3 / statistics.median(times[5:])
        del a, b
        torch.cuda.empty_cache()
        return f"{torch.cuda.get_device_name()}, {self.peak / 1e12:.0f} TFLOP/s in bf16"

    def qwen(self):
        self.run("qwen", "init", "--config", "configs/scratch-decoder.toml", "--data", self.out / "shop", "--out",
                 self.out / "qwen", settings=QWEN)
        results = []
        for name, config, settings in (
            ("sft", "sft-market.toml", {}),
            ("r-grpo", "rgrpo-market.toml", {"train.pairs": "qrels", "candidates.refresh_steps": 1000}),
        ):
            more = {"model.precision": "bf16", "train.batch": 512, "train.max_steps": WARM + 6, "train.chunk_tokens": 32768,
                    "train.keep_tokens": 65536, "train.optimizer.learning_rate": 1e-5, **settings}
            rows = self.train(f"qwen-{name}", config, "qwen", "cuda", more)[WARM:]
            results.append(f"{name}: {self.utilisation(rows)}")
        return "; ".join(results)

    def utilisation(self, rows):
        whole = statistics.median(sum(row["seconds"].values()) for row in rows)
        tokens = statistics.median(row["tokens"] for row in rows)
        parts = {part: statistics.median(row["seconds"][part] for row in rows) for part in rows[0]["seconds"]}
        shown = " ".join(f"{part} {value * 1000:.0f}" for part, value in parts.items() if value > 5e-4)
        rate = 6 * QWEN_WEIGHTS * tokens / whole
        return (f"{tokens:.0f} tokens in {whole * 1000:.0f} ms ({shown}), {tokens / whole:.0f} tokens/s, "
                f"{rate / self.peak:.0%} of the peak")

    def minilm(self):
        results = []
        for precision in ("f32", "bf16"):
            rows = self.train(f"minilm-{precision}", "sft-market.toml", "minilm", "cuda", {
                "model.precision": precision, "train.batch": 1024, "train.max_steps": WARM + 8, "train.chunk_tokens": 32768,
                "train.keep_tokens": 65536, "train.epochs": 8})[WARM:]
            whole = statistics.median(sum(row["seconds"].values()) for row in rows)
            results.append(f"SFT of 1,024 pairs in {precision}: {whole * 1000:.0f} ms")
        return "; ".join(results)

    def embed(self):
        from sentence_transformers import SentenceTransformer

        texts, results = self.titles * 10, []
        for precision in ("f32", "bf16"):
            self.run(f"embed-{precision}", "embed", "--model", self.out / "minilm", "--device", "cuda", "--precision",
                     precision, "--stats", text="\n".join(texts))
            stats = json.loads([line for line in self.log(f"embed-{precision}").splitlines() if line.startswith("{")][-1])
            model = SentenceTransformer(str(self.out / "minilm"), device="cuda")
            if precision == "bf16":
                model = model.bfloat16()
            encode = lambda: model.encode(texts, batch_size=512, convert_to_tensor=True, show_progress_bar=False)
            encode()
            began = time.perf_counter()
            encode()
            torch.cuda.synchronize()
            theirs = len(texts) / (time.perf_counter() - began)
            results.append(f"{precision}: souk {stats['texts_per_second']:.0f} texts/s (in the model "
                           f"{stats['texts'] / stats['model_seconds']:.0f}), sentence-transformers {theirs:.0f}")
        return "; ".join(results)


def value(row, field):
    """A number of a line; of a spread the mean."""
    return row[field]["mean"] if isinstance(row[field], dict) else row[field]


def relative(a, b):
    # a KL divergence begins at 0
    return abs(a - b) / max(abs(a), 1e-3) if math.isfinite(a) and math.isfinite(b) else math.inf


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--only", action="append", help="run only these checks")
    options = parser.parse_args()
    os.environ.setdefault("LIBTORCH_USE_PYTORCH", "1")
    bench = Bench(options.souk.resolve(), options.out.resolve())
    for check in (bench.prepare, bench.version, bench.measure_peak, bench.vectors, bench.sft, bench.sft_decoder, bench.r_grpo,
                  bench.gircse, bench.relevance, bench.trainer, bench.qwen, bench.minilm, bench.embed):
        name = check.__name__
        if options.only and name not in options.only and name not in ("prepare", "measure_peak"):
            continue
        began = time.perf_counter()
        try:
            result = check()
        except Exception as error:  # one failed check does not hide the others
            result = f"FAILED: {error}"
        print(f"{name} ({time.perf_counter() - began:.1f} s): {result}", flush=True)


if __name__ == "__main__":
    main()
