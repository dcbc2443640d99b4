"""Reading the archive of a real cluster: through its controller, or directly with --history.

The way to the controller is the API server's service proxy. The API server takes the credentials
off a request that it passes on, so the token is sent a second time, in a header of ours, and the
archive asks the API server what its user may read (`app/queries/archive_guard.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fairlead import terminal
from fairlead.api.status import ApiError, Expired, Forbidden, NotFound
from fairlead.app.queries.messages import (
    ACCOUNT,
    CUT_PREFIX,
    NOT_LEADER,
    PROXIED_NAME,
    TOKEN_HEADER,
    ArchivedLog,
    Book,
    CutLine,
)
from fairlead.cli.cluster.embedded import logs_path
from fairlead.cli.cluster.installation import own_namespace
from fairlead.input.errors import CliError, Code, fail

if TYPE_CHECKING:
    from fairlead.cli.connection.transport import Api

T = TypeVar("T")
URL_VARIABLE = "FAIRLEAD_HISTORY_URL"
TOKEN_SECONDS = 600
TRIES_MAX = 50


def proxy_path(namespace: str) -> str:
    """Return the path of the Service of an installation in this namespace."""
    return f"/api/v1/namespaces/{namespace}/services/{PROXIED_NAME}/proxy"


def token_path(namespace: str) -> str:
    """Return where a token of the account that reads all of the archive is asked for."""
    return f"/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}/token"


class _TokenStatus(msgspec.Struct, frozen=True):
    token: str


class _TokenRequest(msgspec.Struct, frozen=True):
    status: _TokenStatus


class NoArchive(Exception):
    """There is nothing to read from; `why` is for the person."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class Archive:
    """Where to read. `direct` is a file or a URL; empty: through the controller, by `api`."""

    api: Api | None
    direct: str = ""

    def record_lines(self, book: Book, query: Mapping[str, str]) -> Iterator[bytes]:
        """Yield JSON lines of records; NoArchive, CliError."""
        if not self.direct:
            yield from self._proxied(f"/fairlead/v1/{book.value}", query)
            return
        import asyncio

        from fairlead.app.queries.archive_query import record_lines
        from fairlead.app.queries.stores import open_stores

        async def read() -> list[bytes]:
            async with open_stores(self.direct, must_exist=True) as stores:
                pieces = record_lines(stores.history, book, query, runner=asyncio.to_thread)
                return [piece async for piece in pieces]

        for piece in _run(read):
            yield from piece.splitlines()

    def cluster_lines(self, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        """Yield what a cluster of `fairlead up` answers, or the controller of another one.

        NoArchive, CliError, Expired.
        """
        assert self.api is not None
        try:
            yield from self.api.lines(path, query)
        except (NotFound, Forbidden):  # not a cluster of fairlead up
            yield from self._proxied(path, query)

    def logs(
        self, key: tuple[str, str], attempt: int | None, *, uid: str = ""
    ) -> list[ArchivedLog]:
        """Return the kept logs of a job's attempt (None: the latest); NoArchive, CliError.

        `uid` chooses among jobs of this name; "": the latest.
        """
        lines = whole_lines(self._log_lines(key, attempt, uid))
        return [msgspec.json.decode(line, type=ArchivedLog) for line in lines]

    def _log_lines(self, key: tuple[str, str], attempt: int | None, uid: str) -> Iterator[bytes]:
        namespace, job = key
        if not self.direct:
            query = {} if attempt is None else {"attempt": str(attempt)}
            query |= {"uid": uid} if uid else {}
            path = logs_path(namespace, job)
            yield from self._proxied(path, query)
            return
        import asyncio

        from fairlead.app.queries.archive_query import log_lines
        from fairlead.app.queries.stores import open_stores
        from fairlead.runtime.kept.history import LogQuery

        async def read() -> list[bytes]:
            async with open_stores(self.direct, must_exist=True) as stores:
                wanted = LogQuery(namespace, job, attempt, uid=uid)
                lines = log_lines(stores.logs, wanted, runner=asyncio.to_thread)
                return [line async for line in lines]

        yield from _run(read)

    def ask(self, path: str, question: object) -> bytes:
        """Return what the process that decides answers to a question; NoArchive, CliError."""
        return self._answer("POST", path, body=question)

    def read(self, path: str, query: Mapping[str, str]) -> bytes:
        """Return a short answer of `cluster_lines` as a whole, within the time of a request."""
        return self._answer("GET", path, query=query)

    def _answer(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: object = None
    ) -> bytes:
        try:
            return self._asked(method, path, query, body)
        except CliError as error:
            if error.problems[0].code is not Code.UNREACHABLE:
                raise
            raise NoArchive(error.problems[0].message) from error

    def _asked(
        self, method: str, path: str, query: Mapping[str, str] | None, body: object
    ) -> bytes:
        api = self.api
        assert api is not None
        try:
            return api.request(method, path, query=query, body=body).body
        except (NotFound, Forbidden):  # not a cluster of fairlead up
            with _refusals():
                namespace = own_namespace(api)
                headers = {TOKEN_HEADER: self._token(api, namespace)}
                path = proxy_path(namespace) + path
                return _from_leader(
                    lambda: api.request(method, path, query=query, body=body, headers=headers).body
                )
        except ApiError as error:
            raise NoArchive(" ".join(error.message.split())) from error

    def _proxied(self, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        api = self.api
        assert api is not None
        with _refusals():
            namespace = own_namespace(api)
            headers = {TOKEN_HEADER: self._token(api, namespace)}
            path = proxy_path(namespace) + path
            yield from _from_leader(lambda: _begun(api.lines(path, query, headers=headers)))

    @staticmethod
    def _token(api: Api, namespace: str) -> str:
        """Return a token that says who asks; NoArchive, ApiError."""
        target = api.connection
        if target.impersonate_user:
            raise NoArchive("it does not take impersonated users (as: in the kubeconfig)")
        if token := api.token():
            return token
        body = {
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_SECONDS},
        }  # fmt: skip
        try:
            answer = api.request("POST", token_path(namespace), body=body)
        except ApiError as error:
            raise NoArchive(
                f"it takes a token, {target.source} has none, and no other can be had: "
                + " ".join(error.message.split())
            ) from error
        return msgspec.json.decode(answer.body, type=_TokenRequest).status.token


@contextmanager
def _refusals() -> Generator[None]:
    """Raise NoArchive for what the API refuses; an answer that is too old is Expired."""
    try:
        yield
    except Expired:
        raise
    except ApiError as error:
        raise NoArchive(" ".join(error.message.split())) from error


def _from_leader(attempt: Callable[[], T]) -> T:
    """Return the first answer that is not another replica's to give: a Service leads to any."""
    for _ in range(TRIES_MAX - 1):
        try:
            return attempt()
        except ApiError as error:
            if error.status.reason != NOT_LEADER:
                raise
    return attempt()


def _begun(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Return the lines once there is a first one, or the end; what it raises is raised."""
    return chain(tuple(islice(lines, 1)), lines)


def whole_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of an answer. Why it is not whole goes to stderr, also with -q."""
    for line in lines:
        if line.startswith(CUT_PREFIX):
            cut = msgspec.json.decode(line, type=CutLine).cut
            terminal.tell(f"warning: this is not all: {cut}")
        else:
            yield line


def direct_store(flag: str, environment: Mapping[str, str]) -> str:
    """Return what --history or the variable names; "" to ask the controller."""
    return flag or environment.get(URL_VARIABLE, "")


def no_archive(what: str, error: NoArchive) -> CliError:
    """Return the one clear line, and the remedies."""
    return fail(
        Code.REFUSED, f"{what} cannot be read through the controller",
        detail=(error.why,),
        help=("--history FILE or $FAIRLEAD_HISTORY_URL reads the store directly",
              "fairlead install --check says what the controller lacks"),
    )  # fmt: skip


def _run(read: Callable[[], Coroutine[Any, Any, list[T]]]) -> list[T]:
    import asyncio

    from fairlead.runtime.kept.history import HistoryError

    try:
        return asyncio.run(read())
    except HistoryError as error:
        raise fail(
            Code.DATA_UNWRITABLE, str(error), help=("check --history, $FAIRLEAD_HISTORY_URL",)
        ) from error
