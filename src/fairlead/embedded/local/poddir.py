"""The directory of a pod: its record, its volumes, and the runs of its containers.

    <data>/local/pods/<uid>/          0700
        pod.json                      who it is, its address, its GPUs
        volumes/<volume>/
        work/<container>/             the working directory unless the spec names one
        containers/<container>/<n>/   start number n: see fairlead/embedded/local/processes/shim.py
        containers/<container>/termination-log

Files are written whole (to a temporary name, then renamed): a reader finds all or nothing. They
are small, so that writing them in the event loop costs microseconds.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from fairlead.api.kubernetes.core import Pod, Volume
from fairlead.decide.jobs.following.progress import progress_file
from fairlead.embedded.local.config import ConfigData
from fairlead.embedded.local.containers import (
    ConfigMissing,
    ContainerMount,
    Unsupported,
    downward_files,
)

F = TypeVar("F", bound=msgspec.Struct)

RUNS_KEPT_MAX = 2
#: The file of a container whose content is said when it ends.
TERMINATION_LOG = "termination-log"
_SAFE = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$")
_KEY = re.compile(r"^[-._A-Za-z0-9]{1,253}$")


class PodRecordFile(msgspec.Struct, frozen=True, rename="camel"):
    """pod.json. `gpus` are indices by container; `stopped` is set when the node itself
    stopped it.
    """

    namespace: str
    name: str
    uid: str
    address: str
    bound_at: float
    logs: dict[str, str]
    gpus: dict[str, tuple[int, ...]] = {}
    stopped: bool = False


def safe(name: str) -> str:
    """Return the name if it can be a file name that leads nowhere else; Unsupported if not."""
    if not _SAFE.fullmatch(name):
        raise Unsupported(f"{name!r} cannot be used as a file name on this machine")
    return name


def made(folder: Path) -> Path:
    """Return the folder, made, for the user alone, if it is not there; OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; OSError."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)


def read_struct(path: Path, type_: type[F]) -> F | None:
    """Return what a JSON file holds, None when there is none; OSError, also when damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OSError(f"{path} is damaged: {error}") from error


class PodDir:
    """One pod's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def uid(self) -> str:
        """The pod's uid, which names the directory."""
        return self.path.name

    def read(self) -> PodRecordFile | None:
        """Return the record, None when there is none (the pod never got that far); OSError."""
        return read_struct(self.path / "pod.json", PodRecordFile)

    def write(self, record: PodRecordFile) -> None:
        """Write the record, and make the directory; OSError."""
        write_file(made(self.path) / "pod.json", msgspec.json.encode(record))

    # Containers

    def runs(self, container: str) -> list[Path]:
        """Return the directories of the container's starts, oldest first."""
        folder = self.path / "containers" / safe(container)
        try:
            numbers = sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())
        except FileNotFoundError:
            return []
        return [folder / str(number) for number in numbers]

    def new_run(self, container: str, number: int) -> Path:
        """Make the directory of start `number` and drop all but the latest few; OSError."""
        path = made(self.path / "containers" / safe(container) / str(number))
        for old in self.runs(container)[:-RUNS_KEPT_MAX]:
            shutil.rmtree(old)  # a handful of small files
        return path

    def work(self, container: str) -> Path:
        """Return the container's default working directory, made if absent; OSError."""
        return made(self.path / "work" / safe(container))

    # Volumes

    def materialise(self, pod: Pod, config: ConfigData, claims: Path) -> dict[str, Path]:
        """Make the pod's volumes and return where each is; ConfigMissing, Unsupported, OSError."""
        for volume in pod.spec.volumes:
            maps, secret = volume.config_map, volume.secret
            if maps is not None and not maps.optional and config.config_map(maps.name) is None:
                raise ConfigMissing(f'configmap "{maps.name}" not found')
            if secret is None or secret.optional:
                continue
            if config.secret_files(secret.secret_name) is None:
                raise ConfigMissing(f'secret "{secret.secret_name}" not found')
        return {v.name: self._volume(pod, v, config, claims) for v in pod.spec.volumes}

    def _volume(self, pod: Pod, volume: Volume, config: ConfigData, claims: Path) -> Path:
        path = self.path / "volumes" / safe(volume.name)
        if volume.config_map is not None:
            return _write_files(path, config.files(volume.config_map.name) or {})
        if volume.secret is not None:
            return _write_files(path, config.secret_files(volume.secret.secret_name) or {})
        if volume.downward_api is not None:
            return _write_files(path, downward_files(pod, volume.downward_api))
        if volume.empty_dir is not None:
            return made(path)
        if volume.persistent_volume_claim is not None:
            return made(claims / safe(volume.persistent_volume_claim.claim_name))
        if volume.host_path is not None:
            return _host_path(volume.host_path.path, volume.host_path.type)
        raise Unsupported(
            f"volume {volume.name} is of a kind that the local node does not have; accepted: "
            "configMap, downwardAPI, emptyDir, hostPath, persistentVolumeClaim, secret"
        )

    def mounts(
        self, pod: Pod, container: str, volumes: dict[str, Path]
    ) -> tuple[ContainerMount, ...]:
        """Return the container's mounts; Unsupported when one names no volume or escapes it."""
        every = (*pod.spec.init_containers, *pod.spec.containers)
        spec = next(c for c in every if c.name == container)
        termination_log = made(self.path / "containers" / safe(container)) / TERMINATION_LOG
        termination_log.touch()
        out = [ContainerMount(progress_file(spec), str(termination_log))]
        for mount in spec.volume_mounts:
            real = volumes.get(mount.name)
            if real is None:
                raise Unsupported(f"container {container} mounts unknown volume {mount.name!r}")
            if mount.sub_path:
                if mount.sub_path.startswith("/") or ".." in mount.sub_path.split("/"):
                    raise Unsupported(f"subPath {mount.sub_path!r} leads out of its volume")
                real = real / mount.sub_path
                if not real.is_file():
                    made(real)
            out.append(ContainerMount(mount.mount_path, str(real)))
        return tuple(out)

    # End

    async def remove(self, trash: Path) -> None:
        """Remove the directory: out of sight at once, then beside the event loop."""
        try:
            target = self.path.rename(made(trash) / self.path.name)
        except FileNotFoundError:
            return
        await remove_tree(target)


def _write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    made(folder)
    for name, content in sorted(files.items()):
        if not _KEY.fullmatch(name) or name in (".", ".."):
            raise Unsupported(f"{name!r} cannot be the name of a volume's file")
        write_file(folder / name, content)
    return folder


def _host_path(path: str, kind: str) -> Path:
    """Check or make a hostPath, by its type (core/v1 HostPathVolumeSource)."""
    real = Path(path)
    if not real.is_absolute():
        raise Unsupported(f"hostPath {path!r} is not absolute")
    if kind == "DirectoryOrCreate":
        real.mkdir(mode=0o755, parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        real.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        real.touch()
    elif kind == "Directory" and not real.is_dir():
        raise ConfigMissing(f"hostPath {path} is not a directory")
    elif kind == "File" and not real.is_file():
        raise ConfigMissing(f"hostPath {path} is not a file")
    return real


async def remove_tree(path: Path) -> None:
    """Remove a tree, in a thread; what cannot be removed stays, and the next start tries again."""
    await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
