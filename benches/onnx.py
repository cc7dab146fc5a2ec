"""Checks that an ONNX export of an exported model gives Souk's vectors, and measures both.

    onnx.py --souk target/release/souk --model MODEL [--texts 300] [--rounds 3] [--tolerance 1e-4]

Needs the packages of onnx.txt, in an environment of their own: the exporter takes transformers 4. Exports MODEL with
`souk export`, that folder with `optimum-cli export onnx`, and encodes product titles with both in turn, on one thread; the ONNX runtime
gets one text at a time, without padding. Prints the largest difference and the medians of texts per second. The exit code is 1 if the
difference exceeds the tolerance.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "golden"))
from titles import titles  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    options = parser.parse_args()
    texts = [text for text in titles(options.texts, 0) if "\n" not in text]
    with tempfile.TemporaryDirectory() as work:
        folder, onnx = Path(work) / "exported", Path(work) / "onnx"
        run([options.souk, "export", "--model", options.model, "--to", "sentence-transformers", "--out", folder])
        exporter = Path(sys.executable).parent / "optimum-cli"
        run([exporter, "export", "onnx", "--model", folder, "--task", "feature-extraction", onnx])
        speeds = []
        for _ in range(options.rounds):
            theirs_nd, their_speed = encode(folder, onnx, texts)
            ours_nd, our_speed = souk(options, folder, texts)
            speeds.append((their_speed, our_speed))
    difference = np.abs(theirs_nd - ours_nd).max()
    print(f"max abs difference {difference:.1e} over {len(texts)} texts of {theirs_nd.shape[1]} dimensions")
    theirs, ours = map(statistics.median, zip(*speeds))
    print(f"ONNX runtime {theirs:.0f} texts/s, Souk {ours:.0f} texts/s")
    return 0 if difference <= options.tolerance else 1


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
