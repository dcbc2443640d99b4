"""The asynchronous and the blocking client against one server: the same bytes, the same answers."""

from __future__ import annotations

import asyncio
import gzip
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.api.resources import CONFIG_MAPS, NODES, PODS
from fairlead.api.status import ApiError, Expired, NotFound, Unavailable
from fairlead.kube.blocking import BlockingClient, NoAnswer
from fairlead.kube.client import HttpClient, HttpLogReader
from fairlead.kube.decoding import Decoders
from fairlead.kube.kubeconfig import Connection, KubeconfigError
from fairlead.kube.protocol import HttpOptions, steps
from fairlead.runtime.client import EventType, PatchType, Propagation, Request, RequestVerb
from fairlead.runtime.kept.history import LogText
from fairlead.sim.loop import run
from fairlead.testing.builders import make_job, make_member_pod

CONFIG_MAP = {"metadata": {"namespace": "a", "name": "b", "resourceVersion": "7"}}
#: Of a request the answer's status, body and further headers.
Answers = Callable[[bytes], tuple[int, Any, bytes]]


class _Handler(socketserver.StreamRequestHandler):
    """Notes each request as it came and answers it as the test says; the connection is kept."""

    def handle(self) -> None:
        while True:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                line = self.rfile.readline()
                if not line:
                    return
                head += line
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
            request = head + self.rfile.read(length)
            server: Any = self.server
            server.requests.append(request)
            status, body, more = server.answers(request)
            data = body if isinstance(body, bytes) else msgspec.json.encode(body)
            if b"transfer-encoding" not in more:
                more += b"content-length: %d\r\n" % len(data)
            self.wfile.write(b"HTTP/1.1 %d Any\r\n%b\r\n%b" % (status, more, data))
            if b"connection: close" in more:
                return


@contextmanager
def serving(answers: Answers) -> Iterator[tuple[str, list[bytes]]]:
    """Serve on the loopback; yields the URL and the requests so far."""

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), _Handler) as server:
        made: Any = server
        made.answers, made.requests = answers, []
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", made.requests
        server.shutdown()


def both(connection: Connection, request: Request[Any]) -> list[Any]:
    """Return what either client gets for a request; an ApiError as itself."""

    async def ask() -> Any:
        client = HttpClient(connection)
        try:
            return await client.call(request)
        except ApiError as error:
            return error
        finally:
            await client.close()

    client = BlockingClient(connection)
    try:
        blocking = client.call(request)
    except ApiError as error:
        blocking = error
    client.close()
    return [asyncio.run(ask()), blocking]


REQUESTS: dict[str, Request[Any]] = {
    "get": Request(RequestVerb.GET, CONFIG_MAPS, "a", "b"),
    "metadata": Request(RequestVerb.GET, CONFIG_MAPS.only_metadata, "a", "b"),
    "list": Request(RequestVerb.LIST, CONFIG_MAPS, "a", label_selector="x in (1,2)"),
    "create": Request(RequestVerb.CREATE, CONFIG_MAPS, "a", body=CONFIG_MAP, dry_run=True),
    "patch": Request(
        RequestVerb.PATCH, CONFIG_MAPS, "a", "b", "status", {"data": {"ä": None}},
        PatchType.STRATEGIC,
    ),
    "delete": Request(
        RequestVerb.DELETE, CONFIG_MAPS, "a", "b", grace_period_seconds=0,
        propagation=Propagation.ORPHAN, uid="u", resource_version="5",
    ),
    "delete everywhere": Request(
        RequestVerb.DELETE_COLLECTION, CONFIG_MAPS, label_selector="x",
        field_selector="metadata.name=b",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REQUESTS)
def test_a_request_has_the_same_bytes_whoever_sends_it(what: str, tmp_path: Path) -> None:
    def answers(request: bytes) -> tuple[int, Any, bytes]:
        if b"continue=" in request:
            return 200, {"metadata": {}, "items": []}, b""
        if b"limit=" in request:
            metadata = {"resourceVersion": "9", "continue": "more"}
            return 200, {"metadata": metadata, "items": [CONFIG_MAP]}, b""
        return 200, CONFIG_MAP, b""

    token = tmp_path / "token"
    token.write_text("secret\n")
    with serving(answers) as (url, requests):
        connection = Connection(
            f"{url}/base", "a test", token_file=token,
            impersonate_user="ann", impersonate_groups=("vision", "research"),
        )  # fmt: skip
        one, other = both(connection, REQUESTS[what])
    assert one == other
    half = len(requests) // 2
    assert half
    assert requests[:half] == requests[half:]
    for request in requests:
        assert b"Authorization: Bearer secret\r\n" in request
        assert request.count(b"Impersonate-Group: ") == 2


@pytest.mark.parametrize("status", [401, 404, 409, 410, 429, 500, 502, 503])
@pytest.mark.parametrize("form", ["status", "text"])
def test_a_refusal_is_the_same_error_for_both(status: int, form: str) -> None:
    body = {"kind": "Status", "code": status, "message": "no"} if form == "status" else b"<no>"
    with serving(lambda _: (status, body, b"retry-after: 7\r\n")) as (url, _):
        one, other = both(Connection(url, "a test"), REQUESTS["get"])
    assert type(one) is type(other)
    assert (one.message, one.retry_after_seconds) == (other.message, other.retry_after_seconds)
    assert one.status.code == status
    assert one.retry_after_seconds == 7


def test_what_a_server_without_an_answer_is_called() -> None:
    with serving(lambda _: (200, {}, b"")) as (url, _):
        pass
    one, other = both(Connection(url, "a test"), REQUESTS["get"])
    assert isinstance(one, Unavailable)
    assert isinstance(other, NoAnswer)
    assert one.message == other.message


def test_a_list_in_which_one_object_cannot_be_read_is_an_error_for_a_person() -> None:
    bad = {"metadata": {"namespace": "a", "name": "bad"}, "spec": {"containers": 5}}
    answer = {"metadata": {}, "items": [bad]}
    with serving(lambda _: (200, answer, b"")) as (url, _):
        client = BlockingClient(Connection(url, "a test"))
        with pytest.raises(ApiError, match="Pod a/bad cannot be decoded"):
            client.list(PODS)
        assert client.list(PODS.raw) == (bad,)
        client.close()


def line(kind: str, version: int) -> bytes:
    obj = {"metadata": {"name": "n", "resourceVersion": str(version)}}
    return msgspec.json.encode({"type": kind, "object": obj}) + b"\n"


def chunked(*chunks: bytes, is_whole: bool = True) -> bytes:
    coded = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks)
    return coded + (b"0\r\n\r\n" if is_whole else b"")


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_blocking_watch_is_read_line_by_line(*, is_packed: bool) -> None:
    text = line("ADDED", 5) + line("BOOKMARK", 6) + line("DELETED", 7)
    head = b"transfer-encoding: chunked\r\n"
    if is_packed:
        text, head = gzip.compress(text), head + b"content-encoding: gzip\r\n"
    body = chunked(*(text[i : i + 11] for i in range(0, len(text), 11)))
    with serving(lambda _: (200, body, head)) as (url, requests):
        client = BlockingClient(Connection(url, "a test"))
        events = list(client.watch_one(NODES, "n", namespace="", resource_version="4"))
    kinds = [EventType.ADDED, EventType.BOOKMARK, EventType.DELETED]
    assert [event.type for event in events] == kinds
    assert [event.resource_version for event in events] == ["5", "6", "7"]
    assert b"fieldSelector=metadata.name%3Dn" in requests[0]


def test_a_stream_that_breaks_is_an_error_and_a_refused_one_is_its_refusal() -> None:
    head = b"transfer-encoding: chunked\r\nconnection: close\r\n"
    answers: list[tuple[int, Any, bytes]] = [
        (200, chunked(b"half", is_whole=False), head),
        (410, {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}, b""),
        (404, b"404 page not found", b""),
    ]
    with serving(lambda _: answers[0]) as (url, _):
        client = BlockingClient(Connection(url, "a test"), HttpOptions(request_seconds=5.0))
        chunks = client.chunks("/log", {})
        assert next(chunks) == b"half"
        with pytest.raises(Unavailable, match="the stream broke: the server closed"):
            next(chunks)
        for error in (Expired, NotFound):
            del answers[0]
            with pytest.raises(error):
                list(client.chunks("/log", {}))
    with pytest.raises(NoAnswer):
        list(client.chunks("/log", {}))


def test_of_a_refusal_without_end_only_the_beginning_is_read() -> None:
    class Line(socket.socket):
        def recv(self, size: int, flags: int = 0) -> bytes:
            try:
                return super().recv(size, flags | socket.MSG_DONTWAIT)
            except BlockingIOError:
                raise TimeoutError from None

    ours, theirs = socket.socketpair()
    theirs.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 1000\r\n\r\n" + b"x" * 100)
    client = BlockingClient(
        Connection("http://server", "test"), HttpOptions(error_bytes_max=50),
        connect=lambda *_: Line(fileno=ours.detach()),
    )  # fmt: skip
    with pytest.raises(NotFound):
        list(client.chunks("/log", {}))
    theirs.close()


def test_what_the_blocking_client_cannot_do_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="a test uses proxy-url"):
        BlockingClient(Connection("http://x", "a test", proxy_url="http://y")).get(NODES, "n")
    missing = tmp_path / "none"
    with pytest.raises(KubeconfigError, match="none cannot be read"):
        BlockingClient(Connection("http://x", "a test", token_file=missing)).get(NODES, "n")


def test_a_get_that_had_no_answer_in_time_is_not_sent_again() -> None:
    made: list[tuple[Line, socket.socket]] = []

    class Line(socket.socket):
        is_late = False

        def recv(self, size: int, flags: int = 0) -> bytes:
            if self.is_late:
                raise TimeoutError
            return super().recv(size, flags)

    def connect(*_: object) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        made.append((Line(fileno=ours.detach()), theirs))
        return made[-1][0]

    client = BlockingClient(Connection("http://server", "test"), connect=connect)
    assert client.request("GET", "/x").body == b"ok"
    made[0][0].is_late = True
    with pytest.raises(NoAnswer, match="in time"):
        client.request("GET", "/x")
    assert len(made) == 1
    made[0][1].close()


def test_a_list_is_in_the_order_of_namespaces_and_names_whatever_the_servers_order() -> None:
    """etcd's order is that of `namespace/name` as one text, where a dash is before the slash."""
    keys = [("b-c", "x"), ("b", "y"), ("b", "x")]
    items = [{"metadata": {"namespace": namespace, "name": name}} for namespace, name in keys]
    request: Request[Any] = Request(RequestVerb.LIST, CONFIG_MAPS)
    asking = steps(request, Decoders(CONFIG_MAPS), 10)
    next(asking)
    with pytest.raises(StopIteration) as end:
        asking.send(msgspec.json.encode({"items": items}))
    assert [obj.metadata.key for obj in end.value.value.items] == sorted(keys)


def test_a_collection_of_all_namespaces_is_deleted_in_each_that_has_some_of_it() -> None:
    found = [{"metadata": {"namespace": namespace, "name": "x"}} for namespace in ("b", "a", "b")]
    request: Request[Any] = Request(
        RequestVerb.DELETE_COLLECTION, CONFIG_MAPS, label_selector="mine"
    )
    asking = steps(request, Decoders(CONFIG_MAPS), 10)
    next(asking)
    sent = [asking.send(msgspec.json.encode({"items": found})), asking.send(b"")]
    with pytest.raises(StopIteration):
        asking.send(b"")
    assert [each.place for each in sent] == [
        "DELETE /api/v1/namespaces/a/configmaps", "DELETE /api/v1/namespaces/b/configmaps",
    ]  # fmt: skip
    assert all(each.params == {"labelSelector": "mine"} for each in sent)


@pytest.mark.parametrize(("bytes_max", "kept"), [(7, b"abcdefg"), (5, b"cdefg"), (2, b"fg")])
def test_a_log_that_is_longer_than_what_is_kept_counts_as_cut(bytes_max: int, kept: bytes) -> None:
    class Client:
        async def stream(self, *_: object, **__: object) -> AsyncIterator[bytes]:
            for chunk in (b"abc", b"defg"):
                yield chunk

    client: Any = Client()
    pod = make_member_pod(make_job("train"), 0)
    reading = HttpLogReader(client).read(pod, bytes_max=bytes_max, seconds_max=1.0)
    assert asyncio.run(reading) == LogText(kept, is_cut=bytes_max < 7)


def test_a_log_that_does_not_come_whole_in_time_counts_as_cut() -> None:
    class Client:
        async def stream(self, *_: object, **__: object) -> AsyncIterator[bytes]:
            yield b"abc"
            await asyncio.sleep(10)
            yield b"defg"

    client: Any = Client()
    pod = make_member_pod(make_job("train"), 0)
    reading = HttpLogReader(client).read(pod, bytes_max=100, seconds_max=1.0)
    assert run(reading) == LogText(b"abc", is_cut=True)


def test_a_name_that_no_host_can_have_is_not_found() -> None:
    client = BlockingClient(Connection(f"http://{'a' * 64}.invalid:1", source="here"))
    with pytest.raises(NoAnswer):
        client.get(PODS, "x", namespace="a")


def test_a_connection_loads_no_tables_of_unicode() -> None:
    program = (
        "import socket, sys\n"
        "from fairlead.kube.blocking import connect_to\n"
        "from fairlead.kube.kubeconfig import Connection\n"
        "from fairlead.kube.protocol import HttpOptions\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "port = server.getsockname()[1]\n"
        "connect_to(Connection(f'http://127.0.0.1:{port}', source='here'), HttpOptions()).close()\n"
        "print([name for name in sys.modules if name in ('encodings.idna', 'unicodedata')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert done.stdout == "[]\n"
