"""Where the doctor's facts come from."""

from __future__ import annotations

from enum import Enum
from typing import Self


class Source(Enum):
    """Where facts come from; a check names the ones it needs."""

    _value_: str
    #: How it is shown to the doctor.
    show: str
    #: What `--metrics` and `--job` call it; "": it has no page of metrics.
    page: str
    #: Pattern of the label `job` of its scrapes, as the usual charts name them.
    job: str

    def __new__(cls, value: str, show: str, page: str = "", job: str = "") -> Self:
        """Make a member."""
        source = object.__new__(cls)
        source._value_, source.show, source.page, source.job = value, show, page, job
        return source

    API = "Kubernetes API", "run with a kubeconfig that may list the objects"
    APISERVER = (
        "API server metrics",
        "grant get on the non-resource URL /metrics, --metrics apiserver=URL, or --prometheus URL",
        "apiserver", ".*apiserver.*",
    )  # fmt: skip
    ETCD = (
        "etcd metrics",
        "--metrics etcd=http://HOST:2381/metrics, once per member, or --prometheus URL",
        "etcd", ".*etcd.*",
    )  # fmt: skip
    ETCD_API = "etcd API", "--etcd https://HOST:2379, once per member, with a client certificate"
    SCHEDULER = (
        "scheduler metrics",
        "--metrics scheduler=https://HOST:10259/metrics, or --prometheus URL",
        "scheduler", ".*scheduler.*",
    )  # fmt: skip
    CONTROLLER_MANAGER = (
        "controller manager metrics",
        "--metrics controller-manager=https://HOST:10257/metrics, or --prometheus URL",
        "controller-manager", ".*controller-manager.*",
    )  # fmt: skip
    COREDNS = (
        "CoreDNS metrics",
        "grant get on pods/proxy in kube-system, --metrics coredns=URL, or --prometheus URL",
        "coredns", ".*dns.*",
    )  # fmt: skip
    KUBELET = (
        "kubelet metrics", "--metrics kubelet=URL, or --prometheus URL", "kubelet", ".*kubelet.*",
    )  # fmt: skip
    PROMETHEUS = (
        "Prometheus metrics",
        "--metrics prometheus=http://HOST:9090/metrics, or --prometheus URL",
        "prometheus", ".*prometheus.*",
    )  # fmt: skip
    KUBE_PROXY = (
        "kube-proxy metrics",
        "--metrics kube-proxy=http://NODE:10249/metrics, or --prometheus URL",
        "kube-proxy", ".*kube-proxy.*",
    )  # fmt: skip
    KUBE_STATE = (
        "kube-state-metrics metrics", "--prometheus URL",
        "kube-state-metrics", ".*kube-state-metrics.*",
    )  # fmt: skip
    RECORDED = "Prometheus server", "--prometheus URL"
    FLAGS = "component flags", "--manifests DIR with the static pod manifests of the control plane"
    KUBELET_CONFIG = (
        "kubelet configuration", "grant get on nodes/proxy, or --kubelet-config FILE",
    )  # fmt: skip
    NODE = "node facts", "--node-pods 1, or --node-facts FILE of a node, see docs/howto/doctor.md"
    AUDIT = "audit log", "--audit FILE with an audit log of the API server"


#: Sources with a page of metrics, by what `--metrics` calls them.
METRIC_SOURCES = {source.page: source for source in Source if source.page}
