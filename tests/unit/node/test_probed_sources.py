"""Sources that try something: mounts, services, names, registries, peers. Good, bad, recovered."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.node.host_tree import NEXT_BOOT, HostTree, Looks, changed, named

from fairlead.model.health.faults import Action, Severity
from fairlead.node.registry import conflicts
from fairlead.node.running.host import Host
from fairlead.node.running.probes import PROBES_MAX, Answer, Probes, Strikes, failures
from fairlead.node.settings import AgentSettings
from fairlead.node.source import SourceState
from fairlead.node.sources import mounts, reach, services

SETTINGS = AgentSettings()
NFS = "90 25 0:51 / {place} rw,relatime shared:1 - nfs4 nas:/x rw,vers=4.2\n"


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


# probes


def test_a_call_that_hangs_holds_up_no_other_and_is_not_begun_again() -> None:
    gate, begun = threading.Event(), list[str]()

    def hangs() -> None:
        begun.append("hangs")
        gate.wait()

    now = 100.0
    probes = Probes(lambda: now, wait_seconds=0.05)
    calls: dict[str, Callable[[], object]] = {"bad": hangs, "good": lambda: None}
    for _ in range(3):
        assert probes.look(calls) == {
            "bad": Answer(is_pending=True, waited_seconds=now - 100.0), "good": Answer(),
        }  # fmt: skip
        now += 30
    assert begun == ["hangs"]
    gate.set()
    assert probes.look(calls)["bad"] == Answer(), "what came late is the answer"


def test_calls_that_hang_take_a_bounded_number_of_threads() -> None:
    gate = threading.Event()
    probes = Probes(lambda: 0.0, wait_seconds=0.05)
    found = probes.look({f"{i}": gate.wait for i in range(PROBES_MAX + 9)})
    assert len(found) == PROBES_MAX
    gate.set()


@pytest.mark.parametrize(
    ("looks", "count"),
    [("!", 0), ("!!", 1), ("!.!", 0), ("!?!", 1), ("?", 0), ("L", 1)],
)
def test_so_many_failures_in_a_row_count_and_one_that_takes_too_long_at_once(
    looks: str, count: int
) -> None:
    """`!` fails, `.` answers, `?` is pending, `L` has been for too long."""
    answers = {"!": Answer("refused"), ".": Answer(), "?": Answer("", True, 9.0),
               "L": Answer("", True, 31.0)}  # fmt: skip
    found, strikes = dict[str, str](), Strikes()
    for each in looks:
        found, strikes = failures({"x": answers[each]}, strikes, seconds_max=30, strikes=2)
    assert len(found) == count


# storage


def mounted(tree: HostTree, usage: Callable[[Path], object], *places: str) -> Looks:
    """Return looks at a machine that has NFS mounted at these places."""
    text = "".join(NFS.replace("0:51", f"0:{50 + i}").format(place=place)
                   for i, place in enumerate(places))  # fmt: skip
    tree.write("proc/1/mountinfo", "1 1 8:1 / / rw - ext4 /dev/sda rw\n" + text)
    host = replace_host(tree, usage)
    settings = changed(SETTINGS, "storage", mounts=("/data",))
    return Looks(tree, mounts.SOURCE, settings=settings, host=host)


def replace_host(tree: HostTree, usage: Callable[[Path], object]) -> Host:
    host = tree.host()
    return Host(host.root, host.clock, usage, host.clock_state, host.own_mounts)  # type: ignore[arg-type]


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks wait for a moment alone."""
    monkeypatch.setattr(mounts, "Probes", partial(Probes, wait_seconds=0.05))


@pytest.mark.usefixtures("_impatient")
def test_a_mount_that_hangs_is_a_fault_and_the_other_one_goes_on(tree: HostTree) -> None:
    gate, tried = threading.Event(), list[str]()

    def usage(path: Path) -> object:
        tried.append(path.name)
        if path.name == "data":
            gate.wait()
        return SimpleNamespace()

    looks = mounted(tree, usage, "/data", "/home")
    assert looks.look() == (), "it may be slow"
    assert looks.look(30) == (), "as long as is accepted"
    (fault,) = looks.look(1)
    assert (fault.identity.check, fault.identity.component) == (mounts.HUNG, "/data")
    assert fault.verdict.action is Action.WATCH, "the machine is not the server"
    assert tried == ["data", "home", "home", "home"]
    assert looks.health().state is SourceState.OK
    gate.set()
    for _ in range(100):
        if not looks.look(1):
            break
    assert looks.look(60) == ()


@pytest.mark.usefixtures("_impatient")
def test_a_stale_handle_asks_for_a_reboot_and_one_error_for_nothing(tree: HostTree) -> None:
    error: list[int] = [errno.ESTALE]

    def usage(_path: Path) -> object:
        if error:
            raise OSError(error[0], os.strerror(error[0]))
        return SimpleNamespace()

    looks = mounted(tree, usage, "/data")
    assert looks.look() == ()
    (fault,) = looks.look(30)
    assert fault.identity.check == mounts.STALE
    assert (fault.verdict.severity, fault.verdict.action) == (Severity.CRITICAL, Action.REBOOT)
    error.clear()
    looks.look(30)
    assert looks.look(60) == ()


@pytest.mark.usefixtures("_impatient")
def test_a_place_where_something_should_be_mounted_and_is_not(tree: HostTree) -> None:
    looks = mounted(tree, lambda _: SimpleNamespace(), "/home")
    assert named(looks.look()) == [(mounts.MISSING, "/data", ())]
    tree.write("proc/1/mountinfo", NFS.format(place="/data"))
    looks.look(30)
    assert looks.look(60) == ()
    nothing = Looks(tree, mounts.SOURCE)
    tree.write("proc/1/mountinfo", "1 1 8:1 / / rw - ext4 /dev/sda rw\n")
    nothing.look()
    assert nothing.health().state is SourceState.SKIPPED


# services


@contextmanager
def page(status: list[int]) -> Generator[str]:
    """Serve one page whose status is the latest of a list; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status[-1])
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def process(tree: HostTree, number: int, name: str, started_at: int, *, parent: int = 1) -> None:
    tree.write(f"proc/{number}/stat", f"{number} ({name}) S {parent} {'0 ' * 17}{started_at} 0")


def test_a_kubelet_that_says_it_is_not_well_three_times_is_a_fault(tree: HostTree) -> None:
    status = [200]
    with page(status) as url:
        settings = changed(SETTINGS, "services", kubelet=f"{url}/healthz")
        looks = Looks(tree, services.SOURCE, settings=settings)
        assert looks.look() == ()
        status.append(500)
        assert looks.looks(2, 30) == (), "it may start again"
        (fault,) = looks.look(30)
        assert (fault.identity.check, fault.verdict.action) == (services.KUBELET, Action.REBOOT)
        status.append(200)
        looks.look(30)
        assert looks.look(60) == ()
    looks.looks(2, 30)
    assert "refused" in looks.look(30)[0].evidence


def test_a_runtime_that_takes_connections_and_does_not_greet_back_is_a_fault(
    tree: HostTree,
) -> None:
    path = tree.root / "run/containerd.sock"
    path.parent.mkdir()
    greeting = [b"\0\0\0\4\0\0\0\0\0"]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    assert connection.recv(64).startswith(b"PRI * HTTP/2.0")
                    connection.sendall(greeting[-1])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        settings = changed(SETTINGS, "services", runtime_socket="/run/containerd.sock")
        looks = Looks(tree, services.SOURCE, settings=settings)
        assert looks.looks(3, 30) == ()
        for other in (b"", b"HTTP/1.1 400 Bad Request\r\n"):
            greeting.append(other)
            assert named(looks.looks(3, 30)) == [(services.RUNTIME, "machine", ())]
            greeting.append(greeting[0])
            looks.look(30)
            assert looks.look(60) == ()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_service_that_starts_again_and_again_is_a_fault_for_twenty_minutes(
    tree: HostTree,
) -> None:
    process(tree, 700, "containerd", 50)
    process(tree, 701, "kubelet", 60)
    process(tree, 650, "kubelet", 40, parent=640)  # in a container
    looks = Looks(tree, services.SOURCE)
    looks.look()
    for i in range(1, 6):
        process(tree, 701, "kubelet", 60 + i)
        assert looks.look(30) == (), "as many as are accepted"
    looks.restart()
    (tree.root / "proc/701/stat").unlink()
    assert looks.look(30) == (), "it is another one by now, and not yet there"
    process(tree, 702, "kubelet", 98)
    assert named(looks.look(30)) == [(services.RESTARTS, "kubelet", ())]
    assert looks.looks(60, 30) == ()
    tree.boots(NEXT_BOOT)
    assert looks.look() == ()


# reach


def test_a_registry_counts_by_any_answer_below_500(tree: HostTree) -> None:
    status = [401]
    with page(status) as url:
        looks = Looks(tree, reach.SOURCE, settings=changed(SETTINGS, "reach", registries=(url,)))
        assert looks.looks(2, 60) == ()
        status.append(503)
        assert looks.look(60) == (), "once is nothing"
        assert named(looks.look(60)) == [(reach.REGISTRIES, url, ())]
        status.append(200)
        looks.look(60)
        assert looks.look(60) == ()
    assert {each.check for each in looks.watch.skipped()} == {reach.NAMES, reach.PEERS}


def test_a_name_that_does_not_resolve_is_a_fault(tree: HostTree) -> None:
    given = changed(SETTINGS, "reach", names=("localhost", "no-such-name.invalid"))
    looks = Looks(tree, reach.SOURCE, settings=given)
    looks.look()
    assert named(looks.look(60)) == [(reach.NAMES, "no-such-name.invalid", ())]


@pytest.mark.parametrize(
    ("answering", "is_fault"), [("", True), ("abc", False), ("a", False)], ids=lambda v: str(v)
)
def test_it_is_this_machine_where_no_peer_of_two_samples_answers(
    tree: HostTree, answering: str, *, is_fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(peer: str) -> None:
        if peer[0] not in answering:
            raise OSError("timed out")

    monkeypatch.setattr(reach, "connect", connect)
    given = changed(SETTINGS, "reach", peers=("a:1", "b:1", "c:1"), peer_sample=3)
    looks = Looks(tree, reach.SOURCE, settings=given)
    assert looks.look() == ()
    found = looks.look(60)
    assert bool(found) is is_fault
    if found:
        assert found[0].evidence == "none of 3 peers: timed out"


def test_samples_of_peers_differ_from_look_to_look_and_from_machine_to_machine(
    tree: HostTree,
) -> None:
    peers = tuple(f"10.0.0.{i}:10250" for i in range(100))
    given = changed(SETTINGS, "reach", peers=peers)
    asked: list[tuple[str, ...]] = []

    class Seen(Probes):
        def look(self, calls: object) -> dict[str, Answer]:  # type: ignore[override]
            asked.append(tuple(calls))  # type: ignore[arg-type]
            return {}

    for boot in (tree.boot_id, NEXT_BOOT):
        tree.boots(boot, 3600)
        reader = reach.ReachReader(tree.host(), given, Seen(lambda: 0.0))
        for _ in range(5):
            reader.read()
            tree.passes(60)
    assert {len(each) for each in asked} == {3}
    assert len(set(asked)) == 10


def test_a_machine_that_refuses_the_connection_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = f"127.0.0.1:{server.getsockname()[1]}"
        reach.connect(peer)
    reach.connect(peer)


def test_what_cannot_be_tried_is_refused_with_its_place() -> None:
    given = changed(SETTINGS, "reach", registries=("registry", "https://x:0", "https://ok"),
                    peers=("10.0.0.7", "a:99999", "[::1]:10250", "a:1"))  # fmt: skip
    given = changed(given, "services", kubelet="http://10.0.0.7:10248/healthz")
    assert [path for path, _ in conflicts(given)] == [
        "reach.registries[0]", "reach.registries[1]", "reach.peers[0]", "reach.peers[1]",
        "services.kubelet",
    ]  # fmt: skip
