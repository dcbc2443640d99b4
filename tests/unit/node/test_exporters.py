"""Exporters of a machine: what is counted, and what a stranger on their port can do."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from tests.patience import PATIENCE_SECONDS
from tests.unit.node.host_tree import BOOT, HostTree

from fairlead.api.cluster.node_report import (
    EXPORTED_METRICS_MAX,
    EXPORTED_VALUES_MAX,
    METRIC_MAX,
    SKETCHES_MAX,
    NodeReportStatus,
)
from fairlead.api.meta import to_wire
from fairlead.api.values.sketch import TEXT_MAX, parse_sketch
from fairlead.input.errors import CliError
from fairlead.model.health.faults import Moment
from fairlead.node.exports import ExportsUsage, ExportWindow, SketchLine, fetch_page, pages
from fairlead.node.registry import conflicts, load_settings, sources
from fairlead.node.reports.node_report import report_status
from fairlead.node.reports.report import Report, report_of
from fairlead.node.reports.watch import Kept, MachineWatch
from fairlead.node.settings import (
    AgentSettings,
    ExportedMetricSettings,
    ExporterReadSettings,
    ExporterSettings,
)
from fairlead.node.sources.exporters import ExporterReads

BUSY, SENT = "DCGM_FI_DEV_GPU_UTIL", "node_network_transmit_bytes_total"
GPUS = "http://127.0.0.1:9400/metrics"
NODE = "http://127.0.0.1:9100/metrics"


def settings(**changes: int) -> ExporterReadSettings:
    found = ExporterReadSettings((
        ExporterSettings(GPUS, (ExportedMetricSettings(BUSY),)),
        ExporterSettings(NODE, (ExportedMetricSettings(SENT, {"device": "eth*"}),)),
    ))  # fmt: skip
    return msgspec.structs.replace(found, **changes)


class Machine:
    """A machine whose exporters the test plays; windows are of a minute."""

    def __init__(self, root: Path, given: ExporterReadSettings | None = None) -> None:
        self.tree = HostTree(root)
        self.pages: dict[str, bytes] = {GPUS: b"", NODE: b""}
        self.reads = ExporterReads(self.tree.host(), given or settings(), self._fetch)

    def _fetch(self, url: str) -> bytes:
        if not self.pages[url]:
            raise ConnectionRefusedError(111, "Connection refused")
        return self.pages[url]

    def look(self, gpus: Mapping[str, float], sent: Mapping[str, float]) -> tuple[str, ...]:
        """Read once, 15 seconds after the read before."""
        self.tree.passes(15)
        for url, name, values in ((GPUS, BUSY, gpus), (NODE, SENT, sent)):
            lines = [f"{name}{{{labels}}} {value}" for labels, value in values.items()]
            self.pages[url] = "\n".join(["# a comment", *lines, "other 7", ""]).encode()
        return self.reads.read()

    def window(self) -> ExportsUsage:
        """Return the window that is over once it is."""
        before = self.reads.usage()
        for _ in range(9):
            self.tree.passes(10)
            with suppress(OSError):
                self.reads.read()
            found = self.reads.usage()
            if found is not None and found != before:
                return found
        pytest.fail("no window ended in 90 s")


def figures(usage: ExportsUsage) -> dict[tuple[str, str, str], list[int]]:
    """Return the values of each sketch, as whole numbers."""
    return {
        (each.metric, each.namespace, each.pod): [
            round(value)
            for value, count in (
                (next(parse_sketch(f"{cell.split(':')[0]}:1").quantiles([0])),
                 int(cell.split(":")[1])) for cell in each.sketch.split()
            )
            for _ in range(count)
        ]
        for each in usage.sketches
    }  # fmt: skip


def test_values_are_those_of_pods_and_of_the_rest_and_counters_are_rates(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.look({}, {})
    machine.window()  # the machine's first one, of any length
    pod = 'gpu="{}",namespace="vision",pod="train-0"'
    busy = {pod.format(0): 20, pod.format(1): 40, 'gpu="2"': 0}
    machine.look(busy, {'device="eth0"': 1e6, 'device="lo"': 5e6})
    machine.look(busy, {'device="eth0"': 1e6 + 15 * 50, 'device="lo"': 9e6})
    machine.look({}, {'device="eth0"': 100})  # the counter began again
    machine.pages = {GPUS: b"", NODE: b""}
    usage = machine.window()
    assert figures(usage) == {
        (BUSY, "", ""): [0, 0],
        (BUSY, "vision", "train-0"): [20, 20, 40, 40],
        (SENT, "", ""): [50],
    }
    assert (usage.seconds, usage.left_out, usage.refused) == (60, 0, 0)
    assert machine.window().sketches == (), "a window counts once"


def test_a_page_that_cannot_be_read_leaves_the_other_and_none_at_all_is_an_error(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    machine.look({'gpu="0"': 1}, {})
    machine.pages[NODE] = b"node_network_transmit_bytes_total{device= 1\n"
    (fault,) = machine.reads.read()
    assert fault.startswith(f"{NODE}: not a page of metrics")
    machine.pages = {GPUS: b"", NODE: b""}
    with pytest.raises(OSError, match="Connection refused"):
        machine.reads.read()


def test_what_is_no_amount_is_counted_as_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.look({}, {})
    machine.window()
    machine.look({'a="1"': -1, 'a="2"': float("nan"), 'a="3"': float("inf"), 'a="4"': 1e300,
                  'a="5"': 5}, {})  # fmt: skip
    machine.pages = {GPUS: b"", NODE: b""}
    usage = machine.window()
    assert figures(usage) == {(BUSY, "", ""): [5]}
    assert usage.refused == 4


def test_a_flood_of_pods_and_of_values_ends_at_the_bounds(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.look({}, {})
    machine.window()
    flood = {f'namespace="n",pod="p-{number}"': 1.0 for number in range(200)}
    machine.look(flood, {})
    machine.look({f'gpu="{number}"': 1.0 for number in range(2000)}, {})
    names = {'namespace="Bad_",pod="x"': 3.0, f'namespace="n",pod="{"p" * 300}"': 3.0,
             'namespace="n",pod="a/b"': 3.0}  # fmt: skip
    machine.look(names, {})
    machine.pages = {GPUS: b"", NODE: b""}
    usage = machine.window()
    assert len(usage.sketches) == SKETCHES_MAX
    assert sum(len(values) for values in figures(usage).values()) <= EXPORTED_VALUES_MAX
    assert usage.left_out > 1000
    assert not [each for each in usage.sketches if each.pod and each.namespace != "n"]


def test_more_samples_than_are_taken_fail_the_page(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (fault,) = machine.look({f'gpu="{number}"': 1.0 for number in range(5000)}, {})
    assert "more than 4,096 wanted samples" in fault


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Generator[str]:
    """Yield the URL of a server that answers each connection like this."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    connection.recv(65536)
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_SECONDS)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def drip(connection: socket.socket) -> None:
    connection.sendall(HEAD)
    while True:
        connection.sendall(b"x")  # a header without an end
        time.sleep(0.05)


def drip_body(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"\r\n")
    while True:
        connection.sendall(b"x\n")
        time.sleep(0.05)


def flood(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"\r\n")
    while True:
        connection.sendall(b"x" * (1 << 20))


def redirect(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\n\r\n")


def garbage(connection: socket.socket) -> None:
    connection.sendall(b"\x00\xff SSH-2.0\r\n\r\n")


def good(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"\r\na 1\n")


@pytest.mark.parametrize(
    ("answer", "said"),
    [(drip, "longer than|does not speak HTTP|reset"), (drip_body, "takes longer than"),
     (flood, "is larger than 8 MiB"), (redirect, "answers 302"), (garbage, "does not speak HTTP")],
    ids=lambda each: getattr(each, "__name__", ""),
)  # fmt: skip
def test_a_stranger_on_the_port_ends_in_an_error_within_the_time(
    answer: Callable[[socket.socket], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SECONDS_MAX", 0.5 if "drip" in answer.__name__ else 5.0)
    with serving(answer) as url, pytest.raises(OSError, match=said):
        fetch_page(url)


def test_a_page_is_fetched() -> None:
    with serving(good) as url:
        assert fetch_page(url) == b"a 1\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{url: 'http://10.0.0.1:9100/metrics', metrics: [{name: a}]}", "is not the loopback"),
        ("{url: 'http://169.254.169.254/latest', metrics: [{name: a}]}", "is not the loopback"),
        ("{url: 'https://127.0.0.1/', metrics: [{name: a}]}", "no plain http"),
        ("{url: 'http://u:p@127.0.0.1/', metrics: [{name: a}]}", "no plain http"),
        ("{url: 'file:///etc/shadow', metrics: [{name: a}]}", "no plain http"),
        ("{url: 'http://127.0.0.1:99999/', metrics: [{name: a}]}", "is no URL"),
        ("{url: 'http://localhost/', metrics: [{name: a}, {name: a}]}", "'a' is there twice"),
        ("{url: 'http://[::1]/', metrics: [{name: 'a b'}]}", "pages"),
        ("{url: 'http://127.0.0.1/', metrics: []}", "one metric at least"),
    ],
)  # fmt: skip
def test_a_page_that_is_not_this_machines_is_refused_with_its_place(
    text: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(f"exporters:\n  pages:\n    - {text}\n")
    with pytest.raises(CliError) as caught:
        load_settings(str(file))
    shown = repr(caught.value.problems)
    assert said in shown
    assert "exporters.pages[0]" in shown


def test_nine_metrics_and_a_period_above_the_window_are_refused() -> None:
    metrics = tuple(ExportedMetricSettings(f"m{number}") for number in range(5))
    others = tuple(ExportedMetricSettings(f"o{number}") for number in range(4))
    given = ExporterReadSettings(
        (ExporterSettings(GPUS, metrics), ExporterSettings(NODE, others)),
        period_seconds=90, window_seconds=60,
    )  # fmt: skip
    found = dict(conflicts(AgentSettings(exporters=given)))
    assert found == {
        "exporters.pages": "9 metrics in all; at most: 8",
        "exporters.periodSeconds": "90 is more than windowSeconds, 60",
    }
    assert not dict(conflicts(AgentSettings(exporters=settings())))


def reported(usage: ExportsUsage, root: Path) -> NodeReportStatus:
    tree = HostTree(root)
    watch = MachineWatch((), Kept(), boot_id=BOOT, now=tree.host().now())
    report = report_of(watch, tree.host().now(), counted=[usage])
    again = msgspec.json.decode(msgspec.json.encode(report), type=Report)
    return report_status(again, node_uid="u", now=tree.now())


def test_the_largest_message_and_one_of_eight_gpus_have_these_bytes(tmp_path: Path) -> None:
    """docs/design/monitoring.md has the figures."""
    text = " ".join(["-684:9999"] * TEXT_MAX)[:TEXT_MAX]
    line = SketchLine("m" * METRIC_MAX, "n" * 63, "p" * 253, text)
    largest = ExportsUsage("2026-01-01T00:00:00Z", 600, (line,) * (SKETCHES_MAX + 5), 1, 1)
    wide = msgspec.structs.replace(largest, sketches=tuple(
        msgspec.structs.replace(line, sketch=" ".join(f"{600 + n}:9999" for n in range(64)))
        for _ in range(SKETCHES_MAX + 5)
    ))  # fmt: skip
    status = reported(wide, tmp_path)
    assert status.exports is not None
    assert (len(status.exports.sketches), status.exports.left_out) == (SKETCHES_MAX, 6)
    assert len(msgspec.json.encode(to_wire(status.exports))) <= 84_000

    window, at = ExportWindow(60, 0), Moment(1.79e9, 0.0)
    metrics = [ExportedMetricSettings(f"DCGM_FI_METRIC_{n}") for n in range(EXPORTED_METRICS_MAX)]
    labels = [tuple(sorted({"gpu": str(n), "namespace": "vision", "pod": "pretrain-7b-0"}.items()))
              for n in range(8)]  # fmt: skip
    for second in range(0, 61, 15):
        moment = msgspec.structs.replace(at, uptime_seconds=float(second))
        window.begin(moment)
        window.take(metrics, {
            metric.name: {each: 80.0 + n + second / 15 for n, each in enumerate(labels)}
            for metric in metrics
        }, moment)  # fmt: skip
    assert window.usage is not None
    found = reported(window.usage, tmp_path).exports
    assert found is not None
    assert len(found.sketches) == 8
    assert len(msgspec.json.encode(to_wire(found))) <= 1_800


def test_the_source_is_there_where_pages_are_named(tmp_path: Path) -> None:
    host = HostTree(tmp_path).host()
    given = AgentSettings(exporters=settings(period_seconds=30))
    (made,) = [each for each in sources(host, given) if each.name == "exporters"]
    assert made.period_seconds == 30
    assert "exporters" not in {each.name for each in sources(host, AgentSettings())}
