"""What jobs get that say nothing themselves, and what they may ask for at most.

Teams (`spec.jobDefaults`, `spec.jobMaxima`) and the settings of the cluster have both in the same
form. `decide/admission/job_defaults.py` applies them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from fairlead.api.causes import cause, duplicate, invalid, required
from fairlead.api.jobs.job_mounts import JobMount, mount_causes
from fairlead.api.jobs.preflight import PreflightSuite
from fairlead.api.kubernetes.selectors import is_label_value, is_qualified_name
from fairlead.api.meta import Wire
from fairlead.api.pods.pod_rules import (
    ENV_NAME_WHY,
    LABEL_KEY_WHY,
    LABEL_VALUE_WHY,
    OBJECT_NAME_WHY,
    is_env_name,
    is_object_name,
)
from fairlead.api.status import StatusCause
from fairlead.api.values.bounds import INT32_MAX, LABEL_KEY_MAX, NAME_MAX, ObjectName, Positive, doc

IMAGE_MAX = 512
PULL_SECRETS_MAX = 16
VARIABLES_MAX = 64
VARIABLE_BYTES_MAX = 4096
SELECTOR_MAX = 32
MOUNTS_MAX = 32
#: Whose a default is, as jobs name it.
CLUSTER = "cluster"
TEAM_PREFIX = "team/"


class JobDefaults(Wire, frozen=True):
    """What a job gets where it says nothing itself. What it says always stands."""

    image: Annotated[
        str, doc("Image of containers that name none. No default.", maxLength=IMAGE_MAX)
    ] = ""
    image_pull_secrets: Annotated[
        tuple[ObjectName, ...],
        doc(
            "Secrets of the job's namespace by which images are pulled, for pods that name none. "
            "No default.",
            maxItems=PULL_SECRETS_MAX,
        ),
    ] = ()
    env: Annotated[
        dict[str, str],
        doc(
            "Variables of containers that do not set them, each by itself. A container with "
            "envFrom gets none. No default.",
            maxProperties=VARIABLES_MAX,
        ),
    ] = {}
    node_selector: Annotated[
        dict[str, str],
        doc(
            "Labels of the nodes that pods run on, for each key that neither their nodeSelector "
            "nor their required node affinity names. No default.",
            maxProperties=SELECTOR_MAX,
        ),
    ] = {}
    mounts: Annotated[
        tuple[JobMount, ...],
        doc(
            "Volumes of all containers, for each path at which they mount nothing. No default.",
            maxItems=MOUNTS_MAX,
        ),
    ] = ()
    time_limit_seconds: Annotated[
        Positive | None, doc("Time limit of jobs without one. Default: the maximum.")
    ] = None
    preflight: Annotated[
        PreflightSuite | None,
        doc("Test of the nodes before the program starts: Quick, Network or None. No default."),
    ] = None


class JobMaxima(Wire, frozen=True):
    """What a job may ask for at most; more is refused when it is made or changed."""

    time_limit_seconds: Annotated[
        Positive | None, doc("Longest time limit of a job. No default: without limit.")
    ] = None


class NoticeTerms(Wire, frozen=True):
    """Which targets of notices a cluster serves."""

    #: Any at all.
    is_enabled: bool = True
    #: Domains to which mail is sent; none: no mail is sent.
    mail_domains: tuple[str, ...] = ()
    #: Commands run as the user of the cluster, so there is one where he is the only one.
    has_commands: bool = False


class JobTerms(Wire, frozen=True):
    """What the settings of a cluster say of its jobs."""

    defaults: JobDefaults = JobDefaults()
    maxima: JobMaxima = JobMaxima()
    notices: NoticeTerms = NoticeTerms()


def source_words(name: str) -> str:
    """Return the source of a default as people say it: `team vision`, `the cluster`."""
    is_team = name.startswith(TEAM_PREFIX)
    return f"team {name.removeprefix(TEAM_PREFIX)}" if is_team else "the cluster"


def defaults_causes(
    defaults: JobDefaults, maxima: JobMaxima, *, prefix: str = ""
) -> Iterator[StatusCause]:
    """Yield what is wrong with the two, which stand at `jobDefaults` and `jobMaxima`."""
    at = f"{prefix}jobDefaults"
    if len(defaults.image) > IMAGE_MAX or defaults.image != defaults.image.strip():
        yield invalid(f"{at}.image", defaults.image[:80], "must be the name of an image")
    for i, name in enumerate(defaults.image_pull_secrets):
        if not is_object_name(name):
            yield invalid(f"{at}.imagePullSecrets[{i}]", name[:80], OBJECT_NAME_WHY)
    yield from _variables(defaults.env, f"{at}.env")
    yield from _selector(defaults.node_selector, f"{at}.nodeSelector")
    paths: set[str] = set()
    for i, mount in enumerate(defaults.mounts):
        yield from mount_causes(mount, f"{at}.mounts[{i}]")
        if mount.path.rstrip("/") in paths:
            yield duplicate(f"{at}.mounts[{i}].path", mount.path)
        paths.add(mount.path.rstrip("/"))
    for field, given, most in (
        ("imagePullSecrets", len(defaults.image_pull_secrets), PULL_SECRETS_MAX),
        ("env", len(defaults.env), VARIABLES_MAX),
        ("nodeSelector", len(defaults.node_selector), SELECTOR_MAX),
        ("mounts", len(defaults.mounts), MOUNTS_MAX),
    ):
        if given > most:
            why = f"Too many: {given}: must have at most {most} items"
            yield cause("TooMany", f"{at}.{field}", why)
    limit, most = defaults.time_limit_seconds, maxima.time_limit_seconds
    for where, seconds in ((at, limit), (f"{prefix}jobMaxima", most)):
        if seconds is not None and not 1 <= seconds <= INT32_MAX:
            why = f"must be from 1 to {INT32_MAX}"
            yield invalid(f"{where}.timeLimitSeconds", seconds, why)
    if limit is not None and most is not None and limit > most:
        why = f"must be at most jobMaxima.timeLimitSeconds, {most}"
        yield invalid(f"{at}.timeLimitSeconds", limit, why)


def _variables(env: Mapping[str, str], path: str) -> Iterator[StatusCause]:
    for name, value in env.items():
        if not name:
            yield required(path, "the name of a variable")
        elif not is_env_name(name):
            yield invalid(path, name[:80], ENV_NAME_WHY)
        if len(name) + len(value.encode()) > VARIABLE_BYTES_MAX:
            why = f"name and value may have {VARIABLE_BYTES_MAX} bytes"
            yield cause("TooLong", f"{path}[{name[:80]}]", f"Too long: {why}")


def _selector(labels: Mapping[str, str], path: str) -> Iterator[StatusCause]:
    for key, value in labels.items():
        if len(key) > LABEL_KEY_MAX or not is_qualified_name(key):
            yield invalid(path, key[:80], LABEL_KEY_WHY)
        if len(value) > NAME_MAX or not is_label_value(value):
            yield invalid(f"{path}[{key[:80]}]", value[:80], LABEL_VALUE_WHY)
