"""Checks that an ONNX export of an exported model gives Souk's vectors, and measures both.

    onnx.py --souk target/release/souk --model MODEL [--kinds] [--texts 300] [--rounds 3] [--tolerance 1e-4]

Needs the packages of onnx.txt, in an environment of their own: the exporter takes transformers 4. Exports MODEL with
`souk export`, that folder with `optimum-cli export onnx`, and encodes product titles with both in turn, on one thread; the ONNX runtime
gets one text at a time, without padding. Prints the largest difference and the medians of texts per second. --kinds does the same with a
small model of each other kind, with random weights and MODEL's tokenizer. The exit code is 1 if a difference exceeds the tolerance.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from sentence_transformers import SentenceTransformer, models
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "golden"))
from titles import titles  # noqa: E402


SMALL = {
    "vocab_size": 30522, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 96,
    "max_position_embeddings": 300, "pad_token_id": 0,
}
HEADS = {"num_key_value_heads": 2, "head_dim": 16}
KINDS = {
    "roberta": SMALL,
    "xlm-roberta": SMALL,
    "mpnet": SMALL,
    "modernbert": SMALL | {"local_attention": 16, "global_attn_every_n_layers": 3},
    "gemma3_text": SMALL | HEADS | {"use_bidirectional_attention": True, "query_pre_attn_scalar": 16, "sliding_window": 16,
                                    "layer_types": ["sliding_attention", "full_attention"] * 2},
    "qwen2": SMALL | {"num_key_value_heads": 2},
    "qwen3": SMALL | HEADS,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    options = parser.parse_args()
    texts = [text for text in titles(options.texts, 0) if "\n" not in text]
    differences = [check(options, options.model.name, options.model, texts)]
    for kind in KINDS if options.kinds else ():
        with tempfile.TemporaryDirectory() as work:
            differences.append(check(options, kind, small_model(kind, options.model, Path(work)), texts))
    return 0 if max(differences) <= options.tolerance else 1


def check(options, name, model, texts):
    with tempfile.TemporaryDirectory() as work:
        folder, onnx = Path(work) / "exported", Path(work) / "onnx"
        run([options.souk, "export", "--model", model, "--to", "sentence-transformers", "--out", folder])
        exporter = Path(sys.executable).parent / "optimum-cli"
        run([exporter, "export", "onnx", "--model", folder, "--task", "feature-extraction", onnx])
        speeds = []
        for _ in range(options.rounds):
            theirs_nd, their_speed = encode(folder, onnx, texts)
            ours_nd, our_speed = souk(options, folder, texts)
            speeds.append((their_speed, our_speed))
    difference = np.abs(theirs_nd - ours_nd).max()
    theirs, ours = map(statistics.median, zip(*speeds))
    print(f"{name}: max abs difference {difference:.1e} over {len(texts)} texts of {theirs_nd.shape[1]} dimensions;"
          f" texts/s: ONNX runtime {theirs:.0f}, Souk {ours:.0f}", flush=True)
    return difference


def small_model(kind, tokenizer, work):
    """A sentence-transformers folder with random weights."""
    base, out = work / "base", work / "model"
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.for_model(kind, **KINDS[kind])).save_pretrained(base)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, base)
    transformer = models.Transformer(str(base), max_seq_length=128)
    pooling = models.Pooling(SMALL["hidden_size"], "lasttoken" if kind.startswith("qwen") else "mean")
    SentenceTransformer(modules=[transformer, pooling, models.Normalize()]).save(str(out))
    return out


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")


def encode(folder, onnx, texts):
    """The export's own output: pooled, projected and normalised."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(onnx / "model.onnx", settings, providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    tokenizer = Tokenizer.from_file(str(onnx / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"])

    def vector(text):
        ids = np.array([tokenizer.encode(text).ids], dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        return session.run(["sentence_embedding"], {name: inputs[name] for name in names})[0][0]

    start = time.perf_counter()
    vectors_nd = np.stack([vector(text) for text in texts])
    return vectors_nd, len(texts) / (time.perf_counter() - start)


def souk(options, folder, texts):
    command = [options.souk, "embed", "--model", folder, "--stats", "--set", "model.threads=1"]
    done = subprocess.run(command, input="".join(text + "\n" for text in texts), capture_output=True, text=True, check=True)
    vectors_nd = np.array([json.loads(line) for line in done.stdout.splitlines()], np.float32)
    return vectors_nd, json.loads(done.stderr.splitlines()[-1])["texts_per_second"]


if __name__ == "__main__":
    sys.exit(main())
