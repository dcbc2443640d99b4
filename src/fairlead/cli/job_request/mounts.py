"""`--mount` and `--checkpoint`: the short forms of volumes (pure).

    --mount claim:NAME[/SUBDIRECTORY]:PATH[:ro]     a PersistentVolumeClaim
    --mount configmap:NAME:PATH                     a ConfigMap, each key a file
    --mount secret:NAME:PATH                        a Secret, each key a file
    --mount emptydir:PATH                           a directory that goes with the pod
    --mount memory:PATH                             the same in memory, such as /dev/shm
    --mount /DIRECTORY[:PATH][:ro]                  a directory of each node

The order and the colons are those of `docker run --volume` and of pyxis' `--container-mounts`; the
kind in front is what Kubernetes adds to them.
"""

from __future__ import annotations

from fairlead.api.jobs.job import Checkpoint
from fairlead.api.jobs.job_mounts import EmptyDir, JobMount, mount_causes
from fairlead.api.pods.pod_rules import is_object_name
from fairlead.input.suggest import nearest

READ_ONLY = "ro"
_NAMED = ("claim", "configmap", "secret")
_EMPTY = {"emptydir": EmptyDir.DISK, "memory": EmptyDir.MEMORY}
_KINDS = (*_NAMED, *_EMPTY)
#: What people who know other tools write.
_MEANT = {
    "pvc": "claim", "persistentvolumeclaim": "claim", "volume": "claim", "cm": "configmap",
    "tmpfs": "memory", "shm": "memory", "scratch": "emptydir", "empty": "emptydir",
}  # fmt: skip
_DOCKER = "type="


class MountError(ValueError):
    """A mount that cannot be read; `help` is what to write, or ""."""

    def __init__(self, message: str, help_: str = "") -> None:
        super().__init__(message)
        self.help = help_


def parse_mount(text: str) -> JobMount:
    """Return the mount; MountError."""
    if text.startswith(_DOCKER):
        raise MountError(
            f"'{text}' is Docker's long form", "--mount claim:NAME:PATH, or /DIRECTORY:PATH"
        )
    head, *rest = text.split(":")
    is_read_only = head not in _EMPTY and bool(rest) and rest[-1] == READ_ONLY
    rest = rest[:-1] if is_read_only else rest
    first, second = [*rest, "", ""][:2]
    if head.startswith("/"):
        extra = rest[1:]
        mount = JobMount(path=first or head, host_path=head, read_only=is_read_only)
    elif head in _EMPTY:
        extra = rest[1:]
        mount = JobMount(path=first, empty_dir=_EMPTY[head])
    elif head in _NAMED:
        extra = rest[2:]
        name, _, inner = first.partition("/")
        mount = JobMount(
            path=second, sub_path=inner, read_only=is_read_only,
            claim=name if head == "claim" else "",
            config_map=name if head == "configmap" else "",
            secret=name if head == "secret" else "",
        )  # fmt: skip
    else:
        raise _unknown(text, head)
    if extra:
        raise MountError(f"'{text}': '{extra[0]}' is too much", _form(head))
    problem = next(iter(mount_causes(mount, "")), None)
    if problem is not None:
        where = {".path": "PATH ", ".subPath": "SUBDIRECTORY "}.get(problem.field, "")
        raise MountError(f"'{text}': {where}{problem.message.partition(': ')[2]}", _form(head))
    return mount


def _form(head: str) -> str:
    if head in _EMPTY:
        return f"--mount {head}:PATH"
    source = f"{head}:NAME" if head in _NAMED else "/DIRECTORY"
    return f"--mount {source}:PATH[:{READ_ONLY}]"


def _unknown(text: str, head: str) -> MountError:
    if head.startswith((".", "~")) or ":" not in text:
        return MountError(
            f"'{text}' names no kind of volume and no absolute directory",
            "--mount claim:NAME:PATH, or /DIRECTORY:PATH for a directory of each node",
        )
    kind = _MEANT.get(head.lower()) or nearest(head.lower(), _KINDS)
    rest = text.partition(":")[2]
    return MountError(
        f"'{head}' must be {', '.join(_KINDS)} or an absolute directory",
        f"--mount {kind}:{rest}" if kind else "",
    )


def parse_checkpoint(text: str) -> Checkpoint:
    """Return where checkpoints are kept: a claim by its name, or an absolute directory of the
    nodes; MountError.
    """
    if text.startswith("/"):
        mount = JobMount(path=text, host_path=text)
        problem = next(iter(mount_causes(mount, "")), None)
        if problem is not None:
            raise MountError(f"'{text}': {problem.message.partition(': ')[2]}")
        return Checkpoint(path=text)
    name = text.removeprefix("claim:")
    if not is_object_name(name):
        raise MountError(
            f"'{text}' is neither the name of a claim nor an absolute directory",
            "a PersistentVolumeClaim, or a directory that all nodes share",
        )
    return Checkpoint(claim_name=name)
