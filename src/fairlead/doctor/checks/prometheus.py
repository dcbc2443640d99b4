"""Checks of Prometheus: series, replay, queries, and how it is configured to scrape."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.doctor.check import Check, MeasuredValue, critical, info, warning
from fairlead.doctor.expressions import Gauge, PerSecond, Quantile, Ratio, Recorded, reads
from fairlead.doctor.facts import ClusterFacts, Source
from fairlead.doctor.prometheus.scrape_jobs import ScrapeJob

P = Source.PROMETHEUS
R = (Source.RECORDED,)
#: Of fewer series in all, the share of a metric does not matter.
SERIES_MIN = 10_000
#: Histograms of which the usual charts drop most buckets.
DROPPED = (
    "apiserver_request_duration_seconds_bucket", "apiserver_request_sli_duration_seconds_bucket",
    "apiserver_request_slo_duration_seconds_bucket", "apiserver_request_body_size_bytes_bucket",
    "apiserver_response_sizes_bucket", "apiserver_watch_events_sizes_bucket",
    "etcd_request_duration_seconds_bucket",
)  # fmt: skip
OFTEN_SECONDS = 15
TARGETS = "prometheus_target_scrape_pool_targets"


@reads(
    P,
    gauges=("prometheus_tsdb_head_series",),
    counters=("prometheus_tsdb_head_series_created_total",),
)
def series_churn(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the share of the series that are new in an hour."""
    heads = {r.subject: r.value for r in Gauge(P, "prometheus_tsdb_head_series")(facts)}
    for reading in PerSecond(P, "prometheus_tsdb_head_series_created_total")(facts):
        head = heads.get(reading.subject, 0.0)
        if head > 0:
            yield MeasuredValue(reading.subject, reading.value * 3600 / head,
                          f"{reading.evidence}; {head:,.0f} series in the head")  # fmt: skip


def large_metrics(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the share of each metric in all series."""
    series = facts.seen_series()
    for name, count in series.by_metric.items():
        share = count / series.total if series.total >= SERIES_MIN else 0.0
        yield MeasuredValue(name, share, f"{count:,} of {series.total:,} series")


def droppable(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the share of series that the usual charts drop."""
    series = facts.seen_series()
    found = {name: series.by_metric[name] for name in DROPPED if name in series.by_metric}
    count = sum(found.values())
    text = f"{count:,} of {series.total:,} series, in {', '.join(found) or 'no such metric'}"
    yield MeasuredValue(
        "buckets", count / series.total if series.total >= SERIES_MIN else 0.0, text
    )


def gpu_series(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the series per GPU of NVIDIA's exporter."""
    series = facts.seen_series()
    count = sum(n for name, n in series.by_metric.items() if name.startswith("DCGM_"))
    gpus = series.values_by_label.get("UUID", 0)
    if count and not gpus:
        raise facts.missing(Source.RECORDED, "the label UUID of GPUs is not in the status")
    text = f"{count:,} series of DCGM, {gpus:,} GPUs"
    yield MeasuredValue("dcgm-exporter", count / gpus if gpus else 0.0, text)


def _scrape_jobs(facts: ClusterFacts) -> tuple[ScrapeJob, ...]:
    return facts.seen(facts.scrape_jobs, Source.RECORDED, "its configuration was not read")


def unlimited(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read how many scrapes have no limit of any kind."""
    jobs = _scrape_jobs(facts)
    names = [each.name for each in jobs if not each.limits]
    text = f"{len(names)} of {len(jobs)} scrapes: {', '.join(names[:5]) or 'none'}"
    yield MeasuredValue("scrapes", len(names), text)


@reads(P, gauges=(TARGETS,))
def frequent_scrapes(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the targets of each scrape that is made often."""
    often = {each.name: each.interval_seconds for each in _scrape_jobs(facts)
             if 0 < each.interval_seconds <= OFTEN_SECONDS}  # fmt: skip
    for instance, family in facts.family(P, TARGETS):
        for labels, count in family.values():
            job = labels.get("scrape_job", "")
            text = f"{count:,.0f} targets every {often.get(job, 0):g} s"
            yield MeasuredValue(f"{instance} {job}", count if job in often else 0.0, text)


CHECKS: tuple[Check, ...] = (
    Check(
        "MET-01", "Prometheus holds very many series", (P,),
        Gauge(P, "prometheus_tsdb_head_series"),
        (warning(10e6), critical(30e6)),
        "Each takes 4 to 8 KB of memory; a restart replays them all.",
        "curl -s PROMETHEUS/api/v1/status/tsdb   # the largest metrics; drop what nothing uses",
        "OpenAI 2021; Prometheus", unit="series",
    ),
    Check(
        "MET-05", "Prometheus takes long to replay its log", (P,),
        Gauge(P, "prometheus_tsdb_data_replay_duration_seconds"), (warning(600), critical(3600)),
        "Nothing is monitored meanwhile; hours were seen.",
        "fewer series (MET-01); GOMAXPROCS=24 on hosts of many cores", "OpenAI 2021", unit="s",
    ),
    Check(
        "MET-06", "Prometheus runs very many threads", (P,),
        Gauge(P, "go_sched_gomaxprocs_threads"), (warning(24),),
        "The replay of its log has a worker for each; they wait for one another.",
        "GOMAXPROCS=24 in its environment, or a CPU limit", "OpenAI 2021", unit="threads",
    ),
    Check(
        "MET-02", "Prometheus gets many new series", (P,), series_churn, (warning(0.1),),
        "Short jobs with a label per pod: memory follows the churn, not the pods.",
        "drop the labels pod and container_id where nothing uses them", "Prometheus", unit="share",
    ),
    Check(
        "MET-04", "Prometheus takes long to list series", (P,),
        Quantile(P, "prometheus_http_request_duration_seconds",
                 match=(("handler", ("/api/v1/series",)),), count_min=10), (warning(30),),
        "A query without a metric name made a server of 25 GB take 90 GB.",
        "limit= in dashboards; a proxy that refuses such queries", "prometheus #5547", unit="s",
    ),
    Check(
        "MET-07", "Prometheus once took far more memory than it uses now", (P,),
        Ratio(P, "go_memstats_sys_bytes", "go_memstats_heap_inuse_bytes"),
        (warning(3.0), critical(6.0)),
        "The peak since it started, usually the replay of its log: with a limit between both it "
        "never starts again. 30 GB for 5 GB were seen.",
        "a memory limit over the peak; fewer series (MET-01); fairlead doctor metrics URL predicts "
        "the next replay", "prometheus #6934", unit="x heap",
    ),
    Check(
        "MET-13", "Prometheus cannot finish queries", (P,),
        PerSecond(P, "prometheus_http_requests_total", ("handler",), (("code", ("422",)),)),
        (warning(0.0),),
        "Queries that would load too many samples end with an error, after they took the memory.",
        "recording rules for wide panels; fairlead doctor metrics URL --uses DASHBOARDS names "
        "them; federate by cluster", "OpenAI 2021", unit="/s",
    ),
    Check(
        "MET-03", "One metric has a large share of the series", R, large_metrics, (warning(0.1),),
        "It costs memory, and every restart reads it again.",
        "fairlead doctor metrics URL --uses DASHBOARDS   # writes the rule that drops it",
        "Prometheus, TSDB status", unit="share",
    ),
    Check(
        "MET-09", "Buckets that the usual charts drop are kept", R, droppable, (warning(0.1),),
        "Histograms of API servers have 40 buckets per verb and resource; few panels read them.",
        "metric_relabel_configs:\n- source_labels: [__name__, le]\n"
        "  regex: (apiserver_request|apiserver_request_sli|etcd_request)_duration_seconds_bucket;"
        "(0.15|0.3|0.35|0.6|0.7|1.25|1.5|2|3|4|5|6|8|15|20|40|45|50)(\\.0)?\n  action: drop",
        "kube-prometheus", unit="share",
    ),
    Check(
        "MET-10", "Scrapes have no limits", R, unlimited, (warning(0),),
        "One exporter with a label of its own takes all of the memory.",
        "global:\n  sample_limit: 50000\n  label_limit: 64\n  label_value_length_limit: 512\n"
        "  body_size_limit: 50MB", "Prometheus configuration", unit="scrapes",
    ),
    Check(
        "MET-14", "kube-state-metrics takes long to scrape", (Source.KUBE_STATE, *R),
        Recorded(Source.KUBE_STATE, 'max by (instance) (scrape_duration_seconds{job=~"$job"})'),
        (warning(10),),
        "It gives an object's state late, and not at all beyond the time-out.",
        "--metric-labels-allowlist, --resources; --total-shards and --shard",
        "kube-state-metrics, sharding", unit="s", growth=1,
    ),
    Check(
        "MET-16", "A GPU has very many series", R, gpu_series, (warning(200),),
        "Labels of pods multiply each field of NVIDIA's exporter by the jobs that ran on it.",
        "drop the labels pod, namespace and container of DCGM_*, or the fields that nothing uses",
        "dcgm-exporter", unit="series",
    ),
    Check(
        "MET-11", "Very many targets are scraped often", (P, *R), frequent_scrapes,
        (info(5_000),),
        "Samples take CPU, and most of these values change rarely.",
        "scrape_interval: 1m for exporters of nodes", "Prometheus", unit="targets", growth=1,
    ),
)  # fmt: skip
