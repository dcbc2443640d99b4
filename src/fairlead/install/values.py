"""What a person may choose when Fairlead is put on a cluster: one typed record, and its file.

`fairlead install --values FILE` and the Helm chart read the same keys. The chart's `values.yaml`
and `values.schema.json` are generated from these types, so a key cannot exist in one of both only.
A file is read as a whole: every unknown or ill-typed key is reported, each with its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from fairlead import __version__
from fairlead.api.values.sections import Section, about, within
from fairlead.app.configuration.controller_settings import ControllerSettings
from fairlead.app.configuration.controller_settings import conflicts as settings_conflicts
from fairlead.app.configuration.web_settings import WebSettings
from fairlead.app.configuration.web_settings import conflicts as web_conflicts
from fairlead.decide.pinning import Binding
from fairlead.input.sections import Tree, load
from fairlead.node.registry import conflicts as agent_conflicts
from fairlead.node.settings import AgentSettings

REPLICAS_MAX = 10

Texts = dict[str, str]
#: The default of a mapping: a new one without entries.
_EMPTY: Any = field(default_factory=dict[str, Any])


class PullPolicy(Enum):
    """When a node fetches the image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class HistoryKind(Enum):
    """Where jobs that have ended are kept."""

    MEMORY = "memory"
    SQLITE = "sqlite"
    POSTGRES = "postgres"


class AccessMode(Enum):
    """How many nodes may mount the volume of the history."""

    ONCE = "ReadWriteOnce"
    ONCE_POD = "ReadWriteOncePod"


class LogLevelValue(Enum):
    """How much the controllers say."""

    INFO = "info"
    DEBUG = "debug"


class ImageValues(Section, frozen=True):
    """Image of the controllers."""

    repository: Annotated[str, Meta(min_length=1, description="Registry and name.")] = "fairlead"
    tag: Annotated[str, about("Tag; not used with a digest.")] = __version__
    digest: Annotated[
        str,
        Meta(pattern="^(sha256:[0-9a-f]{64})?$",
             description="Digest (sha256:...), which names one image for ever."),
    ] = ""  # fmt: skip
    pull_policy: Annotated[PullPolicy, about("When a node fetches the image.")] = (
        PullPolicy.IF_NOT_PRESENT
    )


class LeaderElection(Section, frozen=True):
    """Who of the replicas acts."""

    lease_seconds: Annotated[int, within(2, 3600, "A leader silent for so long is replaced.")] = 15


class Sqlite(Section, frozen=True):
    """Volume of the history; for kind sqlite, which takes replicas: 1."""

    size: Annotated[str, Meta(min_length=1, description="Size of the volume.")] = "1Gi"
    storage_class_name: Annotated[
        str, about("Class of the volume; empty: the cluster's default.")
    ] = ""
    access_mode: Annotated[AccessMode, about("Access mode of the volume.")] = AccessMode.ONCE


class Postgres(Section, frozen=True):
    """Secret with the URL of the database; for kind postgres."""

    secret_name: Annotated[str, Meta(description="Secret in the namespace of the controllers.")] = (
        "fairlead-history"  # noqa: S105 - a name, not a secret
    )
    secret_key: Annotated[
        str, Meta(min_length=1, description="Its key whose value is postgresql://...")
    ] = "url"  # noqa: S105 - a name, not a secret


class HistoryValues(Section, frozen=True):
    """Jobs that have ended."""

    kind: Annotated[
        HistoryKind, about("memory (lost with the leader), sqlite (on a volume), or postgres.")
    ] = HistoryKind.MEMORY
    sqlite: Sqlite = Sqlite()
    postgres: Postgres = Postgres()


class MetricsService(Section, frozen=True):
    """Service in front of /metrics."""

    enabled: Annotated[bool, about("Make it.")] = True
    annotations: Annotated[Texts, Meta(description="Its annotations.")] = field(
        default_factory=lambda: {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"}
    )


class ServiceMonitor(Section, frozen=True):
    """For the Prometheus operator, whose kind must be there."""

    enabled: Annotated[bool, about("Make it; takes metrics.service.")] = False
    interval: Annotated[str, Meta(min_length=1, description="Time between two scrapes.")] = "30s"
    labels: Annotated[Texts, about("Labels by which a Prometheus selects it.")] = _EMPTY


class Alerts(Section, frozen=True):
    """Rules for the Prometheus operator, whose kind must be there."""

    enabled: Annotated[bool, about("Make the PrometheusRule.")] = False
    runbook_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^\s\"']*[^\s\"'/])?$",
            description="URL where you serve docs/reference, for runbook_url; empty: no links.",
        ),
    ] = ""
    labels: Annotated[Texts, about("Labels by which a Prometheus selects it.")] = _EMPTY


class Dashboards(Section, frozen=True):
    """Boards for Grafana, in a ConfigMap."""

    enabled: Annotated[bool, about("Make the ConfigMap.")] = False
    labels: Annotated[Texts, about("Labels by which Grafana's sidecar finds it.")] = field(
        default_factory=lambda: {"grafana_dashboard": "1"}
    )


class MetricsValues(Section, frozen=True):
    """How the metrics are reached, and what makes use of them."""

    service: MetricsService = MetricsService()
    service_monitor: ServiceMonitor = ServiceMonitor()
    alerts: Alerts = Alerts()
    dashboards: Dashboards = Dashboards()


class PodDisruptionBudget(Section, frozen=True):
    """Limit on voluntary disruptions of the controllers."""

    enabled: Annotated[bool, about("Make it.")] = True
    max_unavailable: Annotated[int, Meta(ge=1, description="Replicas that may be away.")] = 1


class NetworkPolicy(Section, frozen=True):
    """Who may connect to the controllers."""

    enabled: Annotated[bool, about("Let in nothing but what is named here, and probes.")] = False
    scrapers_from: Annotated[
        tuple[Tree, ...],
        Meta(description="Peers that may read metrics; empty: all."),
    ] = field(
        default_factory=lambda: (
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
        )
    )
    api_servers_from: Annotated[
        tuple[Tree, ...],
        about("Peers that may reach webhook and archive, such as [{ipBlock: {cidr: 192.0.2.0/28}}] "
              "of the API servers; empty: all."),
    ] = ()  # fmt: skip


class CertManager(Section, frozen=True):
    """Let cert-manager keep the certificate, which Fairlead otherwise does itself."""

    enabled: Annotated[bool, about("Make a Certificate; needs its kinds.")] = False
    issuer_ref: Annotated[Tree, about("Who signs it: {name: ..., kind: ...}.")] = _EMPTY


class WebhookValues(Section, frozen=True):
    """Webhook that holds pods which opt in back until their gang has its place."""

    enabled: Annotated[bool, about("Serve it, and have API servers ask it.")] = True
    cert_manager: CertManager = CertManager()


class AdmissionPolicyValues(Section, frozen=True):
    """Rules about nodes of teams, adopted pods and reports of nodes that API servers hold."""

    enabled: Annotated[bool, about("Install them; needs Kubernetes 1.30 or newer.")] = True


class ServiceAccount(Section, frozen=True):
    """Account of the controllers."""

    annotations: Annotated[Texts, about("Its annotations.")] = _EMPTY


class Definitions(Section, frozen=True):
    """Our kinds."""

    v1beta1: Annotated[
        bool,
        about("Serve v1beta1, too, which the webhook converts. While no webhook answers, the "
              "cluster collects no garbage and ends no namespace."),
    ] = False  # fmt: skip
    keep: Annotated[bool, about("Let helm uninstall leave them; with them, all jobs would go.")] = (
        True
    )


class Crds(Definitions, frozen=True):
    """Our kinds."""

    install: Annotated[
        bool, about("Install and upgrade them; false where a chart of their own does.")
    ] = True


class Injection(Section, frozen=True):
    """Authorities of what converts."""

    enabled: Annotated[bool, about("Let cert-manager fill them in, for v1beta1.")] = False


class Converter(Section, frozen=True):
    """The webhook, which converts v1beta1."""

    cert_manager: Injection = Injection()


class DefinitionValues(Section, frozen=True):
    """What a person may choose in the chart of the definitions alone."""

    crds: Definitions = Definitions()
    webhook: Converter = Converter()


class WebImpersonation(Section, frozen=True):
    """Requests as users who have given no token of the cluster: what the page cannot do without."""

    enabled: Annotated[
        bool, about("Let the page change things, and read logs, as such users.")
    ] = False  # fmt: skip
    users: Annotated[tuple[str, ...], about("As these only, with prefix; empty: as all.")] = ()
    groups: Annotated[
        tuple[str, ...], about("In these groups, with their prefix; empty: in none.")
    ] = ()


class WebValues(Section, frozen=True):
    """The page for the users of the cluster."""

    enabled: Annotated[bool, about("Serve it.")] = False
    tls_secret_name: Annotated[
        str,
        about("Secret with tls.crt and tls.key; empty: cert-manager's, or one of its own."),
    ] = ""  # fmt: skip
    cert_manager: CertManager = CertManager()
    secret_name: Annotated[
        str,
        about("Secret with oidc-client-secret, oidc-ca.crt and proxy-ca.crt, as settings need."),
    ] = ""  # fmt: skip
    browsers_from: Annotated[
        tuple[Tree, ...],
        about("Peers that may connect, such as those of the ingress controller; empty: all."),
    ] = ()
    impersonation: WebImpersonation = WebImpersonation()
    settings: WebSettings = WebSettings()
    resources: Annotated[Tree, Meta(description="Requests and limits of the container.")] = field(
        default_factory=lambda: {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "2Gi"},
        }
    )


class DoctorSecrets(Section, frozen=True):
    """Secrets for the servers of settings.doctor; the pods also start without them."""

    etcd_secret_name: Annotated[
        str, about("Secret with ca.crt, tls.crt and tls.key; empty: none.")
    ] = ""
    prometheus_secret_name: Annotated[
        str, about("Secret with ca.crt, and token or login (user:password); empty: none.")
    ] = ""


class NoticesSecret(Section, frozen=True):
    """Credentials of settings.notices; the pods also start without them."""

    secret_name: Annotated[
        str,
        about(
            "Secret with login (user:password of the mail server), ca.crt, tickets-url and "
            "tickets-key; empty: none."
        ),
    ] = ""


def _memory(cpu: str, request: str, limit: str) -> Any:
    """Return the default of a container's resources."""
    return field(
        default_factory=lambda: {
            "requests": {"cpu": cpu, "memory": request},
            "limits": {"memory": limit},
        }
    )


class NodeAgentValues(Section, frozen=True):
    """The agent of each node, and the collector that writes what it reports."""

    enabled: Annotated[bool, about("Run it on the nodes; takes settings.health.enabled.")] = False
    settings: AgentSettings = AgentSettings()
    max_unavailable: Annotated[
        str,
        Meta(pattern="^([1-9][0-9]{0,3}|([1-9]|[1-9][0-9]|100)%)$",
             description="Nodes whose agent is replaced at a time."),
    ] = "10%"  # fmt: skip
    resources: Annotated[Tree, about("Requests and limits of the agent.")] = _memory(
        "10m", "80Mi", "160Mi"
    )
    collector_resources: Annotated[Tree, about("Requests and limits of the collector.")] = _memory(
        "5m", "64Mi", "128Mi"
    )
    node_selector: Annotated[Texts, about("Labels of nodes that have one.")] = _EMPTY
    affinity: Annotated[Tree, about("Affinity of the pods.")] = _EMPTY
    tolerations: Annotated[
        tuple[Tree, ...], about("Tolerations of the pods; a sick node needs its agent most.")
    ] = field(default_factory=lambda: ({"operator": "Exists"},))
    priority_class_name: Annotated[str, about("Priority class of the pods.")] = (
        "system-node-critical"
    )
    volumes: Annotated[
        tuple[Tree, ...], about("Further volumes, such as a directory of each disk to look at.")
    ] = ()
    volume_mounts: Annotated[tuple[Tree, ...], about("Where the agent has them.")] = ()


class Values(Section, frozen=True):
    """Everything that may be chosen."""

    image: ImageValues = ImageValues()
    image_pull_secrets: Annotated[
        tuple[Tree, ...], about("Secrets for a private registry: [{name: ...}].")
    ] = ()
    replicas: Annotated[int, within(1, REPLICAS_MAX, "One leads, the others stand by.")] = 2
    leader_election: LeaderElection = LeaderElection()
    binding: Annotated[
        Binding,
        about("native, pinned: kube-scheduler binds, small gangs as its own where it has those "
              "(native); direct: Fairlead; a node's label wins."),
    ] = Binding.NATIVE  # fmt: skip
    log_level: Annotated[LogLevelValue, about("How much the controllers say.")] = LogLevelValue.INFO
    checkpoint_root: Annotated[
        str,
        about("Directory of the nodes under which jobs get checkpoints; with mode 1777 members of "
              "any user may write there."),
    ] = ""  # fmt: skip
    history: HistoryValues = HistoryValues()
    metrics: MetricsValues = MetricsValues()
    doctor: DoctorSecrets = DoctorSecrets()
    notices: NoticesSecret = NoticesSecret()
    pod_disruption_budget: PodDisruptionBudget = PodDisruptionBudget()
    network_policy: NetworkPolicy = NetworkPolicy()
    webhook: WebhookValues = WebhookValues()
    admission_policies: AdmissionPolicyValues = AdmissionPolicyValues()
    service_account: ServiceAccount = ServiceAccount()
    web: WebValues = WebValues()
    crds: Crds = Crds()
    node_agent: NodeAgentValues = NodeAgentValues()
    settings: ControllerSettings = ControllerSettings()
    resources: Annotated[Tree, Meta(description="Requests and limits of the container.")] = field(
        default_factory=lambda: {
            "requests": {"cpu": "500m", "memory": "256Mi"},
            "limits": {"memory": "1Gi"},
        }
    )
    node_selector: Annotated[Texts, about("Labels of nodes for the pods.")] = _EMPTY
    tolerations: Annotated[tuple[Tree, ...], about("Tolerations of the pods.")] = ()
    affinity: Annotated[Tree, about("Affinity of the pods.")] = _EMPTY
    priority_class_name: Annotated[str, about("Priority class of the pods.")] = ""
    pod_annotations: Annotated[Texts, about("Annotations of the pods.")] = _EMPTY
    pod_labels: Annotated[Texts, about("Further labels of the pods.")] = _EMPTY
    extra_args: Annotated[tuple[str, ...], about("Further arguments of fairlead controller.")] = ()
    extra_env: Annotated[
        tuple[Tree, ...], about("Further environment: [{name: ..., value: ...}].")
    ] = ()


def with_image(image: ImageValues, reference: str) -> ImageValues:
    """Return the image named by `REPOSITORY[:TAG][@DIGEST]`, with the pull policy kept."""
    named, _, digest = reference.partition("@")
    head, _, last = named.rpartition("/")
    name, _, tag = last.partition(":")
    repository = f"{head}/{name}" if head else name
    return msgspec.structs.replace(
        image, repository=repository, tag=tag or ("" if digest else "latest"), digest=digest
    )


def conflicts(values: Values) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of values that do not go together."""
    if values.history.kind is HistoryKind.SQLITE and values.replicas != 1:
        yield "replicas", f"{values.replicas} does not go with history.kind sqlite, which takes 1"
    if values.metrics.service_monitor.enabled and not values.metrics.service.enabled:
        yield "metrics.serviceMonitor.enabled", "it takes metrics.service.enabled: true"
    if values.webhook.cert_manager.enabled:
        if not values.webhook.enabled:
            yield "webhook.certManager.enabled", "it takes webhook.enabled: true"
        if not values.webhook.cert_manager.issuer_ref.get("name"):
            yield "webhook.certManager.enabled", "it takes webhook.certManager.issuerRef.name"
    if values.crds.v1beta1 and not values.webhook.enabled:
        yield "crds.v1beta1", "it takes webhook.enabled: true"
    if values.web.impersonation.enabled and not values.web.enabled:
        yield "web.impersonation.enabled", "it takes web.enabled: true"
    if values.web.cert_manager.enabled and not values.web.enabled:
        yield "web.certManager.enabled", "it takes web.enabled: true"
    if values.web.cert_manager.enabled and not values.web.cert_manager.issuer_ref.get("name"):
        yield "web.certManager.enabled", "it takes web.certManager.issuerRef.name"
    if values.web.settings.proxy.name and not values.web.secret_name:
        yield "web.secretName", "web.settings.proxy.name takes it"
    for path, message in web_conflicts(values.web.settings):
        yield f"web.settings.{path}", message
    if values.settings.health.enabled and not values.admission_policies.enabled:
        message = "settings.health takes it: it holds each node to its own report"
        yield "admissionPolicies.enabled", message
    yield from _agent_conflicts(values)
    for path, message in settings_conflicts(values.settings):
        yield f"settings.{path}", message


def _agent_conflicts(values: Values) -> Iterator[tuple[str, str]]:
    if values.node_agent.enabled and not values.settings.health.enabled:
        yield "nodeAgent.enabled", "it takes settings.health.enabled: true, which reads its reports"
    agent = values.node_agent.settings
    for path, message in agent_conflicts(agent):
        yield f"nodeAgent.settings.{path}", message
    for path, is_set in (
        ("programs.directory", agent.programs.directory), ("tuning.profile", agent.tuning.profile),
        ("traffic.pods", agent.traffic.pods), ("shaping.enabled", agent.shaping.enabled),
        ("repairs.requests", agent.repairs.requests),
        ("services.runtimeSocket", agent.services.runtime_socket),
    ):  # fmt: skip
        if is_set:
            message = "it takes more of the machine than the pod has: run the agent as a service"
            yield f"nodeAgent.settings.{path}", message


def load_values(path: Path) -> Values:
    """Read a file of values; CliError with everything that is wrong, in the order of the lines."""
    return load(path, Values, conflicts)
