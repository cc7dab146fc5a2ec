"""Benchmarks training steps of GIRCSE and GRACE against a plain PyTorch implementation: same decoder, pairs, batch, lengths, threads.

    writing.py --souk BINARY --model DIR --data DIR [--steps 12] [--rounds 3] [--threads 2]

--model is a decoder trained to generate (docs/generative.md). The PyTorch side is a straightforward implementation with transformers:
left-padded batches, a KV cache for soft tokens, `generate` for rationales, AdamW. Both do the same work per step: GIRCSE encodes
BATCH queries and as many items with K soft tokens; GRACE generates one rationale per query and negative and K per positive, encodes
them, and takes a policy-gradient step. Rationales are sampled, so their lengths are similar but not equal; the tokens generated per
step are printed for both. The first step of each run is not counted.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
import transformers
from torch.nn.functional import cosine_similarity, cross_entropy, log_softmax, normalize

PAD, END = 0, 2
BATCH = {"gircse": 64, "grace": 32}
SOFT, ROLLOUTS, MOST, LONGEST = 5, 8, 48, 96
TEMPERATURE, RATE = 0.05, 1e-5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pairs, items = read(options.data)
    for method in BATCH:
        seconds = {"PyTorch": [], "souk": []}
        print(f"{method}: {options.steps} steps of {BATCH[method]} pairs, {options.threads} threads")
        for round_ in range(1, options.rounds + 1):
            seconds["PyTorch"].append(theirs(options, method, pairs, items))
            seconds["souk"].append(ours(options, method))
            print(f"round {round_}: " + ", ".join(f"{name} {found[-1]:.2f} s per step" for name, found in seconds.items()), flush=True)
        base = statistics.median(seconds["PyTorch"])
        print("\n| | seconds per step (median) | ratio |\n|---|---|---|")
        for name, found in seconds.items():
            print(f"| {name} | {statistics.median(found):.2f} | {base / statistics.median(found):.2f} |")
        print(flush=True)


def read(data):
    """Pairs of texts as `souk train` takes them from judgements, and every item's text."""
    def texts(name, of):
        with (data / name).open(encoding="utf-8") as lines:
            return {row["_id"]: of(row) for row in map(json.loads, lines)}

    queries = texts("queries.jsonl", lambda row: row["text"])
    items = texts("corpus.jsonl", lambda row: " ".join(filter(None, [row.get("title"), row.get("text")])))
    with (data / "qrels" / "train.tsv").open(encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines][1:]
    return [(queries[query], items[item]) for query, item, level in rows if int(level) >= 3], list(items.values())


def ours(options, method):
    config = "gircse-market.toml" if method == "gircse" else "grace-market.toml"
    sets = {
        "train.batch": BATCH[method], "train.max_steps": options.steps, "train.epochs": 1000, "train.checkpoint_steps": 1000000,
        "train.optimizer.learning_rate": RATE,
    } | ({"objective.sides": "items"} if method == "grace" else {})
    with tempfile.TemporaryDirectory() as work:
        command = [options.souk, "train", "--config", f"configs/{config}", "--model", options.model, "--data", options.data]
        command += ["--out", f"{work}/out", *(part for key, value in sets.items() for part in ("--set", f"{key}={value}"))]
        environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
        subprocess.run(list(map(str, command)), env=environment, check=True, stdout=sys.stderr, stderr=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (Path(work) / "out" / "steps.jsonl").read_text().splitlines()]
    if method == "grace":
        print(f"  souk generated {statistics.median(BATCH[method] * ROLLOUTS * line['length'] for line in lines):.0f} tokens of positives per step")
    return statistics.median(sum(line["seconds"].values()) for line in lines[1:])


def theirs(options, method, pairs, items):
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(options.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    step = soft_step if method == "gircse" else written_step
    drawn = torch.Generator().manual_seed(1)
    seconds, written = [], []
    for number in range(options.steps):
        chosen = torch.randint(len(pairs), (BATCH[method],), generator=drawn).tolist()
        others = torch.randint(len(items), (BATCH[method],), generator=drawn).tolist()
        begin = time.perf_counter()
        texts = [pairs[at][0] for at in chosen], [pairs[at][1] for at in chosen], [items[at] for at in others]
        loss, tokens = step(model, tokenizer, texts)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if number > 0:
            seconds.append(time.perf_counter() - begin)
            written.append(tokens)
    if method == "grace":
        print(f"  PyTorch generated {statistics.median(written):.0f} tokens of positives per step")
    return statistics.median(seconds)


def padded(rows):
    longest = max(map(len, rows))
    ids = torch.tensor([[PAD] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


# GIRCSE, eq. 2 to 8


def refined(model, tokenizer, texts):
    ids, mask = padded([row[:LONGEST] for row in tokenizer(texts)["input_ids"]])
    table = model.get_input_embeddings().weight
    read = model.model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp_min(0), use_cache=True)
    last, cache, states = read.last_hidden_state[:, -1], read.past_key_values, []
    for _ in range(SOFT):
        word = model.lm_head(last).softmax(-1) @ table
        mask = torch.cat([mask, mask.new_ones(len(texts), 1)], 1)
        place = mask.sum(1, keepdim=True) - 1
        read = model.model(inputs_embeds=word[:, None], attention_mask=mask, position_ids=place, past_key_values=cache, use_cache=True)
        last, cache = read.last_hidden_state[:, 0], read.past_key_values
        states.append(last)
    states = torch.stack(states)
    return normalize(states.cumsum(0) / torch.arange(1, SOFT + 1)[:, None, None], dim=-1)


def soft_step(model, tokenizer, texts):
    queries, items = refined(model, tokenizer, texts[0]), refined(model, tokenizer, texts[1])
    goal = torch.arange(queries.shape[1])
    losses = torch.stack([cross_entropy(q @ i.T / TEMPERATURE, goal, reduction="none") for q, i in zip(queries, items)])
    logs = losses.clamp_min(1e-6).log()
    return losses.mean() + (logs[1:] - logs[:-1]).relu().mean(), 0


# GRACE, eq. 1 to 11


def write(model, tokenizer, texts, each):
    prompts = [tokenizer(text + "\n")["input_ids"][:-1][:LONGEST] for text in texts]
    ids, mask = padded(prompts)
    with torch.no_grad():
        found = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=MOST, do_sample=True, temperature=1.0, top_k=0,
            num_return_sequences=each, eos_token_id=END, pad_token_id=PAD,
        )[:, ids.shape[1]:]
    ended = (found == END).int()
    keep = (ended.cumsum(1) - ended) == 0
    rationales = [row[kept].tolist() for row, kept in zip(found, keep)]
    return [(prompts[at // each], rationale) for at, rationale in enumerate(rationales)]


def states_of(model, wrote):
    ids, mask = padded([prompt + rationale for prompt, rationale in wrote])
    places = (mask.cumsum(1) - 1).clamp_min(0)
    return ids, mask, model.model(input_ids=ids, attention_mask=mask, position_ids=places).last_hidden_state


def vectors(model, wrote):
    with torch.no_grad():
        _, mask, states = states_of(model, wrote)
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def written_step(model, tokenizer, texts):
    model.eval()
    queries = vectors(model, write(model, tokenizer, texts[0], 1))
    negatives = vectors(model, write(model, tokenizer, texts[2], 1))
    wrote = write(model, tokenizer, texts[1], ROLLOUTS)
    positives = vectors(model, wrote).view(len(texts[1]), ROLLOUTS, -1)
    close = cosine_similarity(queries[:, None], positives, dim=-1) - cosine_similarity(queries, negatives, dim=-1)[:, None]
    unit = normalize(positives, dim=-1)
    alike = ((unit @ unit.transpose(1, 2)).sum(-1) - 1) / (ROLLOUTS - 1)
    across = torch.einsum("bkd,md->bkm", unit, normalize(queries, dim=-1))
    own = torch.eye(len(queries))[:, None]
    apart = -(across * (1 - own)).sum(-1) / (len(queries) - 1)
    reward = (close + 0.2 * alike + 0.2 * apart) / 10
    ended = torch.tensor([rationale[-1] == END for _, rationale in wrote]).view_as(reward)
    least = reward.where(ended, torch.zeros(())).amin(1, keepdim=True)
    reward = reward.where(ended, (least - 1).clamp_max(-1))
    advantage = (reward - reward.mean(1, keepdim=True)).flatten()
    model.train()
    ids, mask, states = states_of(model, wrote)
    logs = log_softmax(model.lm_head(states[:, :-1]), -1).gather(2, ids[:, 1:, None])[..., 0]
    length = torch.tensor([len(rationale) for _, rationale in wrote])
    behind = torch.arange(ids.shape[1] - 1)[None] >= ids.shape[1] - 1 - length[:, None]
    return -(advantage[:, None] * logs * behind).sum() / len(texts[1]), int(length.sum())


if __name__ == "__main__":
    main()
