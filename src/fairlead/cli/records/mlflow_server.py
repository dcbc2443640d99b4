"""Writes runs to an MLflow tracking server, by its REST API.

A run of MLflow is ours by the tag `fairlead.uid`, which it has from the request that creates it. A
digest of all that was written is its last tag. So an export that was ended anywhere finds its runs
again, adds what is missing, and sends nothing for a run that has not changed.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from fairlead.api.status import ApiError, Forbidden, Status, Unauthorized, error_from_status
from fairlead.cli.views.mlflow_run import (
    DIGEST_TAG,
    OWN_TAGS,
    UID_TAG,
    MlflowRun,
    Point,
    RunExport,
    batches,
)
from fairlead.input.errors import CliError, Code, fail
from fairlead.kube.blocking import BlockingClient
from fairlead.kube.http1 import HttpResponse
from fairlead.kube.kubeconfig import Connection, KubeconfigError
from fairlead.kube.protocol import HttpOptions, HttpRequest
from fairlead.terminal import printable

PREFIX = "mlflow:"
URI_VARIABLE = "MLFLOW_TRACKING_URI"
SECONDS_MAX = 60.0
ANSWER_BYTES_MAX = 64 << 20
POINTS_PAGE = 1_000
ERROR_BYTES_MAX, WORDS_MAX = 65_536, 300
_UID = re.compile(r"[A-Za-z0-9-]{1,64}")
T = TypeVar("T")


class _Named(msgspec.Struct, frozen=True):
    key: str
    value: str = ""


class _Info(msgspec.Struct, frozen=True):
    run_id: str


class _Metric(msgspec.Struct, frozen=True):
    key: str
    value: float | str = 0.0
    #: JSON of protocol buffers may have 64-bit numbers as texts.
    step: int | str = 0


class _Data(msgspec.Struct, frozen=True):
    metrics: tuple[_Metric, ...] = ()
    params: tuple[_Named, ...] = ()
    tags: tuple[_Named, ...] = ()


class _Run(msgspec.Struct, frozen=True):
    info: _Info
    data: _Data = _Data()


class _Runs(msgspec.Struct, frozen=True):
    runs: tuple[_Run, ...] = ()


class _Created(msgspec.Struct, frozen=True):
    run: _Run


class _Experiment(msgspec.Struct, frozen=True):
    experiment_id: str
    lifecycle_stage: str = "active"


class _Found(msgspec.Struct, frozen=True):
    experiment: _Experiment


class _Points(msgspec.Struct, frozen=True):
    metrics: tuple[_Metric, ...] = ()
    next_page_token: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error_code: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class MlflowTarget:
    """Where runs are written to; `connection.server` has no credentials."""

    connection: Connection
    login: str = field(default="", repr=False)


def mlflow_target(text: str, environment: Mapping[str, str]) -> MlflowTarget:
    """Read `mlflow:URI`, or `mlflow` for the URI of MLFLOW_TRACKING_URI; CliError.

    Credentials are those of the URI, else of the variables that MLflow's own client reads. No
    message has them.
    """
    if text != PREFIX[:-1] and not text.startswith(PREFIX):
        raise _bad_target("runs are exported to MLflow alone")
    uri = text.removeprefix(PREFIX[:-1]).removeprefix(":") or environment.get(URI_VARIABLE, "")
    source = "--to" if text not in (PREFIX, PREFIX[:-1]) else URI_VARIABLE
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise _bad_target(f"the address in {source} is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _bad_target(f"the address in {source} leads to no server over http or https")
    if parts.query or parts.fragment or re.search(r"[^!-~]", uri):
        raise _bad_target(f"the address in {source} has more than a host, a port and a path")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    server = f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if not user:
        user = environment.get("MLFLOW_TRACKING_USERNAME", "")
        password = environment.get("MLFLOW_TRACKING_PASSWORD", "")
    connection = Connection(
        server, source,
        token="" if user else environment.get("MLFLOW_TRACKING_TOKEN", ""),
        certificate_authority=_authority(environment.get("MLFLOW_TRACKING_SERVER_CERT_PATH", "")),
        skip_server_verification=environment.get("MLFLOW_TRACKING_INSECURE_TLS") == "true",
    )  # fmt: skip
    return MlflowTarget(connection, f"{user}:{password}" if user else "")


def _bad_target(why: str) -> CliError:
    return fail(
        Code.BAD_VALUE, why,
        detail=("accepted: mlflow:http(s)://HOST[:PORT][/PATH], or mlflow and "
                "MLFLOW_TRACKING_URI",),
        help=("a file is served by: mlflow server --backend-store-uri sqlite:///mlflow.db",),
    )  # fmt: skip


def _authority(path: str) -> bytes:
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise fail(Code.BAD_VALUE, f"MLFLOW_TRACKING_SERVER_CERT_PATH: '{path}' cannot be read: "
                   f"{error.strerror or error}") from error  # fmt: skip


class _Client(BlockingClient):
    """Sends with a login; what MLflow itself refuses has its code as the reason."""

    def __init__(self, target: MlflowTarget) -> None:
        options = HttpOptions(request_seconds=SECONDS_MAX, answer_bytes_max=ANSWER_BYTES_MAX)
        super().__init__(target.connection, options)
        login = base64.b64encode(target.login.encode()).decode()
        self._headers = (("Authorization", f"Basic {login}"),) if target.login else ()

    def ask(self, verb: str, path: str, body: object = None, **query: str) -> bytes:
        """Send one request; `verb` is GET or POST."""
        raw = None if body is None else msgspec.json.encode(body)
        asked = HttpRequest(
            verb, f"/api/2.0/mlflow/{path}", query or None, raw, headers=self._headers
        )
        return self.send(asked).body

    def refusal(self, asked: HttpRequest, answer: HttpResponse) -> ApiError:
        """Return the error for an answer that is no success, in the words of MLflow where it has
        any.
        """
        try:
            said = msgspec.json.decode(answer.body[:ERROR_BYTES_MAX], type=_Refusal)
        except ValueError:
            return super().refusal(asked, answer)
        words = printable(said.message, WORDS_MAX) or said.error_code
        return error_from_status(Status(message=words, reason=said.error_code, code=answer.status))


class MlflowServer:
    """One experiment of a tracking server; it is made with the first run that is written.

    All methods raise CliError: nothing is asked twice, as the same export may be.
    """

    def __init__(self, target: MlflowTarget, experiment: str) -> None:
        self.address = target.connection.server
        self.experiment = experiment
        self._client = _Client(target)
        self._experiment_id: str | None = None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def check(self) -> None:
        """Look for the experiment; CliError also where it was deleted."""
        try:
            raw = self._client.ask(
                "GET", "experiments/get-by-name", experiment_name=self.experiment
            )
        except (ApiError, KubeconfigError) as error:
            if isinstance(error, ApiError) and error.status.reason == "RESOURCE_DOES_NOT_EXIST":
                return
            raise self._failed("", error) from error
        found = self._decoded(raw, _Found).experiment
        if found.lifecycle_stage != "active":
            raise fail(
                Code.EXPORT, f"{self.address}: the experiment '{self.experiment}' was deleted",
                help=(f"mlflow experiments restore --experiment-id {found.experiment_id}, or "
                      "--experiment with another name",),
            )  # fmt: skip
        self._experiment_id = found.experiment_id

    def export(self, run: MlflowRun, *, is_dry: bool) -> RunExport:
        """Write a run, or find out what would be written."""
        try:
            return self._export(run, is_dry=is_dry)
        except (ApiError, KubeconfigError) as error:
            raise self._failed(f"run {run.name}: ", error) from error

    def _export(self, run: MlflowRun, *, is_dry: bool) -> RunExport:
        known = self._find(run.uid)
        if known is None:
            wanted = RunExport(run, "create", "", run.params, tuple(run.points))
            return wanted if is_dry else self._written(wanted, self._create(run))
        tags = {each.key: each.value for each in known.data.tags}
        if tags.get(DIGEST_TAG) == run.digest:
            return RunExport(run, "none", known.info.run_id)
        params = {each.key: each.value for each in known.data.params}
        there = {
            each.key: self._history(known.info.run_id, each.key)
            for each in known.data.metrics
            if each.key in run.metric_keys()
        }
        wanted = RunExport(
            run, "update", known.info.run_id,
            {key: value for key, value in run.params.items() if key not in params},
            tuple(each for each in run.points if each.identity not in there.get(each.key, ())),
            tuple(key for key, value in run.params.items() if params.get(key, value) != value),
        )  # fmt: skip
        stale = (key for key in tags if key.startswith(OWN_TAGS) and key not in run.tags)
        return wanted if is_dry else self._written(wanted, known.info.run_id, stale)

    def _written(self, wanted: RunExport, run_id: str, stale: Iterable[str] = ()) -> RunExport:
        """Write what is missing of a run, and remove stale tags; the digest comes last."""
        run = wanted.run
        for key in stale:
            self._client.ask("POST", "runs/delete-tag", {"run_id": run_id, "key": key})
        for body in batches(wanted.params, wanted.points, run.tags, run.start_ms):
            self._client.ask("POST", "runs/log-batch", {"run_id": run_id, **body})
        ended = {} if run.end_ms is None else {"end_time": run.end_ms}
        self._client.ask(
            "POST", "runs/update",
            {"run_id": run_id, "status": run.status, "run_name": run.name, **ended},
        )  # fmt: skip
        self._client.ask(
            "POST", "runs/set-tag", {"run_id": run_id, "key": DIGEST_TAG, "value": run.digest}
        )
        return replace(wanted, run_id=run_id)

    def _find(self, uid: str) -> _Run | None:
        """Return the run of a uid, the earliest of several; None for none."""
        if self._experiment_id is None:
            return None
        if not _UID.fullmatch(uid):
            raise fail(Code.BAD_ANSWER, f"the history has a run whose uid is none: '{uid[:64]}'")
        raw = self._client.ask("POST", "runs/search", {
            "experiment_ids": [self._experiment_id], "filter": f"tags.`{UID_TAG}` = '{uid}'",
            "max_results": 1, "order_by": ["attributes.start_time ASC"],
        })  # fmt: skip
        found = self._decoded(raw, _Runs).runs
        return found[0] if found else None

    def _create(self, run: MlflowRun) -> str:
        """Make a run that holds its tag of identity alone; return its id."""
        raw = self._client.ask("POST", "runs/create", {
            "experiment_id": self._experiment(), "run_name": run.name, "start_time": run.start_ms,
            "tags": [{"key": UID_TAG, "value": run.uid}],
        })  # fmt: skip
        return self._decoded(raw, _Created).run.info.run_id

    def _experiment(self) -> str:
        if self._experiment_id is None:
            try:
                raw = self._client.ask("POST", "experiments/create", {"name": self.experiment})
            except ApiError as error:
                if error.status.reason != "RESOURCE_ALREADY_EXISTS":
                    raise
                self.check()  # another export made it meanwhile
            else:
                self._experiment_id = self._decoded(raw, _Experiment).experiment_id
        assert self._experiment_id is not None
        return self._experiment_id

    def _history(self, run_id: str, key: str) -> set[tuple[int, str]]:
        """Return the points of a metric, page by page."""
        found, page = set[tuple[int, str]](), ""
        while True:
            query = {"run_id": run_id, "metric_key": key, "max_results": str(POINTS_PAGE)}
            raw = self._client.ask(
                "GET", "metrics/get-history", **query, **({"page_token": page} if page else {})
            )
            answer = self._decoded(raw, _Points)
            for each in answer.metrics:
                found.add(Point(each.key, float(each.value), int(each.step)).identity)
            page = answer.next_page_token
            if not page:
                return found

    def _decoded(self, raw: bytes, type_: type[T]) -> T:
        try:
            return msgspec.json.decode(raw, type=type_)
        except ValueError as error:
            raise fail(
                Code.EXPORT, f"{self.address} does not answer as MLflow does: {error}",
                help=("name a tracking server, as MLFLOW_TRACKING_URI does",),
            ) from error  # fmt: skip

    def _failed(self, what: str, error: Exception) -> CliError:
        words = error.message if isinstance(error, ApiError) else str(error)
        remedy = "what was written stays: the same command goes on, and writes nothing twice"
        if not what:
            remedy = "--to takes the address of MLflow's own page, and of MLFLOW_TRACKING_URI"
        if isinstance(error, Unauthorized | Forbidden):
            remedy = "set MLFLOW_TRACKING_USERNAME and _PASSWORD, or MLFLOW_TRACKING_TOKEN"
        return fail(Code.EXPORT, f"{what}{words}", detail=(f"the server is {self.address}",),
                    help=(remedy,))  # fmt: skip
