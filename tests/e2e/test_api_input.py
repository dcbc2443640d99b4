"""What strangers and broken programs may send to the API: it stays up and answers the others."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.e2e.cli_world import Shell
from tests.e2e.disaster_world import log_of_cluster
from tests.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("api-input")]

JOBS = "/apis/fairlead.dev/v1alpha1/namespaces/default/jobs"
MAPS = "/api/v1/namespaces/default/configmaps"
GROWTH_BYTES_MAX = 200 << 20  # what may be kept has limits; far below what these tests send
CHANGES = 300
SEND_PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class Answer:
    """One HTTP answer; `status` is the body when it is JSON."""

    code: int
    body: bytes

    @property
    def status(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body)
        return value


class Api:
    """A raw client: it checks nothing before sending."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        record = json.loads((shell.data / "run.json").read_text())
        self.pid = int(record["pid"])
        self.token = (shell.data / "token").read_text().strip()

    def call(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """Send one request and return the answer."""
        connection = self.shell.https(timeout=PATIENCE_SECONDS)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            given = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json",
                     "Content-Length": str(len(body)), **headers}  # fmt: skip
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read())
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        """Open a connection for bytes that are no request."""
        connection = self.shell.https(timeout=PATIENCE_SECONDS)
        connection.connect()
        return connection.sock

    def head(self, line: str, *lines: str) -> bytes:
        """Return the bytes of a request's head."""
        fixed = ("Host: x", f"Authorization: Bearer {self.token}")
        return "\r\n".join((line, *fixed, *lines, "", "")).encode()

    def memory_bytes(self) -> int:
        """Return the resident memory of the cluster's process."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if "VmRSS" in line) * 1024

    def check_serves(self) -> None:
        """Check that somebody else is served, reads and writes."""
        assert self.call("GET", JOBS).code == 200
        config = json.dumps({"metadata": {"generateName": "alive-"}}).encode()
        assert self.call("POST", MAPS, config).code == 201


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    shell = Shell(tmp_path_factory.mktemp("api-input"))
    shell.up("--nodes", "2", "--listen", "127.0.0.1:0")
    try:
        yield Api(shell)
    finally:
        shell.down()


@pytest.fixture(autouse=True)
def unharmed(api: Api) -> Iterator[None]:
    """Whatever a test sends: afterwards the same process serves, and no fault is in its log."""
    before = api.memory_bytes()
    yield
    assert json.loads((api.shell.data / "run.json").read_text())["pid"] == api.pid
    api.check_serves()
    assert "Traceback" not in log_of_cluster(api.shell)
    assert api.memory_bytes() - before < GROWTH_BYTES_MAX


def receive(connection: socket.socket) -> bytes:
    """Return what comes until the server closes, or the connection breaks."""
    data = b""
    try:
        while chunk := connection.recv(65_536):
            data += chunk
    except ConnectionError:
        return data
    return data


def send_for_ever(connection: socket.socket, data: bytes) -> NoReturn:
    """Send the same again and again until the connection breaks: an error of it."""
    while True:
        connection.sendall(data)
        time.sleep(SEND_PAUSE_SECONDS)  # 20 MB/s: enough, and no core is busy with TLS meanwhile


def receive_until(connection: socket.socket, mark: bytes) -> bytes:
    """Return what comes up to and with the mark."""
    data = bytearray()
    while mark not in data[-65_536:]:
        chunk = connection.recv(65_536)
        assert chunk, f"closed before {mark!r}"
        data += chunk
    return bytes(data)


def test_a_body_of_100_mb_is_refused_and_never_kept(api: Api) -> None:
    size, piece = 100 << 20, b" " * (1 << 20)
    with api.connect() as connection:
        connection.sendall(api.head(f"POST {JOBS} HTTP/1.1", f"Content-Length: {size}"))
        with contextlib.suppress(ConnectionError):  # it may end the connection at any time
            for _ in range(size // len(piece)):
                connection.sendall(piece)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(65_536)[:13] in (b"", b"HTTP/1.1 413 ")
    told = api.call("POST", JOBS, **{"Content-Length": str(size)})
    assert told.code == 413
    assert "limit of 3145728 bytes" in told.status["message"]


def test_a_body_without_end_is_refused_at_the_limit_and_cut_off(api: Api) -> None:
    chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    with api.connect() as connection:
        connection.sendall(api.head(f"POST {JOBS} HTTP/1.1", "Transfer-Encoding: chunked"))
        connection.sendall(chunk * 4)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 413 ")
        with pytest.raises((ConnectionError, ssl.SSLEOFError)):
            send_for_ever(connection, chunk)


BODIES: dict[str, tuple[bytes, str, int]] = {
    "empty": (b"", "application/json", 400),
    "cut-off": (b'{"kind":', "application/json", 400),
    "no-object": (b"[]", "application/json", 400),
    "nul": (b"\0" * 1000, "application/json", 400),
    "no-utf8": (b'{"metadata":{"name":"\xff\xfe"}}', "application/json", 400),
    "half-a-surrogate": (b'{"metadata":{"name":"\\ud800"}}', "application/json", 400),
    "deep-lists": (b"[" * 100_000 + b"]" * 100_000, "application/json", 400),
    "deep-objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "application/json", 400),
    "not-a-number": (b'{"spec":{"priority":NaN}}', "application/json", 400),
    "number-out-of-range": (b'{"spec":{"priority":1e999}}', "application/json", 400),
    "million-digits": (b'{"a":' + b"9" * 1_000_000 + b"}", "application/json", 400),
    "utf-16": ('{"kind":"Job"}'.encode("utf-16"), "application/json", 400),
    "form": (b"a=b", "application/x-www-form-urlencoded", 415),
    "random-protobuf": (b"k8s\0\xff\xff\xff\xff\x0f", "application/vnd.kubernetes.protobuf", 400),
    "yaml-deep": (b"[" * 50_000, "application/yaml", 400),
    "yaml-bomb": (b"a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n", "application/yaml", 400),
    "yaml-code": (b'!!python/object/apply:os.system ["true"]', "application/yaml", 400),
    "yaml-digits": (b"a: " + b"9" * 200_000, "application/yaml", 400),
    "yaml-sixties": (b"a: " + b"59:" * 50_000 + b"59", "application/yaml", 400),
    "yaml-key": (b"{a: 1}: 2", "application/yaml", 400),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_no_object_is_refused_with_a_reason(api: Api, name: str) -> None:
    body, content_type, code = BODIES[name]
    answer = api.call("POST", JOBS, body, **{"Content-Type": content_type})
    assert answer.code == code, answer
    assert answer.status["kind"] == "Status"
    assert answer.status["message"]
    assert len(answer.body) < 2000


@pytest.mark.parametrize(
    "path",
    [
        f"{JOBS}/..", f"{JOBS}/../../../../../etc/passwd", f"{JOBS}/%2e%2e/%2e%2e", f"{JOBS}/a%2fb",
        f"{JOBS}/%00", f"{JOBS}/%ff", f"{JOBS}/" + "a" * 5000, "/../../etc/passwd", "//etc/passwd",
        "/logs/../../token", "/fairlead/v1/../../token", f"{JOBS}?limit=" + "9" * 50,
        f"{JOBS}?watch=perhaps", f"{JOBS}?labelSelector=((", f"{JOBS}?%ff=%ff",
        f"{JOBS}?continue=AAAA", f"{JOBS}?resourceVersion=x&watch=true",
        f"{JOBS}?fieldSelector=spec.nothing=1", f"{JOBS}?" + "&".join(f"a{i}=1" for i in range(99)),
        "/apis/fairlead.dev/v9/jobs", "/api/v1/namespaces/../configmaps", "/api/v1/pods/a/b/c/d",
    ],
)  # fmt: skip
def test_a_path_or_query_that_names_nothing_is_refused(api: Api, path: str) -> None:
    answer = api.call("GET", path)
    assert 400 <= answer.code < 500, answer
    assert b"root:" not in answer.body
    assert api.token.encode() not in answer.body


@pytest.mark.parametrize("token", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic !!!!", "\xe9"])
def test_without_the_token_nothing_is_told(api: Api, token: str) -> None:
    for path in (JOBS, "/metrics", "/fairlead/v1/status", "/nothing", "/openapi/v2"):
        answer = api.call("GET", path, Authorization=token)
        assert answer.code == 401
    assert api.call("DELETE", JOBS, Authorization=token).code == 401


GARBAGE = {
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
    "noise": bytes(range(256)) * 64,
    "long-line": b"GET /" + b"a" * 1_000_000,
    "long-header": b"GET / HTTP/1.1\r\nX: " + b"a" * 1_000_000,
    "many-headers": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200_000,
    "two-lengths": b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "length-and-chunks": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "negative-length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "http-9": b"GET / HTTP/9.9\r\n\r\n",
    "bad-chunk": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_bytes_that_are_no_request_end_the_connection(api: Api, name: str) -> None:
    with api.connect() as connection:
        try:
            connection.sendall(GARBAGE[name])
            socket.socket.shutdown(connection, socket.SHUT_WR)  # TLS goes on
        except ConnectionError:
            return
        answer = receive(connection)
    assert answer[:13] in (b"", b"HTTP/1.1 400 ", b"HTTP/1.0 400 ", b"HTTP/1.1 401 "), answer[:300]


def test_pipelined_garbage_ends_the_connection_and_what_follows_it_is_not_done(api: Api) -> None:
    body = json.dumps({"metadata": {"name": "smuggled"}}).encode()
    good = api.head(f"GET {JOBS}?limit=1 HTTP/1.1")
    bad = api.head(f"POST {MAPS} HTTP/1.1", f"Content-Length: {len(body)}") + body
    with api.connect() as connection:
        connection.sendall(good)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(good + b"\x00garbage\r\n\r\n" + bad)
        answer = receive(connection)
    assert answer.count(b" 400 Bad Request") == 1
    assert api.call("GET", f"{MAPS}/smuggled").code == 404


def test_hundreds_of_requests_that_never_finish_do_not_hold_up_others(api: Api) -> None:
    beginnings = [
        b"",
        b"GET /api HT",
        api.head(f"POST {JOBS} HTTP/1.1", "Content-Length: 1000") + b'{"kind": ',
        api.head(f"GET {JOBS}?watch=true HTTP/1.1"),
    ]
    with ExitStack() as stack:
        for number in range(400):
            connection = stack.enter_context(api.connect())
            connection.sendall(beginnings[number % len(beginnings)])
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: api.check_serves(), range(40)))


def test_a_reader_that_never_reads_is_dropped_and_costs_the_others_nothing(api: Api) -> None:
    large = {"metadata": {"name": "large"}, "data": {"a": "x" * 400_000}}
    assert api.call("POST", MAPS, json.dumps(large).encode()).code == 201
    with ExitStack() as stack:
        for path in [f"{MAPS}?watch=true"] * 5 + [MAPS] * 5:
            slow = stack.enter_context(api.connect())
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(api.head(f"GET {path} HTTP/1.1"))
        quick = stack.enter_context(api.connect())
        quick.sendall(api.head(f"GET {MAPS}?watch=true HTTP/1.1"))
        with ThreadPoolExecutor(1) as pool:
            following = pool.submit(receive_until, quick, b'"last-of-all"')
            for turn in range(CHANGES):
                change = json.dumps({"data": {"b": f"{turn:03d}" * 166_000}}).encode()
                patched = api.call("PATCH", f"{MAPS}/large", change,
                                   **{"Content-Type": "application/merge-patch+json"})  # fmt: skip
                assert patched.code == 200, patched
            mark = json.dumps({"metadata": {"name": "last-of-all"}}).encode()
            assert api.call("POST", MAPS, mark).code == 201
            events = following.result(PATIENCE_SECONDS)
    assert events.count(b'{"type":"MODIFIED"') == CHANGES
    assert api.call("DELETE", f"{MAPS}/large").code == 200
