"""Golden cross-encoders: pairs through transformers' own tokenizers and models for sequence classification.

Takes an output folder and a seed. Gives `rel_bert` (four outputs on BERT's pooler), `rel_last` (four outputs on the last
token of a Qwen3), both with `relevance.json` as Souk writes it, and `rel_hub` (one output on BERT's pooler, as a cross-encoder of
the hub). Each has `pairs.json`, and `expected.safetensors`: `ids` and `types` of all pairs one after the other, `starts` [N + 1],
`logits` [N, outputs]. Each pair is run alone, so that nothing is padded.
"""

from pathlib import Path

import torch
import transformers as hf

from backbones import BERT, GQA, randomise, rope, save_expected, seed_of
from sentence import make_tokenizer, write_json
from titles import EDGE_TEXTS

MAX_TOKENS = 32
# positions of the small models
LONGEST = 64
# what Souk puts before the texts that a decoder reads
QUERY, ITEM = "Query: ", "Item: "


def make_relevance_folders(out: Path, seed: int):
    for name, decoder, outputs in [("rel_bert", False, 4), ("rel_last", True, 4), ("rel_hub", False, 1)]:
        folder = out / name
        tokenizer = make_tokenizer(decoder, seed)
        save_model(folder, decoder, outputs, tokenizer, seed_of(name, seed))
        save_logits(folder, decoder, MAX_TOKENS if (folder / "relevance.json").exists() else LONGEST)


def save_model(folder: Path, decoder: bool, outputs: int, tokenizer, seed: int):
    sizes = dict(vocab_size=tokenizer.get_vocab_size(), num_labels=outputs)
    if decoder:
        model = hf.Qwen3ForSequenceClassification(
            hf.Qwen3Config(**GQA | sizes | dict(head_dim=8, rope_parameters=rope(1000.0)))
        )
        options = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": "<end>"}
    else:
        model = hf.BertForSequenceClassification(hf.BertConfig(**BERT | sizes))
        special = {f"{kind.lower()}_token": f"[{kind}]" for kind in ["UNK", "SEP", "PAD", "CLS", "MASK"]}
        options = {"tokenizer_class": "BertTokenizer", "do_lower_case": True} | special
    randomise(model, seed).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", options | {"model_max_length": MAX_TOKENS})
    if outputs == 1:
        return
    write_json(folder / "relevance.json", {
        "format": 1, "loss": "four_way", "pooling": "last_token" if decoder else "cls", "max_tokens": MAX_TOKENS,
        "temperature": 1.0, "cutpoints": None, "thresholds": [0.25, 0.5, 0.75], "ece": None, "base": None,
        "trained_on": None,
    })


def pairs() -> list[list[str]]:
    """Every edge text with the one before it, and once with itself."""
    return [[EDGE_TEXTS[i - 1], text] for i, text in enumerate(EDGE_TEXTS)] + [[EDGE_TEXTS[-1]] * 2]


@torch.no_grad()
def save_logits(folder: Path, decoder: bool, max_tokens: int):
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    model = hf.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids, types, starts, logits = [], [], [0], []
    for query, item in pairs():
        texts = (f"{QUERY}{query}\n", f"{ITEM}{item}") if decoder else (query, item)
        # as a list: a single empty text counts as none there
        first, second = ([text] for text in texts)
        limits = dict(truncation=True, max_length=max_tokens)
        read = tokenizer(first, second, **limits, return_token_type_ids=True, return_tensors="pt")
        inputs = {"input_ids": read["input_ids"]} | ({} if decoder else {"token_type_ids": read["token_type_ids"]})
        logits.append(model(**inputs).logits[0])
        ids.append(read["input_ids"][0])
        types.append(read["token_type_ids"][0])
        starts.append(starts[-1] + len(ids[-1]))
    write_json(folder / "pairs.json", pairs())
    save_expected(folder, {
        "ids": torch.cat(ids), "types": torch.cat(types), "starts": torch.tensor(starts), "logits": torch.stack(logits)
    })
