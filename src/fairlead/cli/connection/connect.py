"""Which cluster a command talks to, in this order:

1. `--kubeconfig FILE` (and `--context NAME` in it)
2. `$FAIRLEAD_KUBECONFIG`
3. the kubeconfig of the default data directory, when its cluster lives
4. `$KUBECONFIG`, then `~/.kube/config`, as kubectl reads them

An explicit choice is never replaced by another one: when it cannot be used, the command says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.input.errors import CliError, Code, fail
from fairlead.kube.incluster import in_cluster
from fairlead.kube.kubeconfig import (
    Connection,
    Kubeconfig,
    KubeconfigError,
    KubeconfigSection,
    config_paths,
    load,
    resolve,
)


def default_data_directory(environment: Mapping[str, str]) -> Path:
    """Return $FAIRLEAD_DATA, else $XDG_DATA_HOME/fairlead, else ~/.local/share/fairlead."""
    if environment.get("FAIRLEAD_DATA"):
        return Path(environment["FAIRLEAD_DATA"])
    base = environment.get("XDG_DATA_HOME") or ""
    if base.startswith("/"):
        return Path(base) / "fairlead"
    return Path(environment.get("HOME") or Path.home()) / ".local" / "share" / "fairlead"


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user chose on the command line; empty texts when nothing."""

    kubeconfig: str = ""
    context: str = ""


def find_connection(choice: Choice, environment: Mapping[str, str]) -> Connection:
    """Return the cluster to talk to; CliError says what was looked at when there is none."""
    config = _config(choice, environment)
    try:
        return resolve(config, choice.context)
    except KubeconfigError as error:
        raise fail(Code.KUBECONFIG, str(error)) from error


def known_contexts(choice: Choice, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the contexts of the kubeconfig that is used, the current one first; CliError."""
    config = _config(choice, environment)
    names = config.names(KubeconfigSection.CONTEXTS)
    return tuple(sorted(names, key=lambda name: name != config.current_context))


def _config(choice: Choice, environment: Mapping[str, str]) -> Kubeconfig:
    """Return the kubeconfig to use, read and merged; CliError."""
    explicit = choice.kubeconfig or environment.get("FAIRLEAD_KUBECONFIG") or ""
    if explicit:
        path = Path(explicit)
        if not path.exists():
            origin = "--kubeconfig" if choice.kubeconfig else "$FAIRLEAD_KUBECONFIG"
            raise fail(
                Code.KUBECONFIG, f"{origin}: {path} does not exist",
                help=("fairlead up starts a cluster and prints the path of its kubeconfig",),
            )  # fmt: skip
        if _is_embedded(path.parent) and not _lives(path.parent):
            raise _stopped(path.parent.absolute(), is_default=False)
        return _load((path,))
    data = default_data_directory(environment)
    own = data / "kubeconfig"
    is_plugin = "FAIRLEAD_KUBECTL_PLUGIN" in environment  # then kubectl's cluster is meant
    if own.is_file() and not is_plugin and _lives(data):
        return _load((own,))
    paths = config_paths(None, environment)
    existing = [path for path in paths if path.exists()]
    if existing:
        if (stopped := _stopped_of(existing)) is not None:
            raise _stopped(stopped, is_default=stopped == data)
        return _load(paths)
    if own.is_file():
        raise _stopped(data, is_default=True)
    raise fail(
        Code.NO_CLUSTER, "no cluster is running here and no kubeconfig was found",
        detail=(f"looked at --kubeconfig, $FAIRLEAD_KUBECONFIG, {own}, "
                f"{', '.join(str(path) for path in paths)}",),
        help=("fairlead up starts a cluster on this machine",),
    )  # fmt: skip


def replica_connection(choice: Choice, environment: Mapping[str, str]) -> Connection:
    """Return what a replica talks to; in a pod, unless something was chosen, its own cluster."""
    is_chosen = bool(
        choice.kubeconfig or choice.context or environment.get("FAIRLEAD_KUBECONFIG")
        or environment.get("KUBECONFIG")
    )  # fmt: skip
    if environment.get("KUBERNETES_SERVICE_HOST") and not is_chosen:
        try:
            return in_cluster(environment=environment)
        except KubeconfigError as error:
            raise fail(Code.KUBECONFIG, str(error)) from error
    return find_connection(choice, environment)


def stopped_data(choice: Choice, environment: Mapping[str, str]) -> Path | None:
    """Return the data directory of the cluster that would be talked to, if it does not run."""
    explicit = choice.kubeconfig or environment.get("FAIRLEAD_KUBECONFIG") or ""
    existing = [path for path in config_paths(None, environment) if path.exists()]
    if not explicit and existing:
        return _stopped_of(existing)
    data = Path(explicit).parent if explicit else default_data_directory(environment)
    return data if _is_embedded(data) and not _lives(data) else None


def _stopped_of(kubeconfigs: Sequence[Path]) -> Path | None:
    """Return the data directory of the stopped cluster that is the only one named, else None."""
    data = kubeconfigs[0].parent.absolute()
    is_stopped = len(kubeconfigs) == 1 and _is_embedded(data) and not _lives(data)
    return data if is_stopped else None


def _stopped(data: Path, *, is_default: bool) -> CliError:
    from fairlead.app.run_file import last_error  # needs msgspec

    why = last_error(data)
    return fail(
        Code.UNREACHABLE, f"the cluster of {data} is not running",
        detail=(*([f"it ended: {why}"] if why else ()),
                "its jobs are kept and go on at the next start"),
        help=("fairlead up --detach" + ("" if is_default else f" --data {data}"),),
    )  # fmt: skip


def _is_embedded(data: Path) -> bool:
    from fairlead.app.run_file import is_of_a_cluster  # needs msgspec

    return is_of_a_cluster(data)


def _lives(data: Path) -> bool:
    from fairlead.app.run_file import read_running  # needs msgspec

    return read_running(data) is not None


def _load(paths: Sequence[Path]) -> Kubeconfig:
    try:
        return load(paths)
    except KubeconfigError as error:
        raise fail(Code.KUBECONFIG, str(error)) from error
