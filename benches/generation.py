"""Benchmarks generation with a small decoder against transformers' `generate`: tokens per second, same model, texts, length, threads.

    generation.py --generation PROGRAM --model DIR --texts FILE [--tokens 48] [--each 8] [--threads 2] [--rounds 3]

PROGRAM is the built bench `generation`, DIR a decoder (see docs/generative.md), FILE has one text per line. Both sample at
temperature 1 and run alternately, round by round. transformers gets its best batch size. Tokens after the end of a text, and loading
the model, do not count.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
import transformers

END = 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generation", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    texts = options.texts.read_text(encoding="utf-8").splitlines()
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model).eval()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(options.model, padding_side="left")
    prompts = [tokenizer(text + "\n", add_special_tokens=True)["input_ids"][:-1] for text in texts]
    batch = max((8, 16, 32, 64), key=lambda size: theirs(model, prompts[:64], options, size))
    print(f"{len(texts)} texts, {options.each} continuations of at most {options.tokens} tokens; transformers in batches of {batch}")
    rates = {"transformers": [], "souk": []}
    for round_ in range(1, options.rounds + 1):
        rates["transformers"].append(theirs(model, prompts, options, batch))
        rates["souk"].append(ours(texts, options))
        print(f"round {round_}: " + ", ".join(f"{name} {found[-1]:.0f} tokens/s" for name, found in rates.items()), flush=True)
    base = statistics.median(rates["transformers"])
    print("\n| | tokens/s (median) | ratio |\n|---|---|---|")
    for name, found in rates.items():
        print(f"| {name} | {statistics.median(found):.0f} | {statistics.median(found) / base:.2f} |")


def theirs(model, prompts, options, batch) -> float:
    written, seconds = 0, 0.0
    for at in range(0, len(prompts), batch):
        rows = prompts[at : at + batch]
        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        begin = time.perf_counter()
        with torch.inference_mode():
            found = model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=options.tokens, do_sample=True, temperature=1.0, top_k=0,
                num_return_sequences=options.each, eos_token_id=END, pad_token_id=0,
            )[:, longest:]
        seconds += time.perf_counter() - begin
        ended = (found == END).int()
        # tokens up to and including the end token
        written += int((ended.cumsum(1) - ended == 0).sum())
    return written / seconds


def ours(texts, options) -> float:
    command = [options.generation, str(options.model), str(options.tokens), str(options.each)]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    run = subprocess.run(command, input="\n".join(texts), env=environment, capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)
    return found["tokens"] / found["seconds"]


if __name__ == "__main__":
    main()
