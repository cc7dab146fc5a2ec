"""Golden sentence-transformers folders: a small backbone, a small tokenizer, a module chain, and what `encode` gives.

Takes an output folder and a seed. Gives one folder per case as the hub holds it (written before version 6, except
`st_v6`, which sentence-transformers 6.2 saves itself), with `texts.json` and `expected.safetensors`. Also compares a
folder that another program exported with the vectors that program computed.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers as hf
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.base.modules.normalize import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from backbones import BERT, EMBEDDING_GEMMA, GQA, ROBERTA, randomise, rope, save_expected, seed_of
from titles import EDGE_TEXTS, titles

WIDTH = 32
DENSE_WIDTH = 16
TRUNCATED = 8
NO_LIMIT = int(1e30)  # what transformers writes for a tokenizer that knows no limit
PROMPTS = {"query": "find: ", "document": ""}
POOLING_FLAGS = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]


@dataclass
class Backbone:
    """A small model, and the tokenizer that such models have."""

    model: type
    config: type
    options: dict
    tokenizer: str


BACKBONES = {
    "bert": Backbone(hf.BertModel, hf.BertConfig, BERT, "wordpiece"),
    "xlm_roberta": Backbone(hf.XLMRobertaModel, hf.XLMRobertaConfig, ROBERTA, "roberta"),
    "gemma3": Backbone(hf.Gemma3TextModel, hf.Gemma3TextConfig, EMBEDDING_GEMMA, "gemma"),
    "qwen3": Backbone(hf.Qwen3Model, hf.Qwen3Config, GQA | dict(head_dim=8, rope_parameters=rope(1000.0)), "bytes"),
}
SPECIAL = {
    "wordpiece": {f"{kind.lower()}_token": f"[{kind}]" for kind in ["UNK", "SEP", "PAD", "CLS", "MASK"]},
    "roberta": {"bos_token": "<s>", "cls_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "sep_token": "</s>"},
    "gemma": {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"},
    "bytes": {"pad_token": "<pad>", "eos_token": "<end>"},
}


@dataclass
class DenseLayer:
    inputs: int
    outputs: int
    bias: bool
    activation: str


@dataclass
class Case:
    """One folder in the layout before version 6. The read length is the first set of: sentence_bert_config's
    max_seq_length, the smaller of the tokenizer's model_max_length and the backbone's 64 positions."""

    pooling: str
    backbone: str = "bert"
    dense: list["DenseLayer"] = field(default_factory=list)
    normalize: bool = True
    sentence_bert: dict | None = field(default_factory=lambda: {"max_seq_length": 32, "do_lower_case": False})
    model_max_length: int = 512
    prompts: dict | None = field(default_factory=lambda: PROMPTS)
    default_prompt: str | None = None
    include_prompt: bool = True


CASES = {
    "st_mean_dense": Case("mean_tokens", dense=[DenseLayer(WIDTH, DENSE_WIDTH, True, "torch.nn.modules.activation.Tanh")]),
    "st_cls": Case("cls_token", normalize=False, sentence_bert={"max_seq_length": None, "do_lower_case": False},
                   model_max_length=24, prompts=None),
    "st_last": Case("lasttoken", backbone="qwen3"),
    "st_max": Case("max_tokens", sentence_bert=None, model_max_length=NO_LIMIT, default_prompt="query",
                   prompts={"query": "find: ", "passage": "item: "}),
    "st_noprompt": Case("mean_tokens", include_prompt=False),
    # two layers without an activation between them, as in EmbeddingGemma
    "st_gemma": Case("mean_tokens", backbone="gemma3", dense=[
        DenseLayer(WIDTH, 48, False, "torch.nn.modules.linear.Identity"),
        DenseLayer(48, WIDTH, False, "torch.nn.modules.linear.Identity"),
    ], prompts={"query": "task: search result | query: ", "document": "title: none | text: "}),
    # the longest text must fit the positions, which start after the padding token
    "st_xlm_roberta": Case("mean_tokens", backbone="xlm_roberta", sentence_bert=None, model_max_length=62),
}


def make_sentence_folders(out: Path, seed: int):
    for name, case in CASES.items():
        folder = out / name
        generator = torch.Generator().manual_seed(seed_of(name, seed))
        save_backbone(folder, case, make_tokenizer(BACKBONES[case.backbone].tokenizer, seed), seed_of(name, seed))
        save_modules(folder, case, generator)
        save_vectors(folder)
    save_v6(out / "st_mean_dense", out / "st_v6", seed)
    save_vectors(out / "st_v6")


def make_tokenizer(kind: str, seed: int) -> Tokenizer:
    if kind == "wordpiece":
        return build_wordpiece(seed)
    if kind == "bytes":
        return train_byte_bpe(seed, ["<pad>", "<end>"], processors.TemplateProcessing(
            single="$A <end>", special_tokens=[("<end>", 1)]
        ))
    if kind == "gemma":
        return train_byte_bpe(seed, ["<pad>", "<eos>", "<bos>"], processors.TemplateProcessing(
            single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
        ))
    around = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return train_byte_bpe(seed, ["<s>", "<pad>", "</s>"], around)


def build_wordpiece(seed: int) -> Tokenizer:
    """The library's WordPiece trainer breaks ties by hash order; counting pieces here gives one vocabulary per seed."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    lines = [tokenizer.normalizer.normalize_str(line) for line in titles(400, seed) + ["find: item: "] * 40]
    words = [word for line in lines for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(line)]
    letters = most_common((letter for word in words for letter in word), 60)
    endings = most_common((word[-size:] for word in words for size in (2, 3) if len(word) > size), 50)
    pieces = letters + [f"##{piece}" for piece in letters + endings] + most_common(words, 60)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(special + pieces))}
    tokenizer.model = models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100)
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def most_common(pieces, count: int) -> list[str]:
    counts = Counter(pieces)
    return sorted(counts, key=lambda piece: (-counts[piece], piece))[:count]


def train_byte_bpe(seed: int, special: list[str], around) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(titles(400, seed), trainer)
    tokenizer.post_processor = around
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def save_backbone(folder: Path, case: Case, tokenizer: Tokenizer, seed: int):
    kind = BACKBONES[case.backbone]
    model = kind.model(kind.config(**kind.options | dict(vocab_size=tokenizer.get_vocab_size())))
    randomise(model, seed).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    others = {"wordpiece": {"tokenize_chinese_chars": True}, "bytes": {"padding_side": "left"}}.get(kind.tokenizer, {})
    options = tokenizer_options(kind.tokenizer, **others) | {"model_max_length": case.model_max_length}
    write_json(folder / "tokenizer_config.json", options)
    write_json(folder / "special_tokens_map.json", SPECIAL[kind.tokenizer])


def tokenizer_options(kind: str, **others) -> dict:
    if kind == "wordpiece":
        options = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    else:
        options = {"tokenizer_class": "PreTrainedTokenizerFast"}
    return options | others | SPECIAL[kind]


def save_modules(folder: Path, case: Case, generator):
    """modules.json and the small folders beside it; 3_Normalize has no file, so on the hub it does not exist."""
    names = ["Transformer", "Pooling"] + ["Dense"] * len(case.dense) + ["Normalize"] * case.normalize
    write_json(folder / "modules.json", [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(names)
    ])
    pooling = {"word_embedding_dimension": WIDTH} | {f"pooling_mode_{f}": f == case.pooling for f in POOLING_FLAGS}
    write_json(folder / "1_Pooling/config.json", pooling | {"include_prompt": case.include_prompt})
    for at, dense in enumerate(case.dense, start=2):
        save_dense(folder / f"{at}_Dense", dense, generator)
    if case.sentence_bert is not None:
        write_json(folder / "sentence_bert_config.json", case.sentence_bert)
    settings = {"__version__": {"sentence_transformers": "3.0.1", "transformers": "4.46.3", "pytorch": "2.3.1"}}
    if case.prompts is not None:
        settings |= {"prompts": case.prompts, "default_prompt_name": case.default_prompt, "similarity_fn_name": None}
    write_json(folder / "config_sentence_transformers.json", settings)


def save_dense(folder: Path, dense: DenseLayer, generator):
    write_json(folder / "config.json", {"in_features": dense.inputs, "out_features": dense.outputs, "bias": dense.bias,
                                        "activation_function": dense.activation})
    tensors = {"linear.weight": torch.randn(dense.outputs, dense.inputs, generator=generator) * 0.3}
    if dense.bias:
        tensors["linear.bias"] = torch.randn(dense.outputs, generator=generator) * 0.3
    save_file(tensors, folder / "model.safetensors")


def save_v6(source: Path, folder: Path, seed: int):
    """The backbone of `source` under another Dense layer, saved by the library itself."""
    generator = torch.Generator().manual_seed(seed_of(folder.name, seed))
    weight = torch.randn(DENSE_WIDTH, WIDTH, generator=generator) * 0.3
    dense = Dense(WIDTH, DENSE_WIDTH, bias=False, activation_function=torch.nn.Identity(), init_weight=weight)
    modules = [open_folder(source)[0], Pooling(WIDTH, "mean"), dense, Normalize()]
    SentenceTransformer(modules=modules, prompts=PROMPTS, device="cpu").save(str(folder), create_model_card=False)


def save_vectors(folder: Path):
    model = open_folder(folder)
    check_tokenizer(model, folder)
    plain_nd = torch.from_numpy(model.encode(EDGE_TEXTS))
    write_json(folder / "texts.json", EDGE_TEXTS)
    save_expected(folder, {
        "plain": plain_nd,
        "query": torch.from_numpy(model.encode(EDGE_TEXTS, prompt_name="query")),
        "item": torch.from_numpy(model.encode_document(EDGE_TEXTS)),
        "trunc8": torch.nn.functional.normalize(plain_nd[:, :TRUNCATED], dim=-1),
    })


def check_tokenizer(model: SentenceTransformer, folder: Path):
    """tokenizer.json alone, cut at the read length, gives the ids that sentence-transformers reads."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(model.max_seq_length)
    for text in EDGE_TEXTS:
        theirs = model.preprocess([text])["input_ids"][0].tolist()
        assert theirs == tokenizer.encode(text).ids, f"{folder.name}: other ids for {text!r}"


def make_minilm(folder: Path, model_folder: Path, seed: int):
    texts = titles(1000, seed)
    vectors_nd = open_folder(model_folder).encode(texts, batch_size=32)
    write_json(folder / "texts.json", texts)
    save_expected(folder, {"vectors": torch.from_numpy(vectors_nd)})


def verify_export(folder: Path, texts: Path, vectors: Path, query: bool, tolerance: float) -> bool:
    """Does the folder, in sentence-transformers, give the vectors (one JSON array a line) that its writer computed?"""
    inputs = json.loads(texts.read_text(encoding="utf-8"))
    theirs_nd = np.array([json.loads(line) for line in vectors.read_text().splitlines() if line.strip()], np.float32)
    model = open_folder(folder)
    ours_nd = model.encode_query(inputs) if query else model.encode_document(inputs)
    if ours_nd.shape != theirs_nd.shape:
        print(f"shapes differ: sentence-transformers {ours_nd.shape}, vectors file {theirs_nd.shape}")
        return False
    difference = np.abs(ours_nd - theirs_nd).max()
    print(f"max abs difference {difference:.3e} over {len(inputs)} texts (tolerance {tolerance:.0e})")
    return bool(difference <= tolerance)


def open_folder(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def write_json(path: Path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
