"""Where logs are, and the marks beside them.

    <data>/logs/<namespace>/<job>/<attempt>/<role>-<index>.log     members of jobs
    <data>/logs/<namespace>/pods/<pod>.log                         other pods
    <data>/logs/<namespace>/.index/<pod>/<container>               link to the file of either

A container that is not the pod's first has `+<container>` before `.log`, the run before the latest
restart has `+previous`, older parts of a log that was rotated have `.1`, `.2` ... behind `.log`,
and the logs of an earlier job of the same name move to `<job>+<uid>`: "+" is in no Kubernetes name,
so that nothing can collide. A file `.<log>.live` beside a log says that more may come; it survives
a crash of the node, as the process does.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.embedded.local.poddir import made, safe, write_file
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import Logger

PODS_FOLDER = "pods"
INDEX_FOLDER = ".index"
UID_FILE = ".uid"
SEPARATOR = "+"
PREVIOUS = "previous"


@dataclass(frozen=True, slots=True)
class LogLimits:
    """How much of logs is kept. The first two are kubelet's containerLogMaxSize and -MaxFiles."""

    file_bytes_max: int = 50 << 20
    files_max: int = 5  # of one run of a container, with the one that is written
    age_seconds_max: float = 30 * 86_400.0  # since a log that has ended was written last
    total_bytes_max: int = 20 << 30
    #: Free space that logs leave to others, but no more than a tenth of the disk.
    reserve_bytes: int = 256 << 20


def live_mark(log: Path) -> Path:
    """Return the file whose presence says that the log may grow."""
    return log.with_name(f".{log.name}.live")


def previous_log(log: Path) -> Path:
    """Return where the log of the run before goes."""
    return log.with_name(f"{log.stem}{SEPARATOR}{PREVIOUS}.log")


def parts(log: Path) -> list[Path]:
    """Return the files of a log, the oldest first: `x.log.2`, `x.log.1`, `x.log`."""
    out = [log]
    while (older := log.with_name(f"{log.name}.{len(out)}")).exists():
        out.insert(0, older)
    return out


def index_entry(logs: Path, namespace: str, pod: str, container: str) -> Path:
    """Return the link that leads to a container's log."""
    return logs / safe(namespace) / INDEX_FOLDER / safe(pod) / safe(container)


def log_path(logs: Path, pod: Pod, container: str) -> Path:
    """Return the file of a container; Unsupported when a name cannot be a file name."""
    labels = pod.metadata.labels
    first = pod.spec.containers[0].name == container
    suffix = "" if first else f"{SEPARATOR}{safe(container)}"
    folder = logs / safe(pod.metadata.namespace)
    wanted = (names.JOB_NAME, names.ATTEMPT, names.ROLE, names.INDEX)
    if not all(labels.get(key) for key in wanted):
        return folder / PODS_FOLDER / f"{safe(pod.metadata.name)}{suffix}.log"
    job, attempt, role, index = (safe(labels[key]) for key in wanted)
    return folder / job / attempt / f"{role}-{index}{suffix}.log"


def job_folder(folder: Path, job: str, uid: str | None) -> Path:
    """Return where the logs of a job lie; `uid` None: of the latest that has this name.

    `folder` is the namespace's. It need not exist; Unsupported when `uid` cannot be a file name.
    """
    latest = folder / job
    if uid is None or _uid_of(latest) == uid:
        return latest
    return folder / f"{job}{SEPARATOR}{safe(uid)}"


def _uid_of(folder: Path) -> str:
    try:
        return (folder / UID_FILE).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def open_logs(logs: Path, pod: Pod) -> dict[str, str]:
    """Prepare the log of each container and return the paths by container; OSError."""
    _set_older_job_aside(logs, pod)
    out: dict[str, str] = {}
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        path = log_path(logs, pod, container.name)
        made(path.parent)
        if path.exists():
            _set_aside(path)
        live_mark(path).touch(mode=0o600)
        path.touch(mode=0o600)
        link = index_entry(logs, pod.metadata.namespace, pod.metadata.name, container.name)
        made(link.parent)
        fresh = link.with_name(f".{link.name}.new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(path)
        fresh.replace(link)
        out[container.name] = str(path)
    return out


def _set_older_job_aside(logs: Path, pod: Pod) -> None:
    """Move the logs of another job of the same name out of the way."""
    job, uid = pod.metadata.labels.get(names.JOB_NAME), pod.metadata.labels.get(names.JOB_UID)
    if not job or not uid:
        return
    folder = logs / safe(pod.metadata.namespace) / safe(job)
    known = _uid_of(folder)
    if known == uid:
        return
    if known:
        folder.rename(folder.with_name(f"{job}{SEPARATOR}{safe(known)}"))
    made(folder)
    write_file(folder / UID_FILE, uid.encode())


def put_aside(log: Path) -> None:
    """Make the log the previous one and begin a new one, which is live; OSError."""
    _set_aside(log)
    log.touch(mode=0o600)


def _set_aside(log: Path) -> None:
    """Make all parts of the log those of the previous one."""
    previous = previous_log(log)
    for part in parts(previous):
        part.unlink(missing_ok=True)
    for part in parts(log):
        part.replace(previous.with_name(previous.name + part.name.removeprefix(log.name)))


def prune(logs: Path, limits: LogLimits, now: float) -> int:
    """Remove logs that are over the age, then the oldest over the total; return how many.

    A log that may grow is never removed, however old. It reads the whole tree: call it in a thread.
    """
    ended: list[tuple[float, int, Path]] = []
    total = 0
    for folder, _, names_ in os.walk(logs):
        live = {name[1:-5] for name in names_ if name.startswith(".") and name.endswith(".live")}
        for name in names_:
            stem, dot, _ = name.rpartition(".log")  # a pod's name may have one, too
            path = Path(folder, name)
            try:
                stat = path.lstat()
            except OSError:
                continue
            if not dot or name.startswith(".") or path.is_symlink():
                continue
            total += stat.st_size
            if f"{stem}.log" not in live:
                ended.append((stat.st_mtime, stat.st_size, path))
    count = 0
    for written_at, size, path in sorted(ended):
        if now - written_at <= limits.age_seconds_max and total <= limits.total_bytes_max:
            break
        path.unlink(missing_ok=True)
        total -= size
        count += 1
    if count:
        _remove_empty(logs)
    return count


async def keep_within(
    logs: Path, limits: LogLimits, clock: Clock, *, seconds: float, log: Logger
) -> None:
    """Prune now and every `seconds`, until cancelled."""
    while True:
        try:
            count = await asyncio.to_thread(prune, logs, limits, clock.now())
        except OSError as error:
            log.warning("Logs cannot be removed", error=str(error))
        else:
            if count:
                log.info("Removed logs", count=count)
        await asyncio.sleep(seconds)


def _remove_empty(logs: Path) -> None:
    """Remove folders that hold no logs any more, and links to logs that are gone."""
    for folder, folders, files in os.walk(logs, topdown=False):
        for name in files:
            path = Path(folder, name)
            if path.is_symlink() and not path.exists():
                path.unlink(missing_ok=True)
        left = [name for name in files if name != UID_FILE and Path(folder, name).exists()]
        if not left and not any(Path(folder, name).is_dir() for name in folders):
            for name in files:
                Path(folder, name).unlink(missing_ok=True)
            if Path(folder) != logs:
                Path(folder).rmdir()


def close_logs(paths: dict[str, str]) -> None:
    """Note that nothing more will come."""
    for path in paths.values():
        live_mark(Path(path)).unlink(missing_ok=True)
