"""Measures the time from the wheel to the first hit: a new Python environment, pip, `souk start`, and a search over HTTP.

    first_hit.py --souk BINARY --wheel WHEEL --torch DIR --model DIR [--items N...]

Nothing is downloaded: torch's libraries are linked in from --torch (scripts/setup.sh made it), and the catalogue is a simulated shop's.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--souk", required=True)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--torch", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--items", type=int, nargs="+", default=[1_000, 10_000])
    options = parser.parse_args()
    print("| items | environment | pip install | start to first hit | sum |")
    print("|---" * 5 + "|")
    for num_items in options.items:
        with tempfile.TemporaryDirectory() as work:
            seconds = measure(options, num_items, Path(work))
        print(f"| {num_items} | " + " | ".join(f"{time:.1f} s" for time in [*seconds, sum(seconds)]) + " |", flush=True)


def measure(options, num_items, work):
    market = [options.souk, "market", "--items", str(num_items), "--queries", "100", "--events", "100", "--out", work / "shop"]
    subprocess.run(market, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    begin = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", work / "env"], check=True)
    made = time.monotonic()
    python = work / "env/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", options.wheel.resolve()], check=True)
    folder = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True,
                            capture_output=True, text=True).stdout.strip()
    for name in ("torch", "nvidia"):
        os.symlink(options.torch.resolve() / name, Path(folder) / name)
    installed = time.monotonic()
    return [made - begin, installed - made, first_hit(options, work)]


def first_hit(options, work):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % free.getsockname()[1]
    command = [work / "env/bin/souk", "start", "--items", work / "shop/corpus.jsonl", "--model", options.model.resolve(),
               "--out", work / "my_shop", "--listen", address]
    with open(work / "log", "wb") as log:
        begin = time.monotonic()
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while not has_hit(address):
            if server.poll() is not None:
                sys.exit(f"error: souk start ended:\n{(work / 'log').read_text()}")
            time.sleep(0.05)
        return time.monotonic() - begin
    finally:
        server.terminate()
        server.wait()


def has_hit(address):
    request = urllib.request.Request(f"http://{address}/search", json.dumps({"query": "lamp", "k": 1}).encode())
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bool(json.load(answer)["hits"])
    except OSError:
        return False


if __name__ == "__main__":
    main()
