"""Golden cross-encoders: pairs through transformers' own tokenizers and models for sequence classification.

Takes an output folder and a seed. Gives `rel_bert` (four outputs on BERT's pooler), `rel_last` (four outputs on the last
token of a Qwen3), both with `relevance.json` as Souk writes it; and, with one output as a cross-encoder of the hub, `rel_hub` (BERT's
pooler) and `rel_xlm_roberta`. Each has `pairs.json`, and `expected.safetensors`: `ids` and `types` of all pairs one after the other, `starts` [N + 1],
`logits` [N, outputs]. Each pair is run alone, so that nothing is padded.
"""

from pathlib import Path

import torch
import transformers as hf

from backbones import randomise, save_expected, seed_of
from sentence import BACKBONES, make_tokenizer, tokenizer_options, write_json
from titles import EDGE_TEXTS

MAX_TOKENS = 32
# positions of the small models; RoBERTa's start after the padding token
LONGEST = {"bert": 64, "xlm_roberta": 62}
# what Souk puts before the texts that a decoder reads
QUERY, ITEM = "Query: ", "Item: "


HEADS = {
    "bert": hf.BertForSequenceClassification,
    "xlm_roberta": hf.XLMRobertaForSequenceClassification,
    "qwen3": hf.Qwen3ForSequenceClassification,
}
CASES = [("rel_bert", "bert", 4), ("rel_last", "qwen3", 4), ("rel_hub", "bert", 1), ("rel_xlm_roberta", "xlm_roberta", 1)]


def make_relevance_folders(out: Path, seed: int):
    for name, backbone, outputs in CASES:
        folder, decoder = out / name, backbone == "qwen3"
        save_model(folder, backbone, outputs, seed_of(name, seed), make_tokenizer(BACKBONES[backbone].tokenizer, seed))
        save_logits(folder, decoder, MAX_TOKENS if (folder / "relevance.json").exists() else LONGEST[backbone])


def save_model(folder: Path, backbone: str, outputs: int, seed: int, tokenizer):
    kind, decoder = BACKBONES[backbone], backbone == "qwen3"
    sizes = dict(vocab_size=tokenizer.get_vocab_size(), num_labels=outputs)
    model = HEADS[backbone](kind.config(**kind.options | sizes))
    randomise(model, seed).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer_options(kind.tokenizer) | {"model_max_length": MAX_TOKENS})
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
