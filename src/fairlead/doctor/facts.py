"""What the readers saw, in types; every part that was not read is absent, with the reason.

An absent part is not an empty one: asking for it raises `NotSeen`, and the check is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from fairlead.doctor.audit.summary import AuditSummary
from fairlead.doctor.etcd_state import EtcdState
from fairlead.doctor.metrics import Family, Scrapes
from fairlead.doctor.objects import SeenObjects
from fairlead.doctor.prometheus.drops import TsdbSeries
from fairlead.doctor.prometheus.scrape_jobs import ScrapeJob
from fairlead.doctor.sources import Source
from fairlead.runtime.exported.metrics_page import START

T = TypeVar("T")


class NotSeen(Exception):
    """A fact is absent: why, and how to show it."""

    def __init__(self, source: Source, reason: str = "") -> None:
        self.source = source
        self.reason = reason or f"{source.value}: not read"
        self.show = source.show
        super().__init__(self.reason)


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    """One measured value. `evidence` gives the numbers and says where they come from."""

    subject: str
    value: float
    evidence: str


Measure = Callable[["ClusterFacts"], Iterable[MeasuredValue]]


@dataclass(frozen=True)  # no slots: a property of it is computed once
class ClusterFacts:
    """Everything that was seen of one cluster.

    `flags` are by component (`kube-apiserver`, `etcd` ...), each a mapping of names without dashes
    to values; `scheduler_config` is the file that kube-scheduler's flag `config` names.
    `node_facts` and `kubelet_configs` are by node. `series` and `scrape_jobs` are a Prometheus
    server's status and configuration. `answers` are by check, from another place than the check's
    own measure, and go before it. `absent` says why a source could not be read.
    """

    nodes: int | None = None
    objects: SeenObjects | None = None
    scrapes: Mapping[Source, tuple[Scrapes, ...]] = field(
        default_factory=dict[Source, tuple[Scrapes, ...]]
    )
    flags: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    kubelet_configs: Mapping[str, Mapping[str, object]] = field(
        default_factory=dict[str, Mapping[str, object]]
    )
    node_facts: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict[str, Mapping[str, str]]
    )
    scheduler_config: Mapping[str, object] | None = None
    series: TsdbSeries | None = None
    scrape_jobs: tuple[ScrapeJob, ...] | None = None
    etcd: EtcdState | None = None
    audit: AuditSummary | None = None
    answers: Mapping[str, tuple[MeasuredValue, ...] | NotSeen] = field(
        default_factory=dict[str, "tuple[MeasuredValue, ...] | NotSeen"]
    )
    absent: Mapping[Source, str] = field(default_factory=dict[Source, str])
    #: The samples that the measure which is asked now has said that it reads; None: any.
    readable: frozenset[tuple[Source, str]] | None = None

    @cached_property
    def without_samples(self) -> ClusterFacts:
        """The same facts, of which no sample may be read."""
        return replace(self, readable=frozenset())

    def missing(self, source: Source, what: str = "") -> NotSeen:
        """Return the exception for a part that was not seen."""
        reason = self.absent.get(source, "")
        if what:
            reason = f"{source.value}: {what}"
        return NotSeen(source, reason)

    def seen(self, part: T | None, source: Source, what: str = "") -> T:
        """Return a part that was seen; NotSeen for None, with what to say of it."""
        if part is None:
            raise self.missing(source, what)
        return part

    def nodes_count(self) -> int:
        """Return the number of nodes; NotSeen when it is not known."""
        what = "the number of nodes is not known; see --nodes"
        return self.seen(self.nodes, Source.API, what)

    def seen_objects(self) -> SeenObjects:
        """Return the objects of the Kubernetes API; NotSeen."""
        return self.seen(self.objects, Source.API)

    def seen_etcd(self) -> EtcdState:
        """Return what etcd's own API says; NotSeen."""
        return self.seen(self.etcd, Source.ETCD_API)

    def seen_audit(self) -> AuditSummary:
        """Return the summary of the audit log; NotSeen."""
        return self.seen(self.audit, Source.AUDIT)

    def seen_series(self) -> TsdbSeries:
        """Return the status of Prometheus' TSDB; NotSeen."""
        return self.seen(self.series, Source.RECORDED)

    def seen_flags(self, component: str) -> Mapping[str, str]:
        """Return the flags of a component; NotSeen."""
        what = f"no flags of {component} were seen"
        return self.seen(self.flags.get(component), Source.FLAGS, what)

    def family(
        self, source: Source, name: str, *, is_lazy: bool = False
    ) -> tuple[tuple[str, Family], ...]:
        """Return (instance, family) of each instance that exports the metric; NotSeen if none.

        A lazy metric is one that is exported from its first event on: where the page has others of
        the source, its absence means that nothing happened, and the result is empty.
        """
        assert self.readable is None or (source, name) in self.readable, (
            f"a check reads {name} and does not say so"
        )
        scrapes = self.scrapes.get(source)
        if not scrapes:
            raise self.missing(source)
        found = [(each.instance, each.families[name]) for each in scrapes if name in each.families]
        if not found and not (is_lazy and all(set(each.families) - {START} for each in scrapes)):
            raise self.missing(source, f"{name} is not exported")
        return tuple(found)
