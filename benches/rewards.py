"""Benchmarks an R-GRPO step against a supervised step on the same batch, and the cost of a slow judge.

    rewards.py --souk BINARY --model DIR --data SHOP [--steps N] [--rounds N] [--own-judge DIR --own-model DIR]

SHOP is a folder of `souk market`. The first comparison uses an instant judge (the shop's oracle) and a reference model whose vectors
are all cached before timing starts. The second uses a judge over HTTP that answers at once or after 200 ms, with one step of
lookahead. With --own-judge, a third one trains --own-model with that relevance model as a judge in the same process, in int8; here
the step includes the reference model. Stages run one after the other in rounds; figures are medians over steps and rounds.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.dont_write_bytecode = True
LATENCY = 0.2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--own-judge", type=Path, help="folder of `souk relevance train`")
    parser.add_argument("--own-model", help="model that is trained with --own-judge")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        judges = {name: Judge(latency) for name, latency in (("at once", 0.0), ("after 200 ms", LATENCY))}
        remote = lambda judge: {
            "judge.type": "souk", "judge.url": judge.url, "judge.model": "bench", "reward.lookahead": 1,
            "reward.cache": "false", "judge.limits": "{concurrency=64}", "judge.batch": 10000,
        }
        kinds = {
            "supervised": {"objective.type": "info_nce", "objective.global_negatives": 384},
            "R-GRPO, instant judge": rgrpo({}),
            "R-GRPO, judge at once, lookahead 1": rgrpo(remote(judges["at once"])),
            "R-GRPO, judge after 200 ms, lookahead 1": rgrpo(remote(judges["after 200 ms"])),
        }
        supervised, instant, at_once, late = run(arguments, arguments.model, kinds, work, arguments.steps)
        print(f"{instant / supervised:.2f} times a supervised step on the same batch (target 1.25)")
        print(f"{100 * (late / at_once - 1):+.1f} % of a step for a judge that takes 200 ms (target 5 %)")
        if arguments.own_judge:
            judge = {"judge.type": "model", "judge.path": arguments.own_judge, "judge.int8": "true"}
            kinds = {"supervised, larger model": kinds["supervised"], "R-GRPO, own judge": rgrpo(judge)}
            supervised, own = run(arguments, arguments.own_model, kinds, work / "own", max(3, arguments.steps // 5))
            print(f"{own / supervised:.2f} times a supervised step with an own judge (target 1.6)")
    return 0


def run(arguments, model: str, kinds: dict, work: Path, steps: int) -> list[float]:
    """Prints and returns the median seconds of a step of each kind."""
    work.mkdir(exist_ok=True)
    seconds = {name: [] for name in kinds}
    for round_ in range(arguments.rounds):
        for at, (name, sets) in enumerate(kinds.items()):
            seconds[name] += stage(arguments, model, sets, work / f"{round_}-{at}", steps)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"{median:8.3f} s a step  {name}", flush=True)
    return list(medians.values())


def rgrpo(more: dict) -> dict:
    return {"objective.type": "r_grpo", "objective.global_negatives": 384, "objective.group": 16} | more


def stage(arguments, model: str, sets: dict, out: Path, num: int) -> list[float]:
    """Seconds of the second half of 2 `num` steps; a small shop's reference vectors are cached by then."""
    fixed = {
        "train.pairs": "qrels", "train.batch": 128, "train.epochs": 100, "train.max_steps": 2 * num,
        "train.keep_tokens": 1 << 20, "train.optimizer.learning_rate": 1e-4,
    }
    command = [arguments.souk, "train", "--model", model, "--data", str(arguments.data), "--out", str(out)]
    for name, value in (fixed | sets).items():
        command += ["--set", f"{name}={value}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    steps = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    return [sum(step["seconds"].values()) for step in steps[num:]]


class Judge:
    """A fake of Souk's relevance service with hash-based verdicts."""

    def __init__(self, latency: float):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.latency = latency
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(self.server.latency)
        digest = lambda item: hashlib.blake2b((asked["query"] + item["text"]).encode(), digest_size=1).digest()[0]
        levels = [1 + digest(item) % 4 for item in asked["items"]]
        body = {"model": "bench", "scores": [(level - 1) / 3 for level in levels], "levels": levels}
        answer = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    sys.exit(main())
