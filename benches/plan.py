"""Compares predictions of `souk plan` with measurements of `souk train` on this machine's CPU: seconds per step, the share of time
in loss, exchange and waiting for other processes, and peak memory. Runs 1, 2 and 4 processes of one thread each, and settings that
change how much is encoded twice.

    plan.py --souk target/release/souk [--model DIR] [--rounds 3] [--steps 40]

Writes a shop and two small models to a temporary folder; --model adds a model folder of your own. Cases alternate, round by round,
because the machine may be shared. Shown are the fastest step of all rounds, the median of all steps, and the lowest and highest
median of a round. The two cases that were used to fit the device table's row `cpu` are marked.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# warm-up: the first steps are slower, because memory is allocated and caches are cold
WARM = 2


def cases(own_model):
    """Name, model, processes, changes of the configuration."""
    for processes in (1, 2, 4):
        yield f"bert, {processes} process{'es' if processes > 1 else ''}", "bert", processes, {"train.batch": 256}
    yield "bert, all graphs kept (fitted)", "bert", 1, {"train.batch": 256, "train.keep_tokens": 1000000}
    yield "bert, none kept (fitted)", "bert", 1, {"train.batch": 256, "train.keep_tokens": 0}
    yield "bert, none kept, small chunks", "bert", 1, {
        "train.batch": 256, "train.keep_tokens": 0, "train.chunk_tokens": 256,
    }
    yield "bert, batch of 32", "bert", 1, {"train.batch": 32}
    yield "bert, two prefixes, both directions, 512 drawn", "bert", 1, {
        "train.batch": 256, "objective.type": "info_nce", "objective.dimensions": "[64,128]", "objective.symmetric": "true",
        "objective.global_negatives": 512,
    }
    yield "bert, low-rank adapter", "bert", 1, {
        "train.batch": 256, "train.lora.rank": 8, "train.lora.alpha": 16,
        "train.lora.targets": '["query","value"]',
    }
    yield "bert, bf16", "bert", 1, {"train.batch": 256, "model.precision": "bf16"}
    yield "decoder", "decoder", 1, {"train.batch": 256}
    if own_model:
        for processes in (1, 2):
            yield f"{Path(own_model).name}, {processes} process{'es' if processes > 1 else ''}", "own", processes, {
                "train.batch": 64,
            }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True, type=Path)
    parser.add_argument("--model", help="a model folder of your own, such as all-MiniLM-L6-v2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", help="run only cases whose name contains this")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    souk = options.souk.resolve()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shop, models = prepare(souk, work, options.model)
        chosen = [case for case in cases(options.model) if not options.only or options.only in case[0]]
        measured = {case[0]: [] for case in chosen}
        for number in range(options.rounds):
            for name, model, processes, sets in chosen:
                out = work / "run"
                run = measure(souk, (shop, models[model], out), processes, {**sets, "train.max_steps": options.steps})
                measured[name].append(run)
                print(f"round {number + 1}, {name}: load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        report(souk, (shop, models), chosen, measured)


def prepare(souk, work, own_model):
    shop = work / "shop"
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([souk, "market", "--seed", "7", "--items", "5000", "--queries", "1000", "--out", shop], **quiet)
    subprocess.run([souk, "ingest", "--from", shop / "logs.ndjson", "--data", shop], **quiet)
    models = {"own": own_model}
    for kind in ("bert", "decoder"):
        models[kind] = work / kind
        config = ROOT / f"configs/scratch-{kind}.toml"
        subprocess.run([souk, "init", "--config", config, "--data", shop, "--out", models[kind]], **quiet)
    return shop, models


def flags(sets):
    return [part for name, value in sets.items() for part in ("--set", f"{name}={value}")]


def measure(souk, places, processes, sets):
    """Seconds of each step by phase, and the peak memory of the largest process in bytes."""
    shop, model, out = places
    subprocess.run(["rm", "-rf", out], check=True)
    # enough pairs for every step, and no checkpoint before the end
    sets = {"train.epochs": 1000, "train.checkpoint_steps": 1000000, **sets}
    train = ["train", "--model", model, "--device", "cpu", "--data", shop, "--out", out, *flags(sets)]
    launch = ["launch", "--nproc", str(processes), "--"] if processes > 1 else []
    log = out.with_suffix(".log")
    with open(log, "w") as messages:
        child = subprocess.Popen([souk, *launch, *train], stdout=messages, stderr=messages)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"souk train failed:\n{log.read_text()}")
    lines = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    return [line["seconds"] for line in lines[WARM:]], usage.ru_maxrss * 1024


def predict(souk, shop, model, processes, sets):
    command = [souk, "plan", "--json", "--gpu", "cpu", "--gpus", str(processes), "--model", model, "--data", shop]
    return json.loads(subprocess.run([*command, *flags(sets)], check=True, capture_output=True, text=True).stdout)


def report(souk, places, chosen, measured):
    shop, models = places
    print("| case | step, predicted | fastest | median (rounds) | predicted / fastest | / median |"
          " loss and exchange, predicted | measured | memory, predicted | peak |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, model, processes, sets in chosen:
        plan = predict(souk, shop, models[model], processes, sets)
        step = 1e3 * plan["step_seconds"]
        waits = 100 * (plan["seconds"]["loss"] + plan["seconds"]["reduce"]) / plan["step_seconds"]
        rounds = [[1e3 * sum(seconds.values()) for seconds in steps] for steps, _ in measured[name]]
        every = [ms for steps in rounds for ms in steps]
        medians = [statistics.median(steps) for steps in rounds]
        phases = [seconds for steps, _ in measured[name] for seconds in steps]
        shares = [100 * (phase["loss"] + phase["reduce"]) / sum(phase.values()) for phase in phases]
        memory, peak = plan["memory"]["bytes"] / 1e6, max(memory for _, memory in measured[name]) / 1e6
        median = statistics.median(every)
        print(f"| {name} | {step:.0f} ms | {min(every):.0f} | {median:.0f} ({min(medians):.0f} to {max(medians):.0f}) |"
              f" {step / min(every):.2f} | {step / median:.2f} | {waits:.1f} % |"
              f" {min(shares):.1f} to {statistics.median(shares):.1f} % | {memory:.0f} MB | {peak:.0f} |")
        fastest = {phase: min(1e3 * seconds[phase] for seconds in phases) for phase in phases[0]}
        planned = {phase: 1e3 * plan["seconds"][phase] for phase in fastest}
        shown = ", ".join(f"{phase} {planned[phase]:.1f} / {fastest[phase]:.1f}" for phase in fastest)
        print(f"{name}: predicted / fastest, ms: {shown}", file=sys.stderr)


if __name__ == "__main__":
    main()
