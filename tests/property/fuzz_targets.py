"""Parsers of what strangers write, with texts that they take and errors that they may raise.

A module-level function named `parse...`, `decode...`, `expand...`, `compile...` or `read...` whose
first parameter is text or bytes, and a method that takes bytes in (`feed` and the like), is such a
parser: `tests/tidy/test_fuzzed.py` fails for one without a row. Parsers of other names have rows,
too.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from fairlead.api.kubernetes.devices import Device, DeviceAttribute
from fairlead.api.resources import JOBS
from fairlead.api.status import ApiError, InternalError
from fairlead.api.values.indices import parse_indices
from fairlead.app.queries.decision_file import DecisionFileError, read_lines
from fairlead.cli.formats.program_output import TerminalFilter
from fairlead.cli.sessions.held_terminal import LeaveKey
from fairlead.cli.slurm_import.accounts import read_records
from fairlead.cli.slurm_import.conf import Findings, read_conf
from fairlead.cli.slurm_tools.options import ToolError
from fairlead.doctor.audit.parallel import Engine, read_logs
from fairlead.embedded.http.request import BodyLimits
from fairlead.embedded.http.streams import spdy
from fairlead.embedded.http.streams.spdy import SpdyError, SpdyServer
from fairlead.embedded.webhooks.review import BadAnswer, read_answer
from fairlead.input.errors import CliError
from fairlead.input.yamlmarks import YamlTooLarge
from fairlead.kube.decoding import Decoders
from fairlead.kube.protocol import LineSplitter
from fairlead.member.metric_files import NotMetricFileError, TensorBoardEvents, WandbRun
from fairlead.member.terminal_frames import Frames, Modes
from fairlead.member.terminal_log import PlainLines
from fairlead.model.claimed.device_selectors import ExpressionError, look
from fairlead.node.machine_tests.program import Broken
from fairlead.node.reports.node_report import UnreadableReport
from fairlead.node.sources.cloud import Ec2Event
from fairlead.run import RunFold
from fairlead.runtime.kept.loglines import LineCutter
from fairlead.web.pages.site import AskedPath
from fairlead.web.program_text import ProgramText
from fairlead.webhook.review import BadReview

JOB = b"""apiVersion: fairlead.dev/v1alpha1
kind: Job
metadata: {name: train}
spec: {roles: [{name: worker, count: 2, template: {spec: {containers: [{name: c, image: i}]}}}]}
"""
REVIEW = (
    b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u",'
    b'"operation":"CREATE","namespace":"n","object":{"metadata":{"name":"p"},"spec":{}}}}'
)
CONTENT = b"k8s\x00\n\x0c\n\x02v1\x12\x06Config\x12\x00\x1a\x00\x22\x00"
HEADER = (
    "#!/bin/sh\n#SBATCH -N 2 --gpus-per-node=8 --time=1-12\n#SBATCH hetjob\n#SBATCH -n1 --mem=1G\n"
    "#FAIRLEAD --image a:1\n# x\ntrue\n"
)
PAGE = b'# TYPE a counter\na{b="c\\"d",e="f"} 1.5e3 1700000000000\na_bucket{le="+Inf"} NaN\n'
AUDIT = (
    b'{"kind":"Event","stage":"ResponseComplete","verb":"list","requestURI":"/api/v1/pods",'
    b'"auditID":"a","user":{"username":"u"},"userAgent":"x","responseStatus":{"code":200},'
    b'"requestReceivedTimestamp":"2026-01-01T00:00:00.000000Z",'
    b'"stageTimestamp":"2026-01-01T00:00:00.100000Z"}\n'
)
LIMITS = BodyLimits()


@dataclass(frozen=True)
class Target:
    """A parser, by module and name, with what it is fed and what it may raise."""

    name: str
    seeds: tuple[str | bytes, ...]
    errors: tuple[type[Exception], ...] = ()
    more: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()
    #: Text of a decoded file has no lone surrogates; that of a command line may have some.
    is_file: bool = False
    #: Where the parser is no function of its text alone: what calls it.
    parser: Callable[[Any], object] | None = None
    #: What is called with the parser's result: it is used as its callers do.
    use: Callable[[Any], object] = bool

    def call(self, given: str | bytes) -> None:
        """Parse, and use the result."""
        if self.parser is not None:
            self.parser(given)
            return
        module, name = self.name.split(":")
        parser = getattr(importlib.import_module(f"fairlead.{module}"), name)
        self.use(parser(given, *self.more, **dict(self.named)))


def _evaluated(steps: Any) -> None:
    from fairlead.embedded.http.answering.columns import evaluate

    evaluate(steps, {"a": [{"b": 1}, {"b": "x"}], "status": {"conditions": [{"type": "Ready"}]}})


def _evaluated_expression(program: Any) -> None:
    device = Device("a", attributes={"b": DeviceAttribute(int_=1)})
    with suppress(ExpressionError):
        program.evaluate(lambda path: look(path, "d", device))


def _asked_path(text: str) -> object:
    path, _, query = text.partition("?")
    asked = AskedPath.of(path, query)
    return asked.text("x"), asked.texts("y"), asked.number("a", 9)


def _rows() -> Iterator[Target]:
    text = partial(Target, errors=(ValueError,))
    yield Target("cli.submitting.manifest:parse_manifest", (JOB, b"{}", b"a: &a [*a]"),
                 more=("file",))  # fmt: skip
    yield Target("cli.script.header:parse_header", (HEADER,), (CliError,),
                 named=(("file", "f"),), is_file=True)  # fmt: skip
    yield Target(
        "runtime.exported.metrics_page:parse_page",
        (PAGE,),
        (ValueError,),
        more=(("a", "a_bucket"),),
    )
    yield Target("embedded.http.protobuf:decode_protobuf", (CONTENT,), (ApiError,))
    yield Target(
        "node.sources.kmsg:parse_record",
        (b"4,1,100,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n SUBSYSTEM=pci\n",),
    )
    yield text("api.values.sketch:parse_sketch", ("z:1 4:2", "-684:9999 1700:1"))
    yield text("member.hostlist:expand_hosts", ("node[001-003,07],b", "a[1-2]b[3-4]"))
    yield text(
        "embedded.http.answering.columns:compile_path",
        (".a[*].b", '.status.conditions[?(@.type=="Ready")]', ".a[0]", ".a[-1]['b']"),
        use=_evaluated,
    )
    # Python warns of what another version of it may read otherwise; it reads it as Go does.
    yield Target("embedded.schema.values:compile_pattern", ("^a+[0-9]{2,3}$", r"\S\z[[["),
                 (ValueError, FutureWarning))  # fmt: skip
    yield Target("model.cel:compile_expression",
                 ('device.driver == "d" && device.attributes["d"].a.size() > 1',
                  '["a"].exists(x, x == device.attributes["d"].b)',
                  '["a"].exists(xinfx == device.att,ributes["1d"].b)', "!" * 600 + "true"),
                 (ValueError,),
                 use=_evaluated_expression)  # fmt: skip
    yield Target("input.yamlmarks:read_documents", (JOB.decode(), "a: &a [*a]"), (YamlTooLarge,),
                 is_file=True)  # fmt: skip
    yield Target(
        "embedded.webhooks.review:read_answer",
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u"}}',),
        (BadAnswer,), parser=lambda body: read_answer("u", body, is_mutating=True),
    )  # fmt: skip
    yield Target(
        "web.pages.site:AskedPath.of", ("/jobs/a%2Fb?x=1&y=%zz&=&a=1;b", "/"), (ValueError,),
        parser=_asked_path,
    )  # fmt: skip
    for name in ("decode_json", "decode_yaml", "decode_config"):
        yield Target(f"embedded.http.request:{name}", (JOB, REVIEW), (ApiError,), more=(LIMITS,))
    for kind in ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf"):
        yield Target("embedded.http.request:decode_body", (JOB, REVIEW, CONTENT), (ApiError,),
                     more=(kind, LIMITS))  # fmt: skip
    reviews = (REVIEW, REVIEW.replace(b"CREATE", b"\xff"))
    yield Target("webhook.review:decode_pod", reviews, (BadReview,))
    yield Target("webhook.review:decode_object", reviews, (BadReview,), more=("jobs",))
    conversion = (
        b'{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{"uid":"u",'
        b'"desiredAPIVersion":"fairlead.dev/v1beta1","objects":[{"apiVersion":'
        b'"fairlead.dev/v1alpha1","kind":"Job","spec":{"team":"t","roles":[{"name":"w"}]}}]}}'
    )
    yield Target("webhook.conversion_review:answer", (conversion,), (BadReview,))
    yield from _values()
    yield from _files()
    yield from _streams()
    yield from _tools()


def _values() -> Iterator[Target]:
    """Yield the parsers of values on command lines and in objects."""
    text = partial(Target, errors=(ValueError,))
    yield text("api.cluster.machine_result:decode_result", ('{"tests":[]}',))
    yield Target("api.jobs.use:decode_use", ('{"cpuSeconds":1}', "{}"))
    yield text("api.kubernetes.selectors:parse_labels", ("a=b,c in (d,e),!f", "a notin (b)"))
    yield text("api.kubernetes.selectors:parse_fields", ("metadata.name=a,b!=c",))
    yield Target(
        "api.validation.notify_rules:parse_url", ("https://a.b:8/c?d#e", "http://[::1]/", "ftp://x")
    )
    yield Target("model.health.windows:read_window", ("2026-01-01T00:00:00Z/2026-01-02T00:00:00Z",))
    yield Target("cli.sessions.notebook:read_server", (b'{"url":"http://a/","token":"\xff"}',))
    yield text("api.values.indices:parse_indices", ("0-31", "1,3,5-7", "0-99:4%5"))
    yield text("api.values.node_limit:parse_limit", ("3", "10%"))
    yield text(
        "runtime.kept.audit_export:parse_target", ("https://h/p?x", "tls://[::1]:6514", "file:///a")
    )
    yield text("api.values.quantity:parse", ("500m", "16Gi", "2e3", "-1.5E"))
    yield text(
        "api.values.times:parse_time", ("2026-11-20T08:15:30.5Z", "2026-11-20T08:15:30+01:00")
    )
    yield Target(
        "app.configuration.settings:parse_listen", ("127.0.0.1:7443", "[::1]:0", ":80"), (CliError,)
    )
    yield Target("cli.cluster.numbers:parse_number", ("12", "12_3", "12.batch"))
    yield text("cli.formats.instants:parse_instant", ("2h ago", "2026-01-01", "09:30", "now-1d"),
               more=(1.7e9,))  # fmt: skip
    yield text("cli.formats.text:parse_duration", ("1h30m", "2d", "45s"))
    yield text("cli.formats.text:parse_slurm_time", ("90", "12:00:00", "1-12:00:00"))
    yield text("cli.formats.text:parse_slurm_limit", ("UNLIMITED", "-1", "1-12"))
    yield Target("cli.cluster.lookup:read_state", ("Waiting", "PENDING"), (CliError,))
    yield Target("cli.job_request.arrays:parse_reference", ("sweep[3]", "sweep"))
    yield text("cli.job_request.mounts:parse_mount", ("claim:/data:ro", "/a:/b"))
    yield text("cli.job_request.mounts:parse_checkpoint", ("claim", "/a/b"))
    yield text("cli.job_request.node_kinds:parse_constraint", ("a|b", "a&b", "[a|b]"))
    yield Target("cli.records.members:parse_reference", ("job/worker-3", "job"))
    yield Target("cli.sessions.ssh_config:parse_host", ("0.job.team.fairlead", "job"), (CliError,))
    yield Target("cli.slurm_tools.columns:parse_percent", ("%.18i %9P", "%20j"), (ToolError,))
    yield Target("cli.slurm_tools.columns:parse_wide", ("JobID:10,Name", "a:.5"), (ToolError,))
    yield Target("cli.slurm_tools.columns:parse_sacct", ("JobID%20,State",), (ToolError,))
    yield Target("cli.slurm_tools.states:parse_state", ("PD", "RUNNING"))
    yield Target(
        "decide.jobs.following.own_work:decode_work",
        ('{"seconds":0.4,"steps":60,"spanSeconds":900}',),
    )
    yield Target("decide.jobs.following.progress:decode_line", (b'{"step":1,"checkpoint":2}',))
    yield Target("doctor.audit.request:parse_uri", ("/apis/a/v1/namespaces/b/c/d?watch=true",))
    yield Target("embedded.verbs.reading.lists:parse_version", ("12", "0"), (ApiError,))
    yield text("embedded.local.containers:expand", ("a $(B) $$(C)",), more=({"B": "b"},))
    yield text("model.element_sets:decode_set", ("0-3,7", "x:AAAA"), more=(parse_indices("0-63"),))
    yield text("node.traffic.classes:parse_prefix", ("192.0.2.0/24", "2001:db8::/32"))
    yield Target("node.sources.cloud:parse_instant", ("21 Jan 2019 09:00:43 GMT", "1 Jan 01"),
                 (OSError,))  # fmt: skip
    yield Target("node.traffic.ruleset:parse_name", ("c_12_internet_tx",))
    yield text("node.tuning.formula:parse_formula", ("max(1, cpus * 2)", "memory // 4 + 1"))


def _files() -> Iterator[Target]:
    """Yield the parsers of files and of what other programs print."""
    file = partial(Target, errors=(ValueError, CliError), is_file=True)
    suppressions = "suppressions:\n- check: A-1\n  reason: b\n  until: 2026-01-01\n"
    yield file("doctor.configuration:parse_suppressions", (suppressions,))
    yield file("doctor.configuration:parse_baseline", ('{"findings":[]}',))
    yield file(
        "doctor.prometheus.scrape_jobs:parse_scrape_jobs", ("scrape_configs:\n- job_name: a\n",)
    )
    yield Target("doctor.readers.node_pods:parse_node_facts", ("a=b\nc=d\n",), is_file=True)
    yield file("embedded.virtual.profile:parse_profile", ("nodes: {}\n", "stages: []\n"))
    yield file("node.tuning.profile:parse_profile", ("lines: []\n",), more=("source",))
    yield Target("node.reports.node_report:decode_report", (b'{"version":1}', b'{"node":"\xff"}'),
                 (UnreadableReport,))  # fmt: skip
    asked = (
        b'{"version":1,"id":"a","action":"Reboot","bootId":"b",'
        b'"expiresAt":"2026-01-01T00:00:00Z","components":["0000:3b:00"]}'
    )
    yield Target("node.repairs.request:decode_request", (asked,), (ValueError,))
    yield Target("node.shaping.limits:decode_rates", (b'{"teams":[]}',), (ValueError,))
    yield file("node.sources.disks:parse_mounts", ("36 35 98:0 / /mnt rw - ext3 /dev/x rw\n",),
               more=(("ext3",),))  # fmt: skip
    table = "entries  allocs table_fulls\n00000010 00000001 00000002\n"
    segments = "Tcp: OutSegs RetransSegs\nTcp: 9 1\n"
    yield Target("node.sources.packet_loss:parse_segments", (segments,), (OSError,), is_file=True)
    yield Target("node.sources.network:parse_fill", (table,), (OSError,), more=(64,), is_file=True)
    gpu = '{"gpus":[{"index":0,"rows":[0,1,1,0],"address":"00000000:3B:00.0","slowdown":8}]}'
    yield Target("node.sources.gpud:parse_states", (
        b'[{"component":"c","states":[{"health":"Unhealthy","reason":"r","suggested_actions":'
        b'{"repair_actions":["REBOOT_SYSTEM"]}}]}]',), (OSError,))  # fmt: skip
    yield Target("node.sources.dcgm:parse_gpus", (
        b'DCGM_FI_DEV_XID_ERRORS{gpu="0",pci_bus_id="00000000:53:00.0"} 79\n'
        b'DCGM_EXP_XID_ERRORS_COUNT{gpu="0",xid="79"} 2\n',), (OSError,))  # fmt: skip
    yield Target("node.sources.cloud:parse_answer",
                 (b'[{"Code":"system-reboot","NotBefore":"21 Jan 2019 09:00:43 GMT"}]',),
                 (OSError,), more=(tuple[Ec2Event, ...],))  # fmt: skip
    yield Target("node.sources.nvml:parse_look", (gpu,), (OSError,), is_file=True)
    nvme = '{"critical_warning":4,"media_errors":1,"percent_used":3}'
    ata = '{"id":197,"raw":{"value":9}}'
    smart = (
        f'{{"nvme_smart_health_information_log":{nvme}}}',
        f'{{"smart_status":{{"passed":false}},"ata_smart_attributes":{{"table":[{ata}]}}}}',
    )
    for parser, texts in (("parse_smartctl", smart), ("parse_nvme", (nvme,))):
        yield Target(f"node.sources.smart:{parser}", texts, (OSError,), is_file=True)
    yield Target("doctor.audit.parallel:read_logs", (AUDIT,), parser=_audit_log)


def _tools() -> Iterator[Target]:
    """Yield the parsers of what tools of others print, and of files of other schedulers."""
    tool = partial(Target, errors=(RuntimeError, Broken), is_file=True)
    yield tool("node.machine_tests.gpu_clocks:read_states", ("0, 1980, 1980, 700.1, 45, 0x4\n",))
    results = '{"results":[{"gpu_id":"0","status":"Fail","warnings":[{"error_severity":2}]}]}'
    test = f'{{"name":"Memory",{results[1:]}'
    categories = f'{{"test_categories":[{{"category":"Hardware","tests":[{test}]}}]}}'
    yield tool(
        "node.machine_tests.installed.dcgm:read_results", (f'{{"DCGM Diagnostic":{categories}}}',)
    )
    sums = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 412.7\n"
    yield tool("node.machine_tests.installed.nccl:read_rate", (sums,))
    case = '{"name":"host_to_device_memcpy_ce","status":"Passed","bandwidth_matrix":[["55.1"]]}'
    yield tool(
        "node.machine_tests.installed.nvbandwidth:read_rates",
        (f'{{"nvbandwidth":{{"testcases":[{case}]}}}}',),
    )
    conf = "ClusterName=c\nNodeName=n[1-4] CPUs=8 \\\n  Gres=gpu:4\nInclude /etc/%c.conf\n"
    yield Target("cli.slurm_import.conf:read_conf", (conf,), (CliError,), is_file=True,
                 parser=_slurm_conf)  # fmt: skip
    shown = "JobId=7 UserId=a(1)\n   NodeList=n[1-2] Gres=(null)\n\nJobId=8\n"
    yield Target("cli.slurm_import.accounts:read_records", (shown,), is_file=True,
                 parser=lambda text: list(read_records("f", text, "jobid")))  # fmt: skip
    yield Target("sim.kwok.objects:read_template", ("phase: Running\n{{ $a := 1 }}\n- type: a\n",))
    yield Target("sim.setup.replay_command:read_options", ("{}", '{"nodes": 3}'), (ValueError,))
    decision = b'{"format":"fairlead.dev/decision","version":1}\n{"kind":"Job","object":{}}\n'
    yield Target("app.queries.decision_file:read_lines", (decision,), (DecisionFileError,),
                 parser=lambda data: read_lines(data.splitlines()))  # fmt: skip
    head = b'{"format":"fairlead.dev/decision","version":1,"cycle":1,"now":0,"objects":0}'
    yield Target("app.queries.decision_file:read_head", (head,), (DecisionFileError,))


def _slurm_conf(text: str) -> object:
    def read(file: str) -> str:
        return text if file == "slurm.conf" else "Include slurm.conf\n"

    return read_conf("slurm.conf", read, Findings())


def _streams() -> Iterator[Target]:
    """Yield what takes bytes in as they come; each text comes whole, and in pieces."""
    lines = (b"one\ntwo\r\n\x1b[1;31mred\x1b]0;title\x07\x1b[0m\n",)
    frames = struct.pack("!cI", b"h", 3) + b"abc" + struct.pack("!cI", b"o", 2) + b"xy"
    yield Target("member.terminal_frames:Frames.feed", (frames,), (ValueError,),
                 parser=_fed(lambda: Frames().feed))  # fmt: skip
    yield Target("member.terminal_frames:Modes.feed", (b"\x1b[?1049h\x1b[?25;7l\x1bc",),
                 parser=_fed(lambda: Modes().feed))  # fmt: skip
    yield Target("cli.formats.program_output:TerminalFilter.feed", lines,
                 parser=_fed(lambda: TerminalFilter().feed))  # fmt: skip
    yield Target(
        "web.program_text:ProgramText.feed", lines, parser=_fed(lambda: ProgramText().feed)
    )
    yield Target(
        "cli.sessions.held_terminal:LeaveKey.feed", lines, parser=_fed(lambda: LeaveKey().feed)
    )
    yield Target("kube.protocol:LineSplitter.feed", lines, errors=(InternalError,),
                 parser=_fed(lambda: LineSplitter(1024).feed))  # fmt: skip
    yield Target(
        "runtime.kept.loglines:LineCutter.feed", lines, parser=_fed(lambda: LineCutter(b"a ").feed)
    )
    files = Path(__file__).parents[1] / "unit" / "member" / "data"
    events = (files / "events.out.tfevents.tensorboardX-2.6.5").read_bytes()[:600]
    yield Target("member.metric_files:TensorBoardEvents.feed", (events,), (NotMetricFileError,),
                 parser=_fed(lambda: TensorBoardEvents().feed))  # fmt: skip
    history = (files / "run-0.31.0.wandb").read_bytes()[:1500]
    yield Target("member.metric_files:WandbRun.feed", (history,), (NotMetricFileError,),
                 parser=_fed(lambda: WandbRun().feed))  # fmt: skip
    yield Target("member.terminal_log:PlainLines.feed", (b"a\x1b[1mb\r\n\x1b[?1049hx\x1b[?1049l",),
                 parser=_fed(lambda: PlainLines().feed))  # fmt: skip
    yield Target("run:RunFold.take", (b'{"metric":"loss","value":1,"step":2}', b'{"param":"a"}'),
                 parser=lambda data: RunFold().take(data))  # fmt: skip
    watched = b'{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}'
    yield Target("kube.decoding:Decoders.event", (watched, b'{"type":"ERROR","object":{}}'),
                 (ApiError,), parser=Decoders(JOBS).event)  # fmt: skip
    yield Target("embedded.http.streams.spdy:SpdyServer.feed", (_spdy(),), (SpdyError,),
                 parser=_fed(_spdy_feed))  # fmt: skip


def _fed(make: Callable[[], Callable[[bytes], object]]) -> Callable[[bytes], object]:
    """Return what feeds a new one with a text as a whole, and another with it byte by byte."""

    def parse(data: bytes) -> None:
        make()(data)
        feed = make()
        for at in range(len(data)):
            feed(data[at : at + 1])

    return parse


def _spdy() -> bytes:
    """Return a stream that is opened, and data on it."""
    pairs = ((b"port", b"80"), (b"streamtype", b"data"))
    texts = [text for pair in pairs for text in pair]
    plain = struct.pack("!I", len(pairs)) + b"".join(
        struct.pack("!I", len(text)) + text for text in texts
    )
    deflate = zlib.compressobj(level=0, zdict=spdy._DICTIONARY)
    block = deflate.compress(plain) + deflate.flush(zlib.Z_SYNC_FLUSH)
    body = struct.pack("!IIH", 1, 0, 0) + block
    head = struct.pack("!II", 0x80030001, len(body))
    return head + body + struct.pack("!II", 1, 1 << 24 | 3) + b"abc"


def _spdy_feed() -> Callable[[bytes], object]:
    server = SpdyServer()
    return lambda data: list(server.feed(data))


def _audit_log(data: bytes) -> object:
    with NamedTemporaryFile(suffix=".log") as file:
        file.write(data)
        file.flush()
        return read_logs([file.name], processes=1, engine=Engine.PLAIN)


TARGETS: tuple[Target, ...] = tuple(_rows())
#: Of a name like those of parsers, and none of strangers' bytes.
NO_PARSERS = {
    "member.terminal_log:SessionLog.feed": "has PlainLines read it",
    "input.sections:parse": "called by the parsers of files above, with their types",
    "embedded.resource_info:FieldReader.read": "reads objects that the server has encoded itself",
    "kube.http1:AnswerReader.feed": "reads what tests/property/test_http1.py draws",
    "member.sftp_server:SftpServer.answer": "acts on files: tests/unit/member/test_sftp_server.py",
}
