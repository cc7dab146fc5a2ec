"""Golden losses and gradients of the supervised stage, from sentence-transformers' own losses.

Takes the folder with the `st_*` models. Gives `supervised/NAME.safetensors` beside them: for each loss its value and the
gradient of every weight, dropout off, on the pairs of `supervised/pairs.json`. MatryoshkaLoss sums over dimensions where
Souk averages: its numbers are divided by how many there are.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
    MultipleNegativesSymmetricRankingLoss,
)

SCALE = 20.0
MODELS = {"st_mean_dense": [16, 8], "st_last": [32, 8], "st_cls": [32, 4]}
PAIRS = [
    ("running shoes", "red waterproof running shoes, size 43"),
    ("desk", "foldable oak desk 120 x 60 cm with two drawers"),
    ("lamp that does not blink", "dimmable desk lamp, flicker free"),
    ("pipe 3/4 in", "3/4 in. x 10 ft. copper pipe"),
    ("gift for a cook", "bamboo cutting board with juice groove and a handle for small kitchens"),
    ("jacket", "men's waterproof rain jacket - navy blue, XL"),
    ("usb c", "usb c cable 2 m, braided"),
]


def make_supervised(out: Path):
    folder = out / "supervised"
    folder.mkdir(exist_ok=True)
    (folder / "pairs.json").write_text(json.dumps(PAIRS, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, dimensions in MODELS.items():
        model = SentenceTransformer(str(out / name), device="cpu").eval()
        losses = {
            "plain": (MultipleNegativesRankingLoss(model, scale=SCALE), 1),
            "cached": (CachedMultipleNegativesRankingLoss(model, scale=SCALE, mini_batch_size=2), 1),
            "symmetric": (MultipleNegativesSymmetricRankingLoss(model, scale=SCALE), 1),
            "nested": (
                MatryoshkaLoss(
                    model, CachedMultipleNegativesRankingLoss(model, scale=SCALE, mini_batch_size=3), dimensions
                ),
                len(dimensions),
            ),
        }
        tensors = {}
        for kind, (loss, divisor) in losses.items():
            value, gradients = run(model, loss)
            tensors[f"loss/{kind}"] = (value / divisor).reshape(1)
            # the cached loss is the plain one: only its value is kept
            if kind != "cached":
                tensors |= {f"{kind}/{weight}": gradient / divisor for weight, gradient in gradients.items()}
        save_file(tensors, folder / f"{name}.safetensors")


def run(model: SentenceTransformer, loss: torch.nn.Module):
    prompts = model.prompts
    queries = [prompts.get("query", "") + query for query, _ in PAIRS]
    items = [prompts.get("document", prompts.get("passage", "")) + item for _, item in PAIRS]
    model.zero_grad()
    value = loss([model.preprocess(texts) for texts in (queries, items)], torch.zeros(len(PAIRS)))
    value.backward()
    gradients = {}
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            gradients[own_name(name)] = weight.grad.clone().contiguous()
    return value.detach(), gradients


def own_name(name: str) -> str:
    """Module 0 is the transformer, whose tensors keep their hub names; then come pooling and dense layers."""
    module, rest = name.split(".", 1)
    if module == "0":
        return rest.split("model.", 1)[1]
    return f"dense.{int(module) - 2}.{rest.removeprefix('linear.')}"
