"""Starts, queries and stops a search service, for the other benchmarks."""

import json
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path


class Server:
    """Runs `souk serve`; `seconds` is the time until it was ready."""

    def __init__(self, souk, port, folders, settings=()):
        self.port = port
        model, data, state = folders
        command = [souk, "serve", "--config", "configs/search-embedded.toml", "--model", model.resolve(), "--data", data]
        command += ["--state", state, "--listen", f"127.0.0.1:{port}"]
        # vectors alone, like the other side, unless a search says otherwise
        for setting in (f"store.database=sqlite:{state}.db", "search.hybrid=false", *settings):
            command += ["--set", setting]
        begin = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while True:
            try:
                self.ask("/readyz")
                break
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit("the service did not start") from None
                time.sleep(0.02)
        self.seconds = time.monotonic() - begin

    def ask(self, route, body=None):
        data = None if body is None else json.dumps(body).encode()
        url, head = f"http://127.0.0.1:{self.port}{route}", {"content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, data, head), timeout=60) as answer:
            return answer.read()

    def metric(self, name):
        return float(re.search(rf"^{name} (\S+)", self.ask("/metrics").decode(), re.MULTILINE)[1])

    def memory(self):
        """Anonymous memory in MiB, without mapped files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) / 1024

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def load(bench, port, bodies, connections, seconds):
    """Sends the requests in `bodies` for some seconds with the built bench `load`; returns answers/s and latencies in ms."""
    command = [bench, "--bench", f"127.0.0.1:{port}", "/search", bodies, str(connections), str(seconds)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    number = lambda pattern: float(re.search(pattern, said)[1])
    return {"rate": number(r"([\d.]+)/s"), "p50": number(r"p50 ([\d.]+) ms"), "p99": number(r"p99 ([\d.]+) ms")}
