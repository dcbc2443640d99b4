"""A tracking server of MLflow on loopback, as strict as its REST API says.

The requests are those that MLflow documents (mlflow/mlflow,
docs/api_reference/source/rest-api.rst): a field that is not listed there, a value over a limit, or
a parameter that changes is refused. Unlike the SQL store of MLflow it keeps a point as often as it
is logged, so what is written twice shows.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlsplit

PREFIX = "/api/2.0/mlflow/"
#: Fields of each request, and the type of each.
FIELDS: dict[str, dict[str, type]] = {
    "experiments/get-by-name": {"experiment_name": str},
    "experiments/create": {"name": str},
    "runs/search": {"experiment_ids": list, "filter": str, "max_results": int, "order_by": list},
    "runs/create": {"experiment_id": str, "run_name": str, "start_time": int, "tags": list},
    "runs/update": {"run_id": str, "status": str, "end_time": int, "run_name": str},
    "runs/set-tag": {"run_id": str, "key": str, "value": str},
    "runs/delete-tag": {"run_id": str, "key": str},
    "runs/log-batch": {"run_id": str, "metrics": list, "params": list, "tags": list},
    "metrics/get-history": {
        "run_id": str,
        "metric_key": str,
        "max_results": str,
        "page_token": str,
    },
}
STATES = {"RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED"}
PAGE = 20


class Refused(Exception):
    """An error of MLflow: code and words."""


class FakeMlflow:
    """What the server holds. `login`: what Authorization must be, where it must be anything."""

    def __init__(self) -> None:
        self.experiments: dict[str, dict[str, str]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.login = ""
        #: The request with this number is lost: itself, or its answer.
        self.lost_at = self.answer_lost_at = -1
        self.address = ""

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Carry a request out; Refused."""
        known = FIELDS.get(path)
        if known is None:
            raise Refused("ENDPOINT_NOT_FOUND", path)
        for name, value in body.items():
            if type(value) is not known.get(name):
                raise Refused("INVALID_PARAMETER_VALUE", f"{path}: {name} = {value!r}")
        name = "_" + re.sub(r"\W", "_", path.partition("/")[2])
        found: dict[str, Any] = getattr(self, name)(**body)
        return found

    def _get_by_name(self, experiment_name: str) -> dict[str, Any]:
        if experiment_name not in self.experiments:
            raise Refused("RESOURCE_DOES_NOT_EXIST", f"no experiment {experiment_name}")
        return {"experiment": self.experiments[experiment_name]}

    def _create(self, **body: Any) -> dict[str, Any]:
        if "name" in body:
            number = str(len(self.experiments) + 1)
            if body["name"] in self.experiments:
                raise Refused("RESOURCE_ALREADY_EXISTS", body["name"])
            self.experiments[body["name"]] = {
                "experiment_id": number, "lifecycle_stage": "active",
            }  # fmt: skip
            return {"experiment_id": number}
        assert body["experiment_id"] in {e["experiment_id"] for e in self.experiments.values()}
        run_id = f"{len(self.runs):032x}"
        self.runs[run_id] = {
            "experiment": body["experiment_id"], "status": "RUNNING", "params": {}, "points": [],
            "start": body["start_time"], "name": body["run_name"],
            "tags": _texts(body["tags"], 5000),
        }  # fmt: skip
        return {"run": self._shown(run_id)}

    def _search(self, **body: Any) -> dict[str, Any]:
        wanted = re.fullmatch(r"tags\.`([\w.]+)` = '([\w-]+)'", body["filter"])
        assert wanted, body["filter"]
        found = [
            self._shown(run_id) for run_id, run in self.runs.items()
            if run["experiment"] in body["experiment_ids"]
            and run["tags"].get(wanted[1]) == wanted[2]
        ]  # fmt: skip
        return {"runs": found[: body["max_results"]]} if found else {}

    def _update(self, run_id: str, **body: Any) -> dict[str, Any]:
        assert body["status"] in STATES
        self.runs[run_id] |= {"status": body["status"], "end": body.get("end_time")}
        return {}

    def _set_tag(self, run_id: str, key: str, value: str) -> dict[str, Any]:
        self.runs[run_id]["tags"] |= _texts([{"key": key, "value": value}], 5000)
        return {}

    def _delete_tag(self, run_id: str, key: str) -> dict[str, Any]:
        del self.runs[run_id]["tags"][key]
        return {}

    def _log_batch(self, run_id: str, **body: Any) -> dict[str, Any]:
        metrics, params, tags = (body.get(name, []) for name in ("metrics", "params", "tags"))
        if len(params) > 100 or len(tags) > 100 or len(params) + len(tags) + len(metrics) > 1000:
            raise Refused("INVALID_PARAMETER_VALUE", "too many at once")
        run = self.runs[run_id]
        new = _texts(params, 6000)
        if any(run["params"].get(key, value) != value for key, value in new.items()):
            raise Refused("INVALID_PARAMETER_VALUE", "changing param values is not allowed")
        for point in metrics:
            assert set(point) == {"key", "value", "timestamp", "step"}
            assert isinstance(point["timestamp"], int)
            assert isinstance(point["step"], int)
        for key in [*new, *(point["key"] for point in metrics)]:
            if not re.fullmatch(r"[/\w.\- :]+", key) or posixpath.normpath(key) != key:
                raise Refused("INVALID_PARAMETER_VALUE", f"invalid name {key}")
        run["params"] |= new
        run["tags"] |= _texts(tags, 5000)
        run["points"] += metrics
        return {}

    def _get_history(
        self, run_id: str, metric_key: str, max_results: str, page_token: str = "0"
    ) -> dict[str, Any]:
        own = [each for each in self.runs[run_id]["points"] if each["key"] == metric_key]
        begin, end = int(page_token), int(page_token) + min(PAGE, int(max_results))
        more = {"next_page_token": str(end)} if end < len(own) else {}
        return {"metrics": own[begin:end], **more}

    def _shown(self, run_id: str) -> dict[str, Any]:
        run = self.runs[run_id]
        latest = {point["key"]: point for point in run["points"]}
        data = {
            "metrics": list(latest.values()),
            "params": [{"key": key, "value": value} for key, value in run["params"].items()],
            "tags": [{"key": key, "value": value} for key, value in run["tags"].items()],
        }  # fmt: skip
        return {"info": {"run_id": run_id}, "data": {key: own for key, own in data.items() if own}}


def _texts(pairs: list[dict[str, str]], bytes_max: int) -> dict[str, str]:
    for pair in pairs:
        assert set(pair) == {"key", "value"}
        if len(pair["key"].encode()) > 250 or len(pair["value"].encode()) > bytes_max:
            raise Refused("INVALID_PARAMETER_VALUE", f"{pair['key']} is too long")
    return {pair["key"]: pair["value"] for pair in pairs}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeMlflow

    def do_GET(self) -> None:
        self._answer(dict(parse_qsl(urlsplit(self.path).query)))

    def do_POST(self) -> None:
        assert self.headers["Content-Type"] == "application/json"
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        assert len(raw) <= 1_000_000
        self._answer(json.loads(raw))

    def _answer(self, body: dict[str, Any]) -> None:
        fake, path = self.fake, urlsplit(self.path).path
        assert path.startswith(PREFIX)
        number = len(fake.requests)
        fake.requests.append(path.removeprefix(PREFIX))
        if number == fake.lost_at:
            self.close_connection = True
            return
        if fake.login and self.headers.get("Authorization") != fake.login:
            self._send(401, b"You are not authenticated")
            return
        try:
            code, found = 200, fake.answer(path.removeprefix(PREFIX), body)
        except Refused as error:
            reason, words = error.args
            code = 404 if reason == "RESOURCE_DOES_NOT_EXIST" else 400
            found = {"error_code": reason, "message": words}
        if number == fake.answer_lost_at:
            self.close_connection = True
            return
        self._send(code, json.dumps(found).encode())

    def _send(self, code: int, raw: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name there
        pass


@contextmanager
def serving() -> Iterator[FakeMlflow]:
    """Yield a server that listens at its `address`."""
    fake = FakeMlflow()
    handler = type("Handler", (_Handler,), {"fake": fake})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    fake.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
