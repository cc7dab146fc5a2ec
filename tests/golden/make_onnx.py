"""Vectors of e5-small-v2 and bge-small-en-v1.5 by the ONNX runtime, from the archives that scripts/setup.sh converts.

    make_onnx.py JAR [--out DIR] [--seed N]

JAR is a Maven archive with NAME.onnx and NAME-tokenizer.json. Writes DIR/NAME.safetensors: `query` and `item`, one row for each text of
DIR/texts.json. Pooling and prompts are those of the models' cards.
"""

import argparse
import json
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from titles import EDGE_TEXTS, titles

NUM_TEXTS = 24
MAX_TOKENS = 512
CARDS = {
    "e5-small-v2": ("mean", "query: ", "passage: "),
    "bge-small-en-v1.5": ("cls", "Represent this sentence for searching relevant passages: ", ""),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jar", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "onnx")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with zipfile.ZipFile(options.jar) as archive:
        name = next(name for name in CARDS if f"{name}.onnx" in archive.namelist())
        session = onnxruntime.InferenceSession(archive.read(f"{name}.onnx"), providers=["CPUExecutionProvider"])
        tokenizer = Tokenizer.from_str(archive.read(f"{name}-tokenizer.json").decode())
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    pooling, query, item = CARDS[name]
    texts = [*EDGE_TEXTS, *titles(NUM_TEXTS, options.seed)][:NUM_TEXTS]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "texts.json").write_text(json.dumps(texts, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    vectors = {
        kind: np.stack([embed(session, tokenizer, prompt + text, pooling) for text in texts])
        for kind, prompt in (("query", query), ("item", item))
    }
    save_file(vectors, options.out / f"{name}.safetensors")
    (options.out / f"{name}.safetensors").chmod(0o644)


def embed(session, tokenizer, text, pooling):
    ids = np.array([tokenizer.encode(text).ids], dtype=np.int64)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    states = session.run(None, {each.name: inputs[each.name] for each in session.get_inputs()})[0][0]
    vector = states[0] if pooling == "cls" else states.mean(axis=0)
    return vector / np.linalg.norm(vector)


if __name__ == "__main__":
    main()
