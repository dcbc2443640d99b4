"""Runs the doctor: reads the files that the flags name, asks the cluster, evaluates, reports."""

from __future__ import annotations

import datetime
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead import terminal
from fairlead.api.status import Unavailable
from fairlead.cli.cluster.embedded import is_embedded
from fairlead.cli.connection.common import Common, Format, dump, now, text_width
from fairlead.cli.doctor.access import COULD_NOT_LOOK, check_url, read_file, web_of
from fairlead.cli.doctor.audit import analyse
from fairlead.cli.doctor.monitoring import jobs_of
from fairlead.cli.formats.text import cut_end
from fairlead.doctor.audit.cost import CostModel
from fairlead.doctor.check import Check
from fairlead.doctor.configuration import (
    ConfigurationError,
    parse_baseline,
    parse_suppressions,
)
from fairlead.doctor.examine import ExaminationReport, ExamineOptions, examine, select
from fairlead.doctor.facts import ClusterFacts, Source
from fairlead.doctor.objects import SeenNode
from fairlead.doctor.output.junit import junit
from fairlead.doctor.output.page import html_page
from fairlead.doctor.output.plain import check_values, report_values
from fairlead.doctor.output.text import WIDTH_DEFAULT, check_lines, report_lines
from fairlead.doctor.readers.budget import BudgetedGet, finished
from fairlead.doctor.readers.cluster import ClusterReader
from fairlead.doctor.readers.etcd import EtcdReader
from fairlead.doctor.readers.flags import BadManifest, Manifests, flags_of_objects, read_manifests
from fairlead.doctor.readers.node_pods import NodePodReader, PodSettings, parse_node_facts
from fairlead.doctor.readers.pages import PageReader, PageTarget, page_target
from fairlead.doctor.readers.prometheus import PrometheusAnswers
from fairlead.doctor.registry import BY_ID, CHECKS, wanted_samples
from fairlead.doctor.sources import METRIC_SOURCES
from fairlead.input.errors import CliError, Code, Exit, Problem, fail, render_error
from fairlead.input.plain import UnreadableText, yaml_document
from fairlead.input.suggest import nearest
from fairlead.terminal import joined

DNS_PODS_MAX = 5


def list_checks(common: Common, format_: str) -> int:
    """Write all checks, in order of harm."""
    if format_ == "text":
        width = max(len(check.id) for check in CHECKS)
        lines = (f"{each.id:<{width}}  {each.worst.word:<8}  {each.title}" for each in CHECKS)
        columns = text_width(sys.maxsize)
        common.lines(cut_end(line, columns) for line in lines)
    else:
        common.emit(dump([check_values(each) for each in CHECKS], Format(format_)))
    return Exit.OK


def explain_check(common: Common, name: str, format_: str) -> int:
    """Write one check with its reasons; CliError for an id that does not exist."""
    check = BY_ID.get(name.upper())
    if check is None:
        near = nearest(name.upper(), BY_ID)
        raise fail(
            Code.BAD_VALUE, f"--explain: there is no check '{name}'",
            help=(f"fairlead doctor --explain {near}" if near else "fairlead doctor checks",),
        )  # fmt: skip
    if format_ in ("json", "yaml"):
        common.emit(dump(check_values(check), Format(format_)))
    else:
        lines = check_lines(check, width=text_width(WIDTH_DEFAULT))
        common.lines(lines)
    return Exit.OK


def run_doctor(common: Common, format_: str, options: Mapping[str, Any]) -> int:
    """Read, evaluate and report; the exit code is the report's, or 3 when nothing was seen."""
    checks = _selected(options)
    files = _Files(options)
    try:
        facts, requests = _facts(common, options, files)
        facts = _with_prometheus(common, files, checks, facts)
    except CliError as error:
        if error.problems[0].code.exit is not Exit.UNREACHABLE:
            raise
        terminal.tell(render_error(error, with_anchors=bool(common.verbosity)).removesuffix("\n"))
        return COULD_NOT_LOOK
    report = examine(checks, facts, files.options(common, options, requests))
    common.emit(render(report, format_, int(options["at_nodes"])))
    return report.exit_code(allows_unknown=bool(options["allow_unknown"]))


def render(report: ExaminationReport, format_: str, project_to: int = 0) -> str:
    """Return the report in one of the formats."""
    if format_ in ("json", "yaml"):
        return dump(report_values(report), Format(format_))
    if format_ == "junit":
        return junit(report)
    if format_ == "html":
        return html_page(report)
    lines = report_lines(report, project_to, width=text_width(WIDTH_DEFAULT))
    return joined(lines)


def _selected(options: Mapping[str, Any]) -> tuple[Check, ...]:
    for flag in ("only", "skip"):
        for pattern in options[flag]:
            if not select(CHECKS, (pattern,), ()):
                near = nearest(pattern.upper(), BY_ID)
                raise fail(
                    Code.BAD_VALUE, f"--{flag}: no check matches '{pattern}'",
                    help=(f"--{flag} {near}" if near else "fairlead doctor checks",),
                )  # fmt: skip
    return select(CHECKS, options["only"], options["skip"])


class _Files:
    """What the files that the flags name say; all of them are read before the cluster is asked."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.suppressions = ()
        self.baseline: frozenset[str] = frozenset()
        if options["suppressions"]:
            text = read_file(options["suppressions"], "--suppressions")
            self.suppressions = _parsed(options["suppressions"], parse_suppressions, text)
        if options["baseline"]:
            text = read_file(options["baseline"], "--baseline")
            self.baseline = _parsed(options["baseline"], parse_baseline, text)
        self.web = web_of(options, "metrics")
        self.prometheus_web = web_of(options, "prometheus")
        self.node_facts = {
            Path(name).stem: parse_node_facts(read_file(name, "--node-facts"))
            for name in options["node_facts"]
        }
        self.kubelets = {Path(name).stem: _kubelet(name) for name in options["kubelet_config"]}
        self.jobs = jobs_of(options["jobs"])
        if options["node_pods"] and options["offline"]:
            raise fail(Code.BAD_VALUE, "--node-pods: with --offline no pod can be created",
                       help=("--node-facts FILE",))  # fmt: skip
        self.etcd_web = web_of(options, "etcd")
        for url in options["etcd"]:
            check_url(url, "--etcd")
        self.prometheus: str = options["prometheus"]
        if self.prometheus:
            check_url(self.prometheus, "--prometheus")
        self.manifests = Manifests({})
        if options["manifests"]:
            try:
                self.manifests = read_manifests(Path(options["manifests"]))
            except (OSError, BadManifest) as error:
                raise fail(Code.MANIFEST_UNREADABLE, f"--manifests: {error}") from error

    def options(self, common: Common, options: Mapping[str, Any], requests: int) -> ExamineOptions:
        """Return what the evaluation takes out."""
        today = datetime.datetime.fromtimestamp(now(), datetime.UTC).date().isoformat()
        for each in self.suppressions:
            if not select(CHECKS, (each.check,), ()):
                common.note(f"--suppressions: no check matches '{each.check}'")
        return ExamineOptions(
            self.suppressions, today, self.baseline, int(options["at_nodes"]), requests
        )


def _parsed(name: str, parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except ConfigurationError as error:
        raise CliError(
            [Problem(Code.BAD_FIELD, mistake, where=name) for mistake in error.mistakes]
        ) from error


def _kubelet(name: str) -> dict[str, object]:
    try:
        value: Any = yaml_document(read_file(name, "--kubelet-config"))
    except UnreadableText as error:
        raise fail(Code.MANIFEST_SYNTAX, f"--kubelet-config: '{name}': {error}") from error
    if not isinstance(value, dict):
        raise fail(Code.MANIFEST_SYNTAX, f"--kubelet-config: '{name}' is not a mapping")
    inner: Any = value.get("kubeletconfig", value)
    return inner if isinstance(inner, dict) else {}


def _facts(common: Common, options: Mapping[str, Any], files: _Files) -> tuple[ClusterFacts, int]:
    """Return all facts and the number of requests that the API server answered for them."""
    targets = _url_targets(options, files)
    objects, absent = None, dict[Source, str]()
    nodes, flags = options["nodes"] or None, files.manifests.flags
    kubelets: dict[str, dict[str, object]] = dict(files.kubelets)
    node_facts = files.node_facts
    get: BudgetedGet | None = None
    if options["offline"]:
        absent[Source.API] = f"{Source.API.value}: not asked (--offline)"
    else:
        get = _get(common)
        common.note("reading the Kubernetes API")
        reader = ClusterReader(get.read)
        objects = finished(reader.read())
        nodes = nodes or reader.nodes
        kubelets = kubelets or finished(reader.kubelet_configs(objects.nodes))
        flags = flags or flags_of_objects(objects)
        absent |= reader.absent()
        node_facts = _of_pods(common, options, objects.nodes or (), absent) | node_facts
        targets += _proxied(get, objects.dns_pods or (), targets)
    etcd = None
    if options["etcd"]:
        common.note("asking etcd")
        members = EtcdReader(options["etcd"], files.etcd_web)
        etcd = members.read()
        absent |= members.absent()
        targets += members.targets(etcd)
    pages = PageReader(wanted_samples(), now)
    interval = float(options["interval"])
    if targets and interval:
        common.note(f"reading metrics twice, {interval:g} s apart")
    scrapes = pages.read(targets, (lambda: time.sleep(interval)) if interval else None)
    audit = None
    if options["audit_"]:
        counts = objects.counts if objects else {}
        audit = analyse(common, options["audit_"], CostModel(nodes or 0, counts))
    facts = ClusterFacts(
        nodes=nodes, objects=objects, scrapes=scrapes, flags=flags, kubelet_configs=kubelets,
        scheduler_config=files.manifests.scheduler_config, node_facts=node_facts,
        etcd=etcd, audit=audit, absent=absent | pages.absent,
    )  # fmt: skip
    return facts, get.requests if get else 0


def _of_pods(
    common: Common,
    options: Mapping[str, Any],
    nodes: tuple[SeenNode, ...],
    absent: dict[Source, str],
) -> dict[str, dict[str, str]]:
    """Return the facts of nodes from pods, where they were asked for."""
    if not options["node_pods"]:
        return {}
    settings = PodSettings(
        int(options["node_pods"]), common.space("default"), options["node_pods_image"],
        secrets.token_hex(8),
    )  # fmt: skip
    common.note(f"running pods in namespace {settings.namespace} for facts of nodes")
    api = common.connect(timeout_seconds=30.0)

    def send(method: str, path: str, query: Mapping[str, str], body: object = None) -> bytes:
        try:
            answer: bytes = api.request(method, path, query=query, body=body).body
        except CliError as error:
            raise Unavailable(error.problems[0].message) from error
        return answer

    reader = NodePodReader(send, settings, wall=now)
    found = reader.read(nodes)
    for problem in reader.problems:
        common.note(f"--node-pods: {problem}")
    if reader.problems and not found:
        absent[Source.NODE] = f"{Source.NODE.value}: {reader.problems[0]}"
    return found


def _with_prometheus(
    common: Common, files: _Files, checks: tuple[Check, ...], facts: ClusterFacts
) -> ClusterFacts:
    """Return the facts with what Prometheus answers, where one was given."""
    url = files.prometheus
    if not url:
        return facts
    common.note(f"asking Prometheus at {url}")
    reader = PrometheusAnswers(url, files.prometheus_web, time.monotonic, files.jobs)
    facts = reader.with_status(checks, facts)
    answers = reader.read(checks, facts)
    common.detail(f"Prometheus answered {reader.requests} requests")
    return replace(facts, answers=answers)


def _get(common: Common) -> BudgetedGet:
    """Return GET on the cluster of the kubeconfig; one that falls silent later is Unavailable."""
    api = common.connect(timeout_seconds=30.0)
    if is_embedded(api):
        common.note("note: this is a cluster of fairlead up: it has no etcd, kube-apiserver or "
                    "kube-scheduler, so most checks cannot be evaluated")  # fmt: skip
    answered = False

    def get(path: str, query: Mapping[str, str]) -> bytes:
        nonlocal answered
        try:
            body: bytes = api.request("GET", path, query=query).body
        except CliError as error:
            if not answered:
                raise
            raise Unavailable(error.problems[0].message) from error
        answered = True
        return body

    budgeted = BudgetedGet(get)
    budgeted.spend()  # for whether it is embedded
    return budgeted


def _url_targets(options: Mapping[str, Any], files: _Files) -> list[PageTarget]:
    targets: list[PageTarget] = []
    for given in options["metrics"]:
        target = page_target(given, files.web)
        if target is None:
            raise fail(
                Code.BAD_VALUE, f"--metrics: '{given}' is not NAME=URL",
                detail=(f"NAME is one of {', '.join(METRIC_SOURCES)}",),
                help=("--metrics etcd=http://127.0.0.1:2381/metrics",),
            )  # fmt: skip
        targets.append(target)
    return targets


def _proxied(get: BudgetedGet, dns_pods: Any, given: list[PageTarget]) -> list[PageTarget]:
    """Return the pages that the API server hands out, of sources that no URL was given for."""
    known = {target.source for target in given}
    targets: list[PageTarget] = []
    if Source.APISERVER not in known:
        targets.append(PageTarget(Source.APISERVER, "apiserver", lambda: get("/metrics", {})))
    if Source.COREDNS not in known:
        for pod in dns_pods[:DNS_PODS_MAX]:
            path = f"/api/v1/namespaces/kube-system/pods/{pod.metadata.name}:9153/proxy/metrics"
            targets.append(
                PageTarget(Source.COREDNS, pod.metadata.name, lambda path=path: get(path, {}))
            )
    return targets
