"""The terminal's client: the blocking one, whose failures to reach a server are errors to show."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from fairlead.input.errors import CliError, Code, fail
from fairlead.kube.blocking import BlockingClient, NoAnswer
from fairlead.kube.http1 import ConnectError, HttpResponse
from fairlead.kube.kubeconfig import Connection, KubeconfigError
from fairlead.kube.protocol import HttpOptions, HttpRequest

TIMEOUT_SECONDS = 10.0
LIST_PAGE = 5_000
ANSWER_BYTES_MAX = 512 << 20


class Api(BlockingClient):
    """A connection to one cluster.

    Raises `ApiError` subclasses for what the server refuses, and `CliError` when it does not answer
    (E600) or cannot be asked.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        connect: Callable[[Connection, HttpOptions], socket.socket] | None = None,
    ) -> None:
        """`connect` makes its connections; by default the usual ones."""
        options = HttpOptions(
            connect_seconds=timeout_seconds, request_seconds=timeout_seconds,
            page_size=LIST_PAGE, answer_bytes_max=ANSWER_BYTES_MAX,
        )  # fmt: skip
        super().__init__(connection, options, connect=connect)

    def token(self) -> str:
        """Return the bearer token of now, "" for none; CliError."""
        try:
            return super().token()
        except KubeconfigError as error:
            raise fail(Code.KUBECONFIG, str(error)) from error

    def send(self, asked: HttpRequest) -> HttpResponse:
        """Send one request and return its successful answer; ApiError, CliError."""
        with self._explained():
            return super().send(asked)

    def stream(
        self, asked: HttpRequest, *, timeout_seconds: float | None = None
    ) -> Iterator[bytes]:
        """Yield a streamed answer's bytes; see `BlockingClient`. CliError when there is none."""
        with self._explained():
            yield from super().stream(asked, timeout_seconds=timeout_seconds)

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except NoAnswer as error:
            cause = error.__cause__
            if isinstance(cause, ConnectError):
                cause = cause.__cause__
            raise self._no_answer_error(cause) from error
        except KubeconfigError as error:
            raise fail(Code.KUBECONFIG, str(error)) from error

    def _no_answer_error(self, error: BaseException | None) -> CliError:
        server = self.connection.server
        if isinstance(error, TimeoutError):
            why = f"no answer from {server} after {self.options.request_seconds:g}s"
        elif isinstance(error, ConnectionRefusedError):
            why = f"no answer from {server}: nothing listens there"
        elif isinstance(error, ssl.SSLError):
            why = f"no safe connection to {server}: {error.reason or error}"
        else:
            why = f"no answer from {server}: {error or type(error).__name__}"
        return fail(
            Code.UNREACHABLE, why,
            detail=(f"the address comes from {self.connection.source}",
                    "running jobs are not affected"),
            help=("fairlead up starts a cluster here, fairlead status tells what runs",),
        )  # fmt: skip
