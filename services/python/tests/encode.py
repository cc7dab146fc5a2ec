"""`souk.Encoder` on the golden models: vectors of sentence-transformers, prompts, options, errors, threads.

    encode.py GOLDEN_FOLDER
"""

import json
import re
import struct
import sys
import threading
from pathlib import Path

import numpy as np

import souk

GOLDEN = Path(sys.argv[1])
PAGE = Path(__file__).parents[3] / "docs/python.md"
PAGE_MODEL = '"sentence-transformers/all-MiniLM-L6-v2"'


def expected(model, name):
    """A tensor of `expected.safetensors`, which sentence-transformers computed."""
    content = (GOLDEN / model / "expected.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    entry = json.loads(content[8 : 8 + size])[name]
    first, end = (8 + size + offset for offset in entry["data_offsets"])
    return np.frombuffer(content[first:end], "<f4").reshape(entry["shape"])


def texts(model):
    return json.loads((GOLDEN / model / "texts.json").read_text())


def close(found, wanted):
    assert found.dtype == np.float32 and found.shape == wanted.shape, (found.dtype, found.shape, wanted.shape)
    np.testing.assert_allclose(found, wanted, atol=2e-5)


def refuses(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}: {words}")


def main():
    name = "st_mean_dense"
    model, lines = souk.Encoder(GOLDEN / name), texts(name)
    close(model.encode(lines), expected(name, "plain"))
    close(model.encode_query(lines), expected(name, "query"))
    close(model.encode(lines, prompt_name="query", batch_size=2), expected(name, "query"))
    close(model.encode_document(lines), expected(name, "item"))
    close(model.encode(lines[0]), expected(name, "plain")[0])
    print("proved: vectors and prompts are those of sentence-transformers")

    close(souk.Encoder(GOLDEN / name, truncate_dim=8).encode(lines), expected(name, "trunc8"))
    close(model.encode(lines, truncate_dim=8, normalize_embeddings=True), expected(name, "trunc8"))
    assert model.encode([]).shape == (0, model.get_sentence_embedding_dimension())
    assert [vector.shape for vector in model.encode(lines[:2], convert_to_numpy=False)] == [(16,), (16,)]
    cosines = model.similarity(model.encode(lines[:3]), model.encode(lines[0]))
    assert cosines.shape == (3, 1) and abs(cosines[0, 0] - 1) < 1e-5, cosines
    assert model.max_seq_length == 32 and len(model.fingerprint) == 32, (model.max_seq_length, model.fingerprint)
    int8 = souk.Encoder(GOLDEN / name, precision="int8", device="cpu").encode(lines)
    assert np.abs(int8 - expected(name, "plain")).max() < 0.1
    print("proved: options and attributes")

    found = [None] * 4
    def run(at):
        found[at] = model.encode(lines * 20)
    threads = [threading.Thread(target=run, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for vectors in found:
        close(vectors, np.concatenate([expected(name, "plain")] * 20))
    print("proved: threads share a model")

    refuses(ValueError, "use query or document", lambda: model.encode("desk", prompt_name="question"))
    refuses(TypeError, "list of texts", lambda: model.encode([1]))
    refuses(ValueError, "poling", lambda: souk.Encoder(GOLDEN / name, settings={"encoder.poling": "cls"}))
    refuses(ValueError, "no-such-folder", lambda: souk.Encoder("./no-such-folder"))
    print("proved: errors say what to do")

    [block] = [block for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S) if "souk.Encoder(" in block]
    assert PAGE_MODEL in block, block
    exec(block.replace(PAGE_MODEL, repr(str(GOLDEN / name))), {"souk": souk})
    print("proved: the block of docs/python.md runs")


main()
