"""Measures size and speed of published models in Souk and in sentence-transformers, on folders that have their shape.

    models.py --souk target/release/souk --minilm DIR [--only NAME] [--rounds 3] [--threads 1]

The weights are random: size and speed depend on a model's configuration alone, quality is not measured. Of the configurations, only
that of all-MiniLM-L6-v2 was compared with the hub's; the tokenizer is that of all-MiniLM-L6-v2 (DIR) for every model, so that all
read the same tokens: product titles of 3 to 60. Each folder is deleted after its turn. For each model, first checks that the vectors of
Souk and sentence-transformers are the same; then encodes with both in turn, sentence-transformers at the fastest of a few batch sizes;
last, sends single queries to sentence-transformers and to `souk serve` in turn. Prints a Markdown table of medians. A ratio is the
median of the rounds' ratios. Memory is the most that `souk embed` allocates.
"""

import argparse
import http.client
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "golden"))
from titles import titles  # noqa: E402

BATCH_SIZES = (4, 8, 16, 32)
PRECISIONS = ("f32", "int8")
NUM_CHECKED = 32
NUM_QUERIES = 40
LONGEST = 60
# operations of all texts of one round, so that a round takes seconds for every model
WORK = 2e11
PORT = 8394
NOISE = 0.02
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@dataclass
class Shape:
    """Models of one shape, by their names on the hub, and the configuration that they share."""

    names: str
    config: dict
    pooling: str = "mean"
    # widths of projections after the pooling
    dense: list[int] = field(default_factory=list)
    dtype: torch.dtype = torch.float32


def bert(layers, width, heads, **others):
    return {
        "architectures": ["BertModel"], "model_type": "bert", "vocab_size": 30522, "hidden_size": width,
        "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 4 * width, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 0, "position_embedding_type": "absolute",
        "use_cache": True, "torch_dtype": "float32",
    } | others


def roberta(layers, width, heads, vocab, **others):
    return bert(layers, width, heads, vocab_size=vocab, max_position_embeddings=514, type_vocab_size=1, pad_token_id=1,
                bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-5) | others


XLM = {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "output_past": True}
MPNET = {"architectures": ["MPNetForMaskedLM"], "model_type": "mpnet", "relative_attention_num_buckets": 32}
# fields that an MPNet has not
NO_MPNET = ("type_vocab_size", "position_embedding_type", "use_cache", "torch_dtype")
MODERNBERT = {
    "architectures": ["ModernBertModel"], "model_type": "modernbert", "vocab_size": 50368, "hidden_size": 768,
    "num_hidden_layers": 22, "num_attention_heads": 12, "intermediate_size": 1152, "hidden_activation": "gelu",
    "max_position_embeddings": 8192, "global_attn_every_n_layers": 3, "local_attention": 128,
    "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "norm_eps": 1e-5, "norm_bias": False, "layer_norm_eps": 1e-5,
    "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0, "embedding_dropout": 0.0, "mlp_dropout": 0.0,
    "position_embedding_type": "absolute", "pad_token_id": 50283, "bos_token_id": 50281, "cls_token_id": 50281,
    "eos_token_id": 50282, "sep_token_id": 50282, "classifier_pooling": "mean", "torch_dtype": "float16",
}
GEMMA = {
    "architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 768,
    "num_hidden_layers": 24, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 1152,
    "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": None,
    "sliding_window": 512, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4, "attention_bias": False,
    "attention_dropout": 0.0, "attn_logit_softcapping": None, "final_logit_softcapping": None,
    "use_bidirectional_attention": True, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "dtype": "float32",
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151669, "hidden_size": 1024,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
    "hidden_act": "silu", "max_position_embeddings": 32768, "max_window_layers": 28, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000, "rope_scaling": None, "sliding_window": None, "use_sliding_window": False, "attention_bias": False,
    "attention_dropout": 0.0, "tie_word_embeddings": True, "bos_token_id": 151643, "eos_token_id": 151643,
    "torch_dtype": "bfloat16",
}
SHAPES = [
    Shape("all-MiniLM-L6-v2", bert(6, 384, 12)),
    Shape("e5-small-v2, bge-small-en-v1.5", bert(12, 384, 12)),
    Shape("multilingual-e5-small", bert(12, 384, 12, vocab_size=250037)),
    Shape("all-distilroberta-v1", roberta(6, 768, 12, 50265, architectures=["RobertaForMaskedLM"], model_type="roberta")),
    Shape("bge-base-en-v1.5, e5-base-v2", bert(12, 768, 12), pooling="cls"),
    Shape("all-mpnet-base-v2", {
        name: value for name, value in roberta(12, 768, 12, 30527, **MPNET).items() if name not in NO_MPNET
    }),
    Shape("multilingual-e5-base", roberta(12, 768, 12, 250002, **XLM)),
    Shape("gte-modernbert-base", MODERNBERT, pooling="cls", dtype=torch.float16),
    Shape("embeddinggemma-300m", GEMMA, dense=[3072, 768]),
    Shape("bge-m3", roberta(24, 1024, 16, 250002, **XLM, max_position_embeddings=8194), pooling="cls"),
    Shape("Qwen3-Embedding-0.6B", QWEN3, pooling="lasttoken", dtype=torch.bfloat16),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", type=Path, required=True)
    parser.add_argument("--minilm", type=Path, required=True)
    parser.add_argument("--only", help="models whose names contain this text")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    rows = []
    for shape in SHAPES:
        if options.only and options.only not in shape.names:
            continue
        with tempfile.TemporaryDirectory() as work:
            try:
                rows.append(measure(options, shape, Path(work)))
            except subprocess.CalledProcessError as failed:
                print(f"{shape.names}: souk failed: {failed.stderr.strip()}", flush=True)
            except ValueError as differ:
                print(f"{shape.names}: {differ}", flush=True)
    report(rows)


def measure(options, shape, work):
    folder = work / "model"
    num_parameters, per_token = make_folder(folder, shape, options.minilm)
    reference = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    pool, num_tokens = draw(reference.tokenizer)
    count = int(min(len(pool), max(NUM_CHECKED, WORK / (2 * per_token * num_tokens))))
    texts = pool[:count]
    same = check(options, folder, reference, texts[:NUM_CHECKED])
    best = min(BATCH_SIZES, key=lambda size: seconds_of(reference, texts, size))

    speeds, memory = {name: [] for name in ("reference", *PRECISIONS)}, {}
    for _ in range(options.rounds):
        speeds["reference"].append(count / seconds_of(reference, texts, best))
        for precision in PRECISIONS:
            stats, memory[precision], _ = souk(options, folder, texts, precision)
            speeds[precision].append(stats["texts_per_second"])
    latencies = ask(options, reference, folder, work, pool)
    row = {
        "names": shape.names, "parameters": num_parameters, "dimensions": reference.get_embedding_dimension(), "texts": count,
        "memory": memory, "speeds": speeds, "latencies": latencies,
    }
    spread = ", ".join(f"{name} {min(values):.0f} to {max(values):.0f}" for name, values in speeds.items())
    print(f"{shape.names}: smallest cosine {same:.6f}; {count} texts, {num_tokens:.1f} tokens, batches of {best}; "
          f"texts/s: {spread}", flush=True)
    return row


# folders

def make_folder(folder, shape, minilm):
    """Writes a model in the layout of the hub. Returns the numbers of all weights, and of those that every token passes."""
    config = AutoConfig.for_model(**shape.config)
    torch.manual_seed(0)
    model = AutoModel.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                # norms and biases start as ones and zeros
                parameter.add_(torch.randn_like(parameter) * NOISE)
    model.to(shape.dtype).save_pretrained(folder)
    write(folder / "config.json", shape.config)
    for name in TOKENIZER:
        shutil.copy(minilm / name, folder / name)
    # not the class of the model's kind, which would read another kind of vocabulary
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder / "tokenizer_config.json", tokenizer | {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512})
    num_dense = write_modules(folder, shape, config.hidden_size)
    embeddings = sum(parameter.numel() for name, parameter in model.named_parameters() if "embedding" in name or "embed_" in name)
    num_parameters = model.num_parameters() + num_dense
    return num_parameters, num_parameters - embeddings


def write_modules(folder, shape, width):
    """modules.json and what it names. Returns the number of weights of the projections."""
    names = ["", "1_Pooling", *(f"{at}_Dense" for at in range(2, 2 + len(shape.dense)))]
    names.append(f"{len(names)}_Normalize")
    write(folder / "modules.json", [
        {"idx": at, "name": str(at), "path": name, "type": f"sentence_transformers.models.{name[2:] or 'Transformer'}"}
        for at, name in enumerate(names)
    ])
    kinds = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}
    write(folder / "1_Pooling/config.json", {"word_embedding_dimension": width} | {
        f"pooling_mode_{flag}": kind == shape.pooling for kind, flag in kinds.items()
    })
    write(folder / "sentence_bert_config.json", {"max_seq_length": 512, "do_lower_case": False})
    num_weights = 0
    for at, outputs in enumerate(shape.dense, start=2):
        dense = folder / f"{at}_Dense"
        write(dense / "config.json", {"in_features": width, "out_features": outputs, "bias": False,
                                      "activation_function": "torch.nn.modules.linear.Identity"})
        save_file({"linear.weight": torch.randn(outputs, width) * NOISE}, dense / "model.safetensors")
        num_weights += width * outputs
        width = outputs
    return num_weights


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


# measuring

def draw(tokenizer):
    """Product titles of 3 to LONGEST tokens, and their tokens on average."""
    texts = [text for text in titles(6000, 0) if "\n" not in text]
    lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]]
    kept = [(text, length) for text, length in zip(texts, lengths) if 3 <= length <= LONGEST]
    return [text for text, _ in kept], statistics.mean(length for _, length in kept)


def check(options, folder, reference, texts):
    """The smallest cosine of a text's two vectors, after the mean of all is taken off: random models give similar vectors."""
    theirs_nd = reference.encode(texts)
    ours_nd = np.array(souk(options, folder, texts, "f32")[2], np.float32)
    mean_d = theirs_nd.mean(0)
    unit = lambda x_nd: x_nd / np.linalg.norm(x_nd, axis=1, keepdims=True)
    cosines = (unit(theirs_nd - mean_d) * unit(ours_nd - mean_d)).sum(1)
    if cosines.min() < 0.999:
        raise ValueError(f"Souk and sentence-transformers differ: smallest cosine {cosines.min():.6f}")
    return cosines.min()


def seconds_of(reference, texts, batch_size):
    start = time.perf_counter()
    reference.encode(texts, batch_size=batch_size, show_progress_bar=False)
    return time.perf_counter() - start


def souk(options, folder, texts, precision):
    """The statistics of `souk embed`, its most memory in MB, and the vectors."""
    command = [options.souk, "embed", "--model", folder, "--precision", precision, "--stats"]
    command += ["--set", f"model.threads={options.threads}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    most = [0.0]
    watching = threading.Thread(target=watch, args=(process.pid, most))
    watching.start()
    out, err = process.communicate("".join(text + "\n" for text in texts))
    watching.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, stderr=err)
    vectors = [json.loads(line) for line in out.splitlines()]
    assert len(vectors) == len(texts)
    return json.loads(err.splitlines()[-1]), most[0], vectors


def watch(pid, most):
    """Follows the memory of a process until it ends: what it allocated, without mapped files."""
    status = Path(f"/proc/{pid}/status")
    while True:
        try:
            lines = status.read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return
        sizes = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
        if not sizes:
            return
        most[0] = max(most[0], int(sizes[0]) * 1024 / 1e6)
        time.sleep(0.01)


# single queries

def ask(options, reference, folder, work, pool):
    """Milliseconds of single queries, one program after the other: `encode` here, POST /embed of `souk serve`."""
    shop = work / "shop"
    write(shop / "corpus.jsonl", {})
    (shop / "corpus.jsonl").write_text('{"_id": "1", "title": "Oak desk", "text": ""}\n')
    servers = [serve(options, folder, work, shop, PORT + at, precision) for at, precision in enumerate(PRECISIONS)]
    try:
        connections = [connect(server, PORT + at) for at, server in enumerate(servers)]
        spent = {name: [] for name in ("reference", *PRECISIONS)}
        for text in pool[-NUM_QUERIES:]:
            calls = [lambda: reference.encode([text], show_progress_bar=False)]
            calls += [lambda connection=connection: embed(connection, text) for connection in connections]
            for name, call in zip(spent, calls):
                start = time.perf_counter()
                call()
                spent[name].append(1000 * (time.perf_counter() - start))
        return {name: statistics.median(values[5:]) for name, values in spent.items()}
    finally:
        for server in servers:
            server.send_signal(signal.SIGTERM)
            server.wait()


def serve(options, folder, work, shop, port, precision):
    sets = [f"search.listen=127.0.0.1:{port}", f"search.state={work}/state-{precision}", f"store.database=sqlite:{work}/{precision}.db",
            f"model.threads={options.threads}", f"model.precision={precision}"]
    command = [options.souk, "serve", "--model", folder, "--data", shop, *(part for text in sets for part in ("--set", text))]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=open(work / f"{precision}.log", "w"), env=os.environ, cwd=work)


def connect(server, port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    until = time.monotonic() + 120
    while True:
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                return connection
        except OSError:
            connection.close()
        if server.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"souk serve on port {port} did not start")
        time.sleep(0.1)


def embed(connection, text):
    connection.request("POST", "/embed", json.dumps({"inputs": [text]}), {"content-type": "application/json"})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body


def report(rows):
    print()
    print("| models of this shape | weights | dimensions | memory, f32 | int8 | sentence-transformers, texts/s | Souk f32 | Souk int8 "
          "| one query, ms: sentence-transformers | Souk f32 | Souk int8 |")
    print("|---" * 11 + "|")
    for row in rows:
        base = row["speeds"]["reference"]
        cells = [row["names"], f"{row['parameters'] / 1e6:.0f} M", row["dimensions"]]
        cells += [f"{row['memory'][precision]:,.0f} MB" for precision in PRECISIONS]
        cells.append(number(statistics.median(base)))
        for precision in PRECISIONS:
            speeds = row["speeds"][precision]
            ratio = statistics.median(ours / theirs for ours, theirs in zip(speeds, base))
            cells.append(f"{number(statistics.median(speeds))} ({ratio:.1f} ×)")
        cells += [number(value) for value in row["latencies"].values()]
        print("| " + " | ".join(map(str, cells)) + " |")


def number(value):
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


if __name__ == "__main__":
    main()
