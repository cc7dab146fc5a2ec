"""Measures whether a long-running trainer leaks: memory, file handles and disk, over many rounds.

    steady.py --souk BINARY [--minutes 5] [--speed 100]

Writes a simulated shop and replays its searches and clicks repeatedly, `--speed` times as fast as their own clock, into a log that
the trainer follows. Each round has one short stage; examples older than two hours of the log's time are deleted. Prints a line
every half minute, with the lowest and highest memory since the last line (between rounds and within them), and at the end the
throughput and the time per phase.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

PORT = 8492
HOUR = 3600.0
# events per hour of the log's own time: a shop with some 50,000 clicks a day
EVENTS = 20_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--speed", type=float, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        shop = work / "shop"
        quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([options.souk, "market", "--items", "2000", "--queries", "1000", "--out", shop], **quiet)
        init = ["init", "--config", "configs/scratch-bert.toml", "--set", "scratch.architecture.num_hidden_layers=2"]
        subprocess.run([options.souk, *init, "--data", shop, "--out", work / "base"], **quiet)
        lines = open(shop / "logs.ndjson", encoding="utf-8").readlines()
        lines = [json.loads(line) for line in lines if '"impression"' not in line]
        watch(options, work, lines)


def watch(options, work, lines):
    log = open(work / "log.ndjson", "w", encoding="utf-8")
    stage = '{name="sft", config="sft-market.toml", set=["train.pairs=examples", "train.max_steps=20", "train.batch=128"]}'
    sets = [
        f"trainer.stage=[{stage}]",
        "trainer.pace={examples=3000, seconds=0, look_back=0}",
        "trainer.gate={depth=600, gain=\"none\", floors={\"hitrate@600\"=99.9}}",
        f"trainer.keep_days={2 / 24}",
        "ingest.window={minutes=60, queries=20000, seen=40000}",
        "ingest.commit_seconds=2",
        f"store.database=sqlite:{work}/souk.db",
    ]
    command = [options.souk, "trainer", "--config", "configs/trainer-market.toml", "--model", work / "base"]
    command += ["--data", work / "shop", "--state", work / "state", "--from", work / "log.ndjson"]
    command += ["--listen", f"127.0.0.1:{PORT}", *(part for text in sets for part in ("--set", text))]
    trainer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        follow(options, (trainer, work, log), lines)
    finally:
        trainer.kill()


def follow(options, of, lines):
    trainer, work, log = of
    began, written, shown = time.monotonic(), 0, 0.0
    print("| minutes | hours of the log | events | rounds | anonymous MiB, min | max | handles | state and examples, MiB | commits |")
    print("|---" * 9 + "|")
    sizes = []
    while (seconds := time.monotonic() - began) < options.minutes * 60:
        wanted = int(seconds * options.speed / HOUR * EVENTS)
        while written < wanted:
            turn, at = divmod(written, len(lines))
            line = dict(lines[at], query_id=f"{turn}-{lines[at]['query_id']}")
            line["timestamp"] = 1_700_000_000_000 + int(written * HOUR * 1000 / EVENTS)
            log.write(json.dumps(line) + "\n")
            written += 1
        log.flush()
        sizes.append(anonymous(trainer.pid))
        if seconds >= shown:
            shown += 30
            if seconds > 5:
                show((trainer.pid, work), (seconds, options.speed, written), sizes)
            sizes = sizes[-1:]
        time.sleep(0.05)
    metrics = ask("/metrics")
    show((trainer.pid, work), (seconds, options.speed, written), sizes)
    trainer.terminate()
    trainer.wait()
    total = lambda name: sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)", metrics, re.MULTILINE))
    print(f"\n{total('souk_events_total') / seconds:.0f} messages/s, {total('souk_step_seconds_count') / 7 / seconds:.2f} steps/s")
    for phase, spent in re.findall(r'souk_trainer_seconds_total{phase="(\w+)"} (\S+)', metrics):
        print(f"  {phase}: {float(spent) / seconds:.0%}")


def anonymous(pid):
    return int(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def show(of, at, sizes):
    (pid, work), (seconds, speed, written) = of, at
    status = json.loads(ask("/status"))
    handles = len(os.listdir(f"/proc/{pid}/fd"))
    folders = work / "state", work / "shop/examples"
    size = sum(map(bytes_of, (path for folder in folders for path in folder.rglob("*"))))
    commits = sum(1 for _ in (work / "shop/examples").glob("*/0*"))
    rounds = (status["last_round"] or {}).get("round", 0)
    columns = f"{seconds / 60:.1f}", f"{seconds * speed / HOUR:.1f}", written, rounds
    print("| " + " | ".join(map(str, columns)) + f" | {min(sizes):.0f} | {max(sizes):.0f} | {handles} | {size / 2**20:.1f} | {commits} |", flush=True)


def bytes_of(path):
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        # a temporary file that has been renamed meanwhile
        return 0


def ask(path):
    return urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=30).read().decode()


if __name__ == "__main__":
    main()
