"""Parsers of what strangers write, with texts that they take and errors that they may raise.

A module-level function named `parse...`, `decode...` or `expand...` whose first parameter is text
or bytes is such a parser: `tests/tidy/test_fuzzed.py` fails for one without a row. Parsers of other
names have rows, too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from tempfile import NamedTemporaryFile
from typing import Any

from fairlead.api.status import ApiError
from fairlead.api.values.indices import parse_indices
from fairlead.cli.slurm_tools.options import ToolError
from fairlead.doctor.audit.parallel import Engine, read_logs
from fairlead.embedded.http.request import BodyLimits
from fairlead.input.errors import CliError
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
    #: Where the parser reads a file: what writes one and calls it.
    parser: Callable[[bytes], object] | None = None
    #: What is called with the parser's result: it is used as its callers do.
    use: Callable[[Any], object] = bool

    def call(self, given: str | bytes) -> None:
        """Parse, and use the result."""
        if self.parser is not None:
            assert isinstance(given, bytes)
            self.parser(given)
            return
        module, name = self.name.split(":")
        parser = getattr(importlib.import_module(f"fairlead.{module}"), name)
        self.use(parser(given, *self.more, **dict(self.named)))


def _evaluated(steps: Any) -> None:
    from fairlead.embedded.http.columns import evaluate

    evaluate(steps, {"a": [{"b": 1}, {"b": "x"}], "status": {"conditions": [{"type": "Ready"}]}})


def _rows() -> Iterator[Target]:
    text = partial(Target, errors=(ValueError,))
    yield Target("cli.submitting.manifest:parse_manifest", (JOB, b"{}", b"a: &a [*a]"),
                 more=("file",))  # fmt: skip
    yield Target("cli.script.header:parse_header", (HEADER,), (CliError,),
                 named=(("file", "f"),), is_file=True)  # fmt: skip
    yield Target("doctor.metrics:parse_page", (PAGE,), (ValueError,), more=(("a", "a_bucket"),))
    yield Target("embedded.http.protobuf:decode_protobuf", (CONTENT,), (ApiError,))
    yield Target(
        "node.sources.kmsg:parse_record",
        (b"4,1,100,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n SUBSYSTEM=pci\n",),
    )
    yield text("member.hostlist:expand_hosts", ("node[001-003,07],b", "a[1-2]b[3-4]"))
    yield text(
        "embedded.http.columns:compile_path",
        (".a[*].b", '.status.conditions[?(@.type=="Ready")]', ".a[0]", ".a[-1]['b']"),
        use=_evaluated,
    )
    for name in ("decode_json", "decode_yaml", "decode_config"):
        yield Target(f"embedded.http.request:{name}", (JOB, REVIEW), (ApiError,), more=(LIMITS,))
    for kind in ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf"):
        yield Target("embedded.http.request:decode_body", (JOB, REVIEW, CONTENT), (ApiError,),
                     more=(kind, LIMITS))  # fmt: skip
    yield Target("webhook.review:decode_pod", (REVIEW,), (BadReview,))
    yield Target("webhook.review:decode_object", (REVIEW,), (BadReview,), more=("jobs",))
    yield from _values()
    yield from _files()


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
    yield text("api.values.indices:parse_indices", ("0-31", "1,3,5-7", "0-99:4%5"))
    yield text("api.values.node_limit:parse_limit", ("3", "10%"))
    yield text("api.values.quantity:parse", ("500m", "16Gi", "2e3", "-1.5E"))
    yield text(
        "api.values.times:parse_time", ("2026-11-20T08:15:30.5Z", "2026-11-20T08:15:30+01:00")
    )
    yield Target("app.settings:parse_listen", ("127.0.0.1:7443", "[::1]:0", ":80"), (CliError,))
    yield Target("cli.cluster.numbers:parse_number", ("12", "12_3", "12.batch"))
    yield text("cli.formats.instants:parse_instant", ("2h ago", "2026-01-01", "09:30", "now-1d"),
               more=(1.7e9,))  # fmt: skip
    yield text("cli.formats.text:parse_duration", ("1h30m", "2d", "45s"))
    yield text("cli.formats.text:parse_slurm_time", ("90", "12:00:00", "1-12:00:00"))
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
    yield Target("decide.jobs.progress:decode_line", (b'{"step":1,"checkpoint":2}',))
    yield Target("doctor.audit.request:parse_uri", ("/apis/a/v1/namespaces/b/c/d?watch=true",))
    yield Target("embedded.verbs.lists:parse_version", ("12", "0"), (ApiError,))
    yield text("embedded.local.containers:expand", ("a $(B) $$(C)",), more=({"B": "b"},))
    yield text("model.element_sets:decode_set", ("0-3,7", "x:AAAA"), more=(parse_indices("0-63"),))
    yield text("node.traffic.classes:parse_prefix", ("192.0.2.0/24", "2001:db8::/32"))
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
    yield Target("node.node_report:decode_report", (b'{"version":1}',), (ValueError,))
    yield Target("node.shaping.limits:decode_rates", (b'{"teams":[]}',), (ValueError,))
    yield file("node.sources.disks:parse_mounts", ("36 35 98:0 / /mnt rw - ext3 /dev/x rw\n",),
               more=(("ext3",),))  # fmt: skip
    table = "entries  allocs table_fulls\n00000010 00000001 00000002\n"
    yield Target("node.sources.network:parse_fill", (table,), (OSError,), more=(64,), is_file=True)
    yield Target("doctor.audit.parallel:read_logs", (AUDIT,), parser=_audit_log)


def _audit_log(data: bytes) -> object:
    with NamedTemporaryFile(suffix=".log") as file:
        file.write(data)
        file.flush()
        return read_logs([file.name], processes=1, engine=Engine.PLAIN)


TARGETS: tuple[Target, ...] = tuple(_rows())
#: Of a name like those of parsers, and none of strangers' bytes.
NO_PARSERS = {
    "input.sections:parse": "called by the parsers of files above, with their types",
}
