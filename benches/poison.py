"""Measures the effect of click spam in the log: clicks on one seller's items after unrelated queries.

    DEMO_DIR=DEMO DEMO_EXIT=1 make demo
    poison.py --souk BINARY --demo DEMO [--share 0.2] [--source qrels|log]

Continues from the demo's served model with new searches, a share of which is spam: once trained on clicks alone (SFT), once with
the judge's verdicts after that (SFT + R-GRPO), and both without spam. Prints the gate's verdict and how many of the top 100 hits
are the seller's. With --source log, the gate's judgements come from the newest third of the new log, spam included, and from the
demo's log before it.
"""

import argparse
import calendar
import collections
import json
import random
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

PORT = 8491
DAY = 24 * 3600 * 1000
MONTH = 30 * DAY
SFT = '{name="sft", config="sft-market.toml", set=["train.pairs=examples"]}'
RGRPO = '{name="rgrpo", config="rgrpo-market.toml"}'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True)
    parser.add_argument("--demo", type=Path, required=True)
    parser.add_argument("--share", type=float, default=0.2, help="spam as a share of all clicks")
    parser.add_argument("--clicks", type=int, default=4000, help="number of honest clicks")
    parser.add_argument("--source", choices=["qrels", "log"], default="qrels", help="judgements of the gate")
    options = parser.parse_args()
    items = [json.loads(line) for line in open(options.demo / "shop/corpus.jsonl", encoding="utf-8")]
    brands = collections.Counter(item["brand"] for item in items if item.get("brand"))
    brand = brands.most_common()[len(brands) // 2][0]
    of_brand = {item["_id"] for item in items if item.get("brand") == brand}
    print(f"the seller `{brand}` has {len(of_brand)} of {len(items)} items")
    if options.source == "log":
        command = [options.souk, "judgements", "--data", options.demo / "shop", "--prefix", "log-"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print("| new clicks | stages | split | gate | hitrate@600 | ndcg_linear@10 | the seller's items in the top 100 |")
    else:
        print("| new clicks | stages | split | gate | hitrate@600 | goodrate@100 | the seller's items in the top 100 |")
    print("|---" * 7 + "|")
    for share, stages in ((0, [SFT]), (options.share, [SFT]), (0, [SFT, RGRPO]), (options.share, [SFT, RGRPO])):
        log = traffic(options, sorted(of_brand), share)
        run(options, of_brand, (share, stages, log))


def traffic(options, spammed, share):
    """A day of searches, replayed from the shop's log, with spam added."""
    dice = random.Random(7)
    lines = [json.loads(line) for line in open(options.demo / "shop/logs.ndjson", encoding="utf-8")]
    queries = {line["query_id"]: line for line in lines if "user_query" in line and "action_name" not in line}
    clicks = [line for line in lines if line.get("action_name") == "click"][-options.clicks :]
    spam = [dict(dice.choice(clicks), spam=True) for _ in range(round(share / (1 - share) * len(clicks)))]
    log = []
    # sorted by time, as in a real log
    for number, click in enumerate(sorted(clicks + spam, key=lambda click: click["timestamp"])):
        query = dict(queries[click["query_id"]], query_id=f"new-{number}")
        click = dict(json.loads(json.dumps(click)), query_id=f"new-{number}")
        if click.pop("spam", False):
            click["event_attributes"]["object"]["object_id"] = dice.choice(spammed)
        for line in (query, click):
            line["timestamp"] = moved(line["timestamp"])
            log.append(json.dumps(line) + "\n")
    return log


def moved(timestamp):
    return milliseconds(timestamp) + MONTH


def milliseconds(timestamp):
    if isinstance(timestamp, int):
        return timestamp
    return calendar.timegm(time.strptime(timestamp[:19], "%Y-%m-%dT%H:%M:%S")) * 1000


def run(options, of_brand, variant):
    share, stages, log = variant
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        for folder in "shop", "trainer":
            shutil.copytree(options.demo / folder, work / folder, symlinks=True)
        shutil.copy(options.demo / "souk.db", work / "souk.db")
        # a new log: a copy has another identity than the file that was read
        (work / "new.ndjson").write_text("".join(log), encoding="utf-8")
        clicks, metrics = len(log) // 2, ["hitrate@600", "goodrate@100"]
        sets = [f"trainer.stage=[{', '.join(stages)}]", f"store.database=sqlite:{work}/souk.db"]
        if options.source == "log":
            metrics[1] = "ndcg_linear@10"
            times = [milliseconds(json.loads(line)["timestamp"]) for line in log]
            days = (times[-1] - times[len(times) * 2 // 3]) / DAY
            sets.append(f"trainer.gate={{source='log', days={days}, splits=['log-dev'], depth=600, watched={metrics}}}")
            clicks //= 2
            # the new log is read at once, and its newest third must be divided from the rest
            sets.append("ingest.commit_log_hours=6")
        sets.append(f"trainer.pace={{examples={clicks - 100}, seconds=0, look_back=0}}")
        command = [options.souk, "trainer", "--config", "configs/trainer-market.toml", "--model", options.demo / "base"]
        command += ["--data", work / "shop", "--state", work / "trainer", "--from", work / "new.ndjson"]
        command += ["--listen", f"127.0.0.1:{PORT}", *(part for text in sets for part in ("--set", text))]
        before = json.load(open(work / "trainer/rounds/000001/decision.json"))["candidate"]["fingerprint"]
        trainer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=open(work / "trainer.log", "w"))
        began = time.monotonic()
        while True:
            time.sleep(1)
            if time.monotonic() - began > 600:
                raise SystemExit(f"no round in ten minutes: {status}")
            if trainer.poll() is not None:
                raise SystemExit(open(work / "trainer.log").read())
            try:
                status = json.load(urllib.request.urlopen(f"http://127.0.0.1:{PORT}/status"))
            except OSError:
                continue
            if status["last_round"]["round"] == 2:
                break
        trainer.terminate()
        trainer.wait()
        if not (work / "trainer/rounds/000002/decision.json").exists():
            raise SystemExit(f"the round failed: {status['last_round']['reasons']}")
        decision = json.load(open(work / "trainer/rounds/000002/decision.json"))
        after = decision["candidate"]["fingerprint"]
        said = "SFT" if len(stages) == 1 else "SFT + R-GRPO"
        spam = f"{share:.0%} spam" if share else "honest"
        for split, verdict in json.load(open(work / "trainer/rounds/000002/gate.json")).items():
            sides = [measured(work / f"trainer/measured/{model}-{split}", metrics, of_brand) for model in (before, after)]
            columns = [f"{old:.2f} -> {new:.2f}" for old, new in zip(*sides)]
            outcome = "passed" if verdict["passed"] else "refused"
            print(f"| {len(log) // 2}, {spam} | {said} | {split} | {outcome} | " + " | ".join(columns) + " |", flush=True)
        for reason in decision["gated"]["reasons"]:
            print(f"  {reason}")
        for name, alarm in status["alarms"].items():
            print(f"  alarm {name}: {alarm['problem']}")


def measured(folder, metrics, of_brand):
    overall = json.load(open(folder / "metrics.json"))["overall"]
    found, queries = 0, set()
    for line in open(folder / "run.trec", encoding="utf-8"):
        query, _, item, rank = line.split()[:4]
        queries.add(query)
        found += item in of_brand and int(rank) <= 100
    return *(overall[metric] for metric in metrics), found / len(queries)


if __name__ == "__main__":
    main()
