"""Settings of the controllers that an administrator may change, and their file.

`fairlead up --settings FILE` and `fairlead controller --settings FILE` read the same file; the
installation writes it from its value `settings`. Each field overrides the field of the same name of
a policy, and one of the two has the default of the other; the other fields of the policies are
internal. What a controller of `decide` reads is declared in the `settings.py` beside its policy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from fairlead.api.causes import LABEL
from fairlead.api.jobs.job_defaults import (
    IMAGE_MAX,
    MOUNTS_MAX,
    PULL_SECRETS_MAX,
    SELECTOR_MAX,
    VARIABLES_MAX,
    JobDefaults,
    JobMaxima,
    JobTerms,
    defaults_causes,
)
from fairlead.api.jobs.job_mounts import EmptyDir
from fairlead.api.jobs.preflight import PreflightSuite
from fairlead.api.kubernetes.selectors import is_qualified_name
from fairlead.api.names import ZONE
from fairlead.api.values.bounds import PATH_MAX
from fairlead.api.values.sections import YEAR, Section, about, within
from fairlead.app.configuration.audit_settings import AuditSettings, conflicts_of_audit
from fairlead.app.configuration.client_settings import SessionsSettings, SlurmSettings
from fairlead.app.configuration.notices_settings import NoticesSettings, conflicts_of_notices
from fairlead.app.configuration.traffic_settings import ClusterTrafficSettings, conflicts_of_traffic
from fairlead.app.configuration.use_settings import IdleSettings, UseSettings, conflicts_of_idle
from fairlead.decide.adoption.settings import AdoptionSettings
from fairlead.decide.doctor.policy import DoctorPolicy
from fairlead.decide.fleet.settings import BalloonSettings
from fairlead.decide.health.settings import (
    HealthSettings,
    SilenceSettings,
    conflicts_of_tests,
)
from fairlead.decide.images.settings import ImagesSettings
from fairlead.decide.jobs.settings import JobsSettings
from fairlead.decide.placement.desk.settings import PlacementSettings
from fairlead.decide.teams.settings import TeamsSettings
from fairlead.doctor.sources import METRIC_SOURCES, Source
from fairlead.input.sections import load, plain
from fairlead.model.asks.topology import DEFAULT_LEVELS, Level

if TYPE_CHECKING:
    from fairlead.app.configuration.policies import Policies
    from fairlead.decide.jobs.policy import JobsPolicy
    from fairlead.decide.placement.desk.policy import PlacementPolicy

#: A page of metrics, as `fairlead doctor --metrics` takes it.
_PAGES = (name for name, source in METRIC_SOURCES.items() if source is not Source.KUBE_STATE)
_PAGE = f"^({'|'.join(_PAGES)})=https?://[^/ ]+/"
#: A server, as `fairlead doctor --etcd` and `--prometheus` take it; without a user.
_SERVER = "https?://[^/ @]+(/[^ @]*)?"
_JOB = f"^({'|'.join(METRIC_SOURCES)})=.+$"
ETCD_MAX = 9
_DOCTOR = DoctorPolicy()
LEVELS_MAX = 16


class DoctorSettings(Section, frozen=True):
    """Examinations of the control plane, and their report."""

    enabled: Annotated[
        bool,
        about("Examine the control plane from time to time; false: the doctor does nothing, and "
              "has no rights."),
    ] = _DOCTOR.enabled  # fmt: skip
    interval_seconds: Annotated[int, within(60, 1200, "Time between two examinations.")] = (
        _DOCTOR.interval_seconds
    )
    metrics: Annotated[
        tuple[Annotated[str, Meta(pattern=_PAGE)], ...],
        Meta(max_length=32, description="Pages of metrics beside those of the API server, each "
             "NAME=URL, such as etcd=http://192.0.2.1:2381/metrics."),
    ] = ()  # fmt: skip
    etcd: Annotated[
        tuple[Annotated[str, Meta(pattern=f"^{_SERVER}$")], ...],
        Meta(max_length=ETCD_MAX, description="Members of etcd by their URLs for clients, for "
             "alarms, members, lag and metrics."),
    ] = ()  # fmt: skip
    prometheus: Annotated[
        str,
        Meta(max_length=2048, pattern=f"^({_SERVER})?$", description="A Prometheus that scrapes "
             "this cluster and no other one, for what no page shows; empty: none."),
    ] = _DOCTOR.prometheus  # fmt: skip
    prometheus_jobs: Annotated[
        tuple[Annotated[str, Meta(pattern=_JOB)], ...],
        Meta(max_length=32, description="Labels `job` of its scrapes where the usual names do not "
             "match, each SOURCE=REGEX, such as etcd=my-etcd."),
    ] = ()  # fmt: skip
    credentials_directory: Annotated[
        str,
        Meta(min_length=1, max_length=512, description="Has the directories etcd (ca.crt, tls.crt, "
             "tls.key) and prometheus (ca.crt, and token or login); files that are not there are "
             "not used."),
    ] = _DOCTOR.credentials_directory  # fmt: skip


class LevelSettings(Section, frozen=True):
    """A level of the topology."""

    name: Annotated[
        str, Meta(max_length=63, description="How jobs name it, a DNS label, such as rack.")
    ]
    label: Annotated[
        str, Meta(max_length=317, description="Node label whose values are its domains.")
    ]


class TopologySettings(Section, frozen=True):
    """Levels of the network that jobs may name in spec.topology."""

    levels: Annotated[
        tuple[LevelSettings, ...],
        Meta(description="The levels, widest first, such as zone, superpod, block, rack, NVLink "
             "domain and host.", extra_json_schema={"maxItems": LEVELS_MAX}),
    ] = tuple(LevelSettings(name=each.name, label=each.key) for each in DEFAULT_LEVELS)  # fmt: skip


class MountSettings(Section, frozen=True):
    """A volume of jobs' pods, and where it appears in their containers; one source is set."""

    path: Annotated[
        str, Meta(max_length=PATH_MAX, description="Absolute directory in the containers.")
    ]
    claim: Annotated[
        str, Meta(max_length=253, description="PersistentVolumeClaim of the job's namespace.")
    ] = ""
    config_map: Annotated[
        str, Meta(max_length=253, description="ConfigMap of the job's namespace.")
    ] = ""
    secret: Annotated[str, Meta(max_length=253, description="Secret of the job's namespace.")] = ""
    empty_dir: Annotated[EmptyDir | None, about("An empty directory of the pod.")] = None
    host_path: Annotated[str, Meta(max_length=PATH_MAX, description="Directory of the node.")] = ""
    sub_path: Annotated[
        str, Meta(max_length=PATH_MAX, description="Directory or file within the volume.")
    ] = ""
    read_only: Annotated[bool, about("Containers cannot write to it.")] = False


class JobDefaultsSettings(Section, frozen=True):
    """What jobs get that say nothing themselves, and whose team says nothing."""

    image: Annotated[
        str, Meta(max_length=IMAGE_MAX, description="Image of containers that name none.")
    ] = ""
    image_pull_secrets: Annotated[
        tuple[Annotated[str, Meta(max_length=253)], ...],
        Meta(max_length=PULL_SECRETS_MAX, description="Secrets of the job's namespace by which "
             "images are pulled, for pods that name none."),
    ] = ()  # fmt: skip
    env: Annotated[
        dict[str, str],
        Meta(max_length=VARIABLES_MAX, description="Variables of containers that do not set them, "
             "such as HTTPS_PROXY."),
    ] = {}  # fmt: skip
    node_selector: Annotated[
        dict[str, str],
        Meta(max_length=SELECTOR_MAX, description="Labels of the nodes that jobs run on, for each "
             "key that a job does not name."),
    ] = {}  # fmt: skip
    mounts: Annotated[
        tuple[MountSettings, ...],
        Meta(max_length=MOUNTS_MAX, description="Volumes, for each path at which a container "
             "mounts nothing: `path`, and one of `claim`, `configMap`, `secret`, `emptyDir` and "
             "`hostPath`; `subPath`, `readOnly`."),
    ] = ()  # fmt: skip
    time_limit_seconds: Annotated[
        int, within(0, YEAR, "Time limit of jobs without one; 0: the maximum.")
    ] = 0
    preflight: Annotated[PreflightSuite, about("Test before programs start.")] = PreflightSuite.NONE


class JobMaximaSettings(Section, frozen=True):
    """What jobs may ask for at most."""

    time_limit_seconds: Annotated[
        int,
        within(0, YEAR, "Longest time limit of a job; longer ones, and none, are refused. 0: no "
                        "maximum."),
    ] = 0  # fmt: skip


class ControllerSettings(Section, frozen=True):
    """Settings of the controllers."""

    placement: PlacementSettings = PlacementSettings()
    jobs: JobsSettings = JobsSettings()
    adoption: AdoptionSettings = AdoptionSettings()
    teams: TeamsSettings = TeamsSettings()
    doctor: DoctorSettings = DoctorSettings()
    balloons: BalloonSettings = BalloonSettings()
    health: HealthSettings = HealthSettings()
    silence: SilenceSettings = SilenceSettings()
    images: ImagesSettings = ImagesSettings()
    topology: TopologySettings = TopologySettings()
    job_defaults: JobDefaultsSettings = JobDefaultsSettings()
    job_maxima: JobMaximaSettings = JobMaximaSettings()
    notices: NoticesSettings = NoticesSettings()
    slurm: SlurmSettings = SlurmSettings()
    sessions: SessionsSettings = SessionsSettings()
    use: UseSettings = UseSettings()
    idle: IdleSettings = IdleSettings()
    audit: AuditSettings = AuditSettings()
    traffic: ClusterTrafficSettings = ClusterTrafficSettings()

    def terms(self) -> JobTerms:
        """Return what these settings say of all jobs."""
        own, most = self.job_defaults, JobMaxima(self.job_maxima.time_limit_seconds or None)
        given = {**plain(own), "timeLimitSeconds": own.time_limit_seconds or None}
        given["preflight"] = None if own.preflight is PreflightSuite.NONE else own.preflight
        return JobTerms(msgspec.convert(given, JobDefaults), most, self.notices.terms())

    def levels(self) -> tuple[Level, ...]:
        """Return the levels of the topology, widest first."""
        return tuple(Level(each.name, each.label) for each in self.topology.levels)

    def placement_policy(self) -> PlacementPolicy:
        """Return the planner's policy."""
        from fairlead.decide.placement.desk.policy import PlacementPolicy

        return PlacementPolicy(**msgspec.structs.asdict(self.placement))

    def policies(self, jobs: JobsPolicy) -> Policies:
        """Return the controllers' policies; `jobs` has what is no setting.

        Without balloons: `Policies.with_balloons` says where they are.
        """
        # Here, since the commands read the types and `policies` loads numpy.
        from fairlead.app.configuration.policies import Policies
        from fairlead.decide.adoption.view import AdoptionPolicy
        from fairlead.decide.fleet.balloons import BalloonPolicy
        from fairlead.decide.health.policy import HealthPolicy, SilencePolicy, SuiteRule
        from fairlead.decide.images.policy import ImagesPolicy
        from fairlead.decide.teams.policy import TeamsPolicy

        tests = tuple(SuiteRule(**msgspec.structs.asdict(e)) for e in self.health.test_suites)
        fields, grace = msgspec.structs.asdict, self.jobs.grace_period_seconds_max
        return Policies(
            replace(jobs, **fields(self.jobs)),
            self.placement_policy(),
            AdoptionPolicy(**fields(self.adoption), grace_period_seconds_max=grace),
            TeamsPolicy(**fields(self.teams), grace_period_seconds_max=grace),
            doctor=DoctorPolicy(**fields(self.doctor)),
            balloons=BalloonPolicy(**fields(self.balloons)),
            health=replace(
                HealthPolicy(**fields(self.health)),
                test_suites=tests,
                conditions=tuple(each.rule() for each in self.health.conditions),
                own_tests=tuple(each.test() for each in self.health.own_tests),
            ),
            silence=SilencePolicy(**fields(self.silence)),
            images=ImagesPolicy(**fields(self.images)),
            egress=self.traffic.policy(),
            notices=self.notices.policy(),
            tickets=self.notices.tickets(),
            use=self.use.policy(),
            idle=self.idle.policy(),
            terms=self.terms(),
            levels=self.levels(),
        )


def conflicts(settings: ControllerSettings) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of fields that cannot be, or do not go together."""
    terms = settings.terms()
    for found in defaults_causes(terms.defaults, terms.maxima):
        yield found.field, found.message
    for i, text in enumerate(settings.doctor.prometheus_jobs):
        try:
            re.compile(text.partition("=")[2])
        except re.error as error:
            yield f"doctor.prometheusJobs[{i}]", f"'{text}' has no regular expression: {error}"
    yield from conflicts_of_tests(settings.health)
    yield from conflicts_of_notices(settings.notices)
    yield from conflicts_of_idle(settings.idle)
    yield from conflicts_of_audit(settings.audit)
    yield from conflicts_of_traffic(settings.traffic)
    levels = settings.topology.levels
    if len(levels) > LEVELS_MAX:
        yield "topology.levels", f"{len(levels)} levels; accepted: {LEVELS_MAX} at most"
    for i, level in enumerate(levels):
        at, before = f"topology.levels[{i}]", levels[:i]
        if not LABEL.fullmatch(level.name):
            yield f"{at}.name", f"'{level.name}' must consist of a-z, 0-9 and dashes"
        elif level.name in (each.name for each in before):
            yield f"{at}.name", f"there is a level {level.name} already"
        if not is_qualified_name(level.label):
            yield f"{at}.label", f"'{level.label}' is not the key of a label, such as {ZONE}"
        elif level.label in (each.label for each in before):
            yield f"{at}.label", f"there is a level with the label {level.label} already"


def load_settings(file: str) -> ControllerSettings:
    """Return the settings of a file, the defaults without one; CliError with all mistakes."""
    return load(Path(file), ControllerSettings, conflicts) if file else ControllerSettings()
