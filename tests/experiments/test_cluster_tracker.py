"""Weights & Biases online, against a server of our own: one run id, and no secret anywhere."""

import gzip
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

PAPER = "model_equality_testing"
SECRETS = {
    "WANDB_API_KEY": "local-" + "5ec2e7a1" * 5,
    "OPENAI_API_KEY": "sk-5ec2e7b2" * 4,
    "HF_TOKEN": "hf_5ec2e7c3" * 4,
}


class Tracker(BaseHTTPRequestHandler):
    """As much of the server's protocol as a run needs."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append((self.path, body))
        graphql = self.path.endswith("/graphql")
        content = json.dumps({"data": self.answer(json.loads(body))} if graphql else {}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_PUT = do_POST

    def answer(self, asked):
        query, values = asked["query"], asked.get("variables") or {}
        runs = self.server.runs
        lab = {"id": "e", "name": "lab"}
        if "RunResumeStatus" in query:
            bucket = runs.get(values["name"])
            return {"model": {"id": "p", "name": "p", "entity": lab, "bucket": bucket}}
        if "UpsertBucket" in query:
            project = {"id": "p", "name": values["project"], "entity": lab}
            bucket = {"id": "b", "name": values["name"], "config": "{}", "project": project}
            counts = ("logLineCount", "historyLineCount", "eventsLineCount")
            tails = {"historyTail": '["{}"]', "eventsTail": "[]", "summaryMetrics": "{}"}
            rest = {"displayName": "r", "tags": [], "notes": None, "wandbConfig": '{"t": 1}'}
            runs[values["name"]] = bucket | dict.fromkeys(counts, 1) | tails | rest
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "CreateArtifact " in query:
            artifact = {"id": "a", "state": "COMMITTED", "artifactSequence": None}
            return {"createArtifact": {"artifact": artifact}}
        if "CreateRunFiles" in query:
            host = f"http://127.0.0.1:{self.server.server_port}"
            files = [{"name": n, "uploadUrl": f"{host}/put/{n}"} for n in values["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        viewer = {"id": "1", "entity": "lab", "username": "lab", "flags": "{}"}
        return {
            "viewer": viewer | {"email": "", "teams": {"edges": []}},
            "serverInfo": {"features": []},
            "project": None,
        }


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Tracker)
        self.requests: list[tuple[str, bytes]] = []
        self.runs: dict[str, dict] = {}


@pytest.fixture
def server():
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ritornello(*arguments, cwd, start=("-m", "ritornello"), **environment):
    arguments = (f"experiment={PAPER}/smoke", "only.parts=[distances]", *arguments)
    return subprocess.run(
        [sys.executable, *start, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **SECRETS, **environment},
    )


def test_a_resumed_run_continues_its_id_and_no_secret_is_kept(server, tmp_path):
    url = f"http://127.0.0.1:{server.server_port}"
    said = ""
    for tracker in ("wandb", "wandb_online", "wandb_online"):
        done = ritornello(f"tracker={tracker}", cwd=tmp_path, WANDB_BASE_URL=url)
        said += done.stdout + done.stderr
        assert done.returncode == 0, said
    assert "the tracker failed" not in said
    (directory,) = (tmp_path / "outputs" / PAPER / "smoke").iterdir()
    run_id = f"{PAPER}-smoke-{directory.name}"
    # Online twice, the second time found and continued; offline it has the same id.
    assert list(server.runs) == [run_id]
    streams = {p for p, _ in server.requests if "file_stream" in p}
    assert streams == {f"/files/lab/ritornello/{run_id}/file_stream"}
    assert list((directory / "wandb").glob(f"offline-run-*-{run_id}/*.wandb"))
    assert any(b"verdict/" in body for path, body in server.requests if "file_stream" in path)
    assert any(path.startswith("/put/media/") for path, _ in server.requests)
    kept = [f for f in tmp_path.rglob("*") if f.is_file()]
    assert len(kept) > 20
    for secret in SECRETS.values():
        assert secret not in said
        assert not [f for f in kept if secret.encode() in f.read_bytes()]
        assert not [path for path, body in server.requests if secret.encode() in body]


IMPATIENT = """
from ritornello.common.reporting import trackers
from ritornello.experiments.command import main
trackers._PATIENCE = 2
main()
"""


def test_a_server_that_is_not_there_costs_the_copy_only(tmp_path):
    closed = {"WANDB_BASE_URL": "http://127.0.0.1:9"}
    done = ritornello("tracker=wandb_online", cwd=tmp_path, start=("-c", IMPATIENT), **closed)
    assert done.returncode == 0, done.stderr
    assert "the tracker failed" in done.stdout
    assert "Page: " in done.stdout
    assert SECRETS["WANDB_API_KEY"] not in done.stdout + done.stderr
