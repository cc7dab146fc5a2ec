"""Records how the official client of Weights & Biases tells a server of a run; src/train/tracking/wandb.rs must tell it the same.

    python -m venv env && env/bin/pip install wandb==0.31.0
    env/bin/python tests/golden/make_wandb.py tests/golden/wandb
"""

import json
import os
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PROJECT = {"id": "p", "name": "shop", "entity": {"id": "e", "name": "team"}}
BUCKET = {"id": "b", "name": "r1", "displayName": "SFT", "config": "{}", "historyLineCount": 0, "project": PROJECT}
# what differs from run to run, or describes the client
CHANGING = {"_runtime", "_timestamp", "_wandb"}


class Recorder(BaseHTTPRequestHandler):
    """Answers as a server does that has the project and not the run."""

    seen: list[dict] = []

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("content-length") or 0))
        answer: dict = {}
        if self.path == "/graphql":
            body = json.loads(text)
            if "upsertBucket" in body["query"]:
                self.keep(body)
                answer = {"data": {"upsertBucket": {"bucket": BUCKET, "inserted": True}}}
            elif "createRunFiles" in body["query"]:
                at = f"http://127.0.0.1:{self.server.server_port}/upload"
                files = [{"name": name, "uploadUrl": f"{at}/{name}"} for name in body["variables"]["files"]]
                answer = {"data": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}}
        elif self.path.endswith("/file_stream"):
            self.keep(json.loads(text))
        self.reply(answer)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.reply({})

    def keep(self, body: dict) -> None:
        self.seen.append({"path": self.path, "authorization": self.headers["authorization"], "body": body})

    def reply(self, answer: dict) -> None:
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def train(url: str, folder: str) -> None:
    os.environ |= {"WANDB_BASE_URL": url, "WANDB_API_KEY": "k" * 40, "WANDB_DIR": folder, "WANDB_SILENT": "true"}
    import wandb

    quiet = wandb.Settings(console="off", disable_code=True, disable_git=True, x_disable_meta=True, x_disable_stats=True)
    config = {"model": "bert", "train.optimizer.learning_rate": 1e-5}
    run = wandb.init(project="shop", name="SFT", id="r1", config=config, settings=quiet)
    run.log({"train/loss": 1.5}, step=1)
    run.log({"train/loss": 1.25}, step=2)
    run.log({"evaluate/ndcg@10": 40.5}, step=2)
    run.finish()


def without_changing(line: str) -> dict:
    return {name: value for name, value in sorted(json.loads(line).items()) if name not in CHANGING}


def main(folder: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as home:
        train(f"http://127.0.0.1:{server.server_port}", home)
    begin = next(request for request in Recorder.seen if request["path"] == "/graphql")
    streamed = [request for request in Recorder.seen if request["path"] != "/graphql"]
    files = [request["body"].get("files", {}) for request in streamed]
    history = [line for each in files for line in each.get("wandb-history.jsonl", {"content": []})["content"]]
    summary = [each["wandb-summary.json"]["content"][0] for each in files if "wandb-summary.json" in each][-1]
    last = streamed[-1]
    recorded = {
        "authorization": begin["authorization"],
        "begin": {name: value for name, value in begin["body"]["variables"].items() if name in ("name", "project", "displayName")},
        "config": without_changing(begin["body"]["variables"]["config"]),
        "stream": {
            "path": last["path"],
            "history": [without_changing(line) for line in history],
            "summary": without_changing(summary),
            "complete": last["body"]["complete"],
            "exitcode": last["body"]["exitcode"],
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "requests.json").write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
