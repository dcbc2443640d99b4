"""What a person may choose when Fairlead is put on a cluster: one typed record, and its file.

`fairlead install --values FILE` and the Helm chart read the same keys. The chart's `values.yaml`
and `values.schema.json` are generated from these types, so a key cannot exist in one of both only.
A file is read as a whole: every unknown or ill-typed key is reported, each with its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, field

from fairlead import __version__
from fairlead.cli.errors import CliError, Code, Problem
from fairlead.cli.suggest import nearest
from fairlead.cli.yamlmarks import BYTES_MAX, Mark, TooLarge, Value, read_documents, to_plain

REPLICAS_MAX = 10

Tree = dict[str, Any]
Texts = dict[str, str]


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


class Binding(Enum):
    """Who binds members where a node's own label does not say."""

    NATIVE = "native"
    PINNED = "pinned"
    DIRECT = "direct"


class LogLevel(Enum):
    """How much the controllers say."""

    INFO = "info"
    DEBUG = "debug"


class _Section(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True,
               kw_only=True):  # fmt: skip
    """A group of values."""


class Image(_Section, frozen=True):
    """Image of the controllers."""

    repository: Annotated[str, Meta(min_length=1, description="Registry and name.")] = "fairlead"
    tag: Annotated[str, Meta(description="Tag; not used with a digest.")] = __version__
    digest: Annotated[
        str,
        Meta(pattern="^(sha256:[0-9a-f]{64})?$",
             description="Digest (sha256:...), which names one image for ever."),
    ] = ""  # fmt: skip
    pull_policy: Annotated[PullPolicy, Meta(description="When a node fetches the image.")] = (
        PullPolicy.IF_NOT_PRESENT
    )


class LeaderElection(_Section, frozen=True):
    """Who of the replicas acts."""

    lease_seconds: Annotated[
        int, Meta(ge=2, le=3600, description="A leader silent for so long is replaced.")
    ] = 15


class Sqlite(_Section, frozen=True):
    """Volume of the history; for kind sqlite, which takes replicas: 1."""

    size: Annotated[str, Meta(min_length=1, description="Size of the volume.")] = "1Gi"
    storage_class_name: Annotated[
        str, Meta(description="Class of the volume; empty: the cluster's default.")
    ] = ""
    access_mode: Annotated[AccessMode, Meta(description="Access mode of the volume.")] = (
        AccessMode.ONCE
    )


class Postgres(_Section, frozen=True):
    """Secret with the URL of the database; for kind postgres."""

    secret_name: Annotated[str, Meta(description="Secret in the namespace of the controllers.")] = (
        "fairlead-history"  # noqa: S105 - a name, not a secret
    )
    secret_key: Annotated[
        str, Meta(min_length=1, description="Its key whose value is postgresql://...")
    ] = "url"  # noqa: S105 - a name, not a secret


class History(_Section, frozen=True):
    """Jobs that have ended."""

    kind: Annotated[
        HistoryKind,
        Meta(description="memory (lost with the leader), sqlite (on a volume), or postgres."),
    ] = HistoryKind.MEMORY
    sqlite: Sqlite = Sqlite()
    postgres: Postgres = Postgres()


class MetricsService(_Section, frozen=True):
    """Service in front of /metrics."""

    enabled: Annotated[bool, Meta(description="Make it.")] = True
    annotations: Annotated[Texts, Meta(description="Its annotations.")] = field(
        default_factory=lambda: {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"}
    )


class ServiceMonitor(_Section, frozen=True):
    """For the Prometheus operator, whose kind must be there."""

    enabled: Annotated[bool, Meta(description="Make it; takes metrics.service.")] = False
    interval: Annotated[str, Meta(min_length=1, description="Time between two scrapes.")] = "30s"
    labels: Annotated[Texts, Meta(description="Labels by which a Prometheus selects it.")] = field(
        default_factory=dict[str, str]
    )


class Metrics(_Section, frozen=True):
    """How the metrics are reached."""

    service: MetricsService = MetricsService()
    service_monitor: ServiceMonitor = ServiceMonitor()


class PodDisruptionBudget(_Section, frozen=True):
    """Limit on voluntary disruptions of the controllers."""

    enabled: Annotated[bool, Meta(description="Make it.")] = True
    max_unavailable: Annotated[int, Meta(ge=1, description="Replicas that may be away.")] = 1


class NetworkPolicy(_Section, frozen=True):
    """Who may connect to the controllers."""

    enabled: Annotated[
        bool, Meta(description="Let in nothing but what is named here, and probes.")
    ] = False
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
        Meta(
            description="Peers that may reach webhook and archive, such as [{ipBlock: {cidr: "
            "192.0.2.0/28}}] of the API servers; empty: all."
        ),
    ] = ()


class CertManager(_Section, frozen=True):
    """Let cert-manager keep the webhook's certificate, which Fairlead otherwise does itself."""

    enabled: Annotated[bool, Meta(description="Make a Certificate; needs its kinds.")] = False
    issuer_ref: Annotated[Tree, Meta(description="Who signs it: {name: ..., kind: ...}.")] = field(
        default_factory=dict[str, Any]
    )


class Webhook(_Section, frozen=True):
    """Webhook that holds pods which opt in back until their gang has its place."""

    enabled: Annotated[bool, Meta(description="Serve it, and have API servers ask it.")] = True
    cert_manager: CertManager = CertManager()


class ServiceAccount(_Section, frozen=True):
    """Account of the controllers."""

    annotations: Annotated[Texts, Meta(description="Its annotations.")] = field(
        default_factory=dict[str, str]
    )


class Crds(_Section, frozen=True):
    """Our kinds."""

    install: Annotated[bool, Meta(description="Install and upgrade them.")] = True
    keep: Annotated[
        bool, Meta(description="Let helm uninstall leave them; with them, all jobs would go.")
    ] = True


class Values(_Section, frozen=True):
    """Everything that may be chosen."""

    image: Image = Image()
    image_pull_secrets: Annotated[
        tuple[Tree, ...], Meta(description="Secrets for a private registry: [{name: ...}].")
    ] = ()
    replicas: Annotated[
        int, Meta(ge=1, le=REPLICAS_MAX, description="One leads, the others stand by.")
    ] = 2
    leader_election: LeaderElection = LeaderElection()
    binding: Annotated[
        Binding,
        Meta(
            description="native, pinned: kube-scheduler binds, small gangs as its own where it has "
            "those (native); direct: Fairlead; a node's label wins."
        ),
    ] = Binding.NATIVE
    log_level: Annotated[LogLevel, Meta(description="How much the controllers say.")] = (
        LogLevel.INFO
    )
    checkpoint_root: Annotated[
        str, Meta(description="Directory of the nodes under which jobs get checkpoints.")
    ] = ""
    history: History = History()
    metrics: Metrics = Metrics()
    pod_disruption_budget: PodDisruptionBudget = PodDisruptionBudget()
    network_policy: NetworkPolicy = NetworkPolicy()
    webhook: Webhook = Webhook()
    service_account: ServiceAccount = ServiceAccount()
    crds: Crds = Crds()
    resources: Annotated[Tree, Meta(description="Requests and limits of the container.")] = field(
        default_factory=lambda: {
            "requests": {"cpu": "500m", "memory": "256Mi"},
            "limits": {"memory": "1Gi"},
        }
    )
    node_selector: Annotated[Texts, Meta(description="Labels of nodes for the pods.")] = field(
        default_factory=dict[str, str]
    )
    tolerations: Annotated[tuple[Tree, ...], Meta(description="Tolerations of the pods.")] = ()
    affinity: Annotated[Tree, Meta(description="Affinity of the pods.")] = field(
        default_factory=dict[str, Any]
    )
    priority_class_name: Annotated[str, Meta(description="Priority class of the pods.")] = ""
    pod_annotations: Annotated[Texts, Meta(description="Annotations of the pods.")] = field(
        default_factory=dict[str, str]
    )
    pod_labels: Annotated[Texts, Meta(description="Further labels of the pods.")] = field(
        default_factory=dict[str, str]
    )
    extra_args: Annotated[
        tuple[str, ...], Meta(description="Further arguments of fairlead controller.")
    ] = ()
    extra_env: Annotated[
        tuple[Tree, ...], Meta(description="Further environment: [{name: ..., value: ...}].")
    ] = ()


def merged(default: Any, given: Any) -> Any:
    """Return what Helm makes of both: mappings are joined, null takes a default's entry away."""
    if not isinstance(default, dict) or not isinstance(given, dict):
        return given
    joined: Tree = dict(cast("Tree", default))
    for key, value in cast("Tree", given).items():
        if value is None:
            joined.pop(key, None)
        else:
            joined[key] = merged(joined.get(key), value)
    return joined


def plain(values: _Section) -> Tree:
    """Return the values as they stand in a file."""
    tree: Tree = msgspec.json.decode(msgspec.json.encode(values))  # lists, not tuples
    return tree


def with_image(image: Image, reference: str) -> Image:
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


def load_values(path: Path) -> Values:
    """Read a file of values; CliError with everything that is wrong, in the order of the lines."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
        documents, mistakes = read_documents(data.decode("utf-8-sig"))
    except OSError as error:
        message = f"'{path}' cannot be read: {error.strerror}"
        raise CliError(Problem(Code.MANIFEST_UNREADABLE, message)) from error
    except UnicodeDecodeError as error:
        message = f"'{path}': byte {error.start} is not UTF-8"
        raise CliError(Problem(Code.MANIFEST_UNREADABLE, message)) from error
    except TooLarge as error:
        raise CliError(Problem(Code.MANIFEST_TOO_LARGE, f"'{path}': {error}")) from error
    reader = _Reader(str(path))
    for mistake in mistakes:
        code = Code.DUPLICATE_KEY if mistake.key else Code.MANIFEST_SYNTAX
        reader.add(code, mistake.mark, mistake.key, mistake.message)
    for extra in documents[1:]:
        reader.add(Code.MANIFEST_SYNTAX, extra.mark, "", "values are one document, not several")
    read: Tree = reader.section(documents[0], Values, "") if documents else {}
    if not reader.problems:
        values = msgspec.convert(read, Values)
        for field_path, message in conflicts(values):
            mark = reader.marks.get(field_path, Mark(1, 1))
            reader.add(Code.BAD_FIELD, mark, field_path, message)
        if not reader.problems:
            return values
    raise CliError([problem for _, problem in sorted(reader.problems, key=lambda each: each[0])])


class _Reader:
    """Walks a file along the types and collects what is wrong."""

    def __init__(self, file: str) -> None:
        self.problems: list[tuple[Mark, Problem]] = []
        self.marks: dict[str, Mark] = {}
        self._file = file

    def add(self, code: Code, mark: Mark, path: str, message: str, *, help_: str = "") -> None:
        where = f"{self._file}:{mark.line}:{mark.column}"
        help_lines = (help_,) if help_ else ()
        problem = Problem(code, message, where=where, field=path, help=help_lines)
        self.problems.append((mark, problem))

    def section(self, value: Value, type_: type[_Section], path: str) -> Tree:
        """Return the plain form of a section."""
        if value.mapping is None:
            self.add(Code.BAD_FIELD, value.mark, path, "must be a mapping of fields")
            return {}
        known = fields_of(type_)
        defaults = plain(type_())
        read: Tree = {}
        for key, entry in value.mapping.items():
            here = f"{path}.{key}" if path else key
            mark = self.marks[here] = value.keys[key]
            if key not in known:
                near = nearest(key, known)
                accepted = f"did you mean {near}?" if near else f"accepted: {', '.join(known)}"
                message = f"no value '{key}'" + (f" in {path}" if path else "")
                self.add(Code.UNKNOWN_FIELD, mark, here, message, help_=accepted)
            elif entry.is_null:
                help_ = "leave the key out to keep the default"
                self.add(Code.BAD_FIELD, mark, here, "nothing stands here", help_=help_)
            elif is_section(known[key]):
                read[key] = self.section(entry, known[key], here)
            else:
                given = merged(defaults[key], to_plain(entry))
                read[key] = self._checked(given, entry, known[key], here)
        return read

    def _checked(self, given: Any, entry: Value, type_: Any, path: str) -> Any:
        try:
            msgspec.convert(given, type_)
        except msgspec.ValidationError as error:
            message = _reworded(str(error), given)
            self.add(Code.BAD_FIELD, entry.mark, path, message, help_=_accepted(type_))
        return given


def _reworded(message: str, given: object) -> str:
    head, _, at = message.partition(" - at ")
    inner = f" at {at.strip('`').removeprefix('$')}" if at else ""
    shown = "" if isinstance(given, (dict, list)) else f"; got {given!r}"
    return f"{head[:1].lower()}{head[1:]}{inner}{shown}"


def _accepted(type_: Any) -> str:
    base = _bare(type_)
    if isinstance(base, type) and issubclass(base, Enum):
        return f"accepted: {', '.join(str(each.value) for each in base)}"
    return ""


def _bare(type_: Any) -> Any:
    return get_args(type_)[0] if get_origin(type_) is Annotated else type_


def is_section(type_: Any) -> bool:
    """True for a group of values."""
    return isinstance(type_, type) and issubclass(type_, _Section)


def fields_of(type_: type[_Section]) -> dict[str, Any]:
    """Return the types of a section's fields by their names in a file, in their order."""
    hints = get_type_hints(type_, include_extras=True)
    return {each.encode_name: hints[each.name] for each in msgspec.structs.fields(type_)}


def description_of(type_: Any) -> str:
    """Return what a field is for: its own words, else those of its section."""
    if is_section(type_):
        return (type_.__doc__ or "").strip()
    for note in get_args(type_)[1:]:
        if isinstance(note, Meta) and note.description:
            return note.description
    return ""
