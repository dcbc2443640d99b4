"""OCI archives (image-spec 1.1, "Image Layout") from layers that are tar files.

Same layers and configuration, same bytes: nothing of this machine, no time, no account gets in.
Several images of one archive share their layers.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OCI = "application/vnd.oci.image"
_GZIP_LEVEL = 6
#: What a kernel calls an architecture, and what images and Debian call it.
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image by its full name, with its layers, lowest first."""

    name: str
    layers: tuple[Path, ...]
    #: As the image specification has it: Env, Entrypoint, Cmd, User, WorkingDir.
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    machine: str = field(default_factory=lambda: os.uname().machine)


def write_layer(target: Path, root: Path, subtrees: Sequence[str] = (".",)) -> None:
    """Write `subtrees` of a directory as a layer, with the directories above each.

    Owners are root, times are zero, and what only a booted machine needs (devices, pipes) is left
    out. Links keep their targets.
    """
    new = target.with_suffix(".new")
    with tarfile.open(new, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in _paths(root, subtrees):
            if not (path.is_symlink() or path.is_file() or path.is_dir()):
                continue
            name = path.relative_to(root).as_posix()
            info = tar.gettarinfo(path, "." if name == "." else f"./{name}")
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = 0
            if info.isreg():
                with path.open("rb") as data:
                    tar.addfile(info, data)
            else:
                tar.addfile(info)
    new.rename(target)


def _paths(root: Path, subtrees: Sequence[str]) -> Iterator[Path]:
    """Yield what belongs to a layer, parents first, in the same order each time."""
    above: set[Path] = set()
    for subtree in sorted(subtrees):
        top = root / subtree
        for parent in reversed([p for p in top.parents if p.is_relative_to(root) and p != root]):
            if parent not in above:
                above.add(parent)
                yield parent
        yield top
        if top.is_dir() and not top.is_symlink():
            for folder, folders, files in os.walk(top):
                folders.sort()
                yield from (Path(folder, name) for name in sorted([*folders, *files]))


def digest(path: Path) -> str:
    """Return sha256:... of a file."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer as the archive has it: a tar file, or one that gzip has compressed."""

    diff_id: str
    digest: str
    file: Path
    ending: str


def write_archive(
    target: Path, images: Sequence[Image], *, is_compressed: bool = False
) -> dict[str, str]:
    """Write an archive of images; return the digest of each name.

    Images of one name are one image of several platforms: an index, of which a node takes its part.
    Compressed layers are smaller to keep and to pull, and take longer to write.
    """
    with TemporaryDirectory(dir=target.parent) as scratch:
        layers: dict[Path, _Layer] = {}
        for layer in dict.fromkeys(layer for image in images for layer in image.layers):
            packed = Path(scratch, str(len(layers))) if is_compressed else None
            layers[layer] = _layer(layer, packed)
        return _write(target, images, layers)


def _layer(file: Path, packed: Path | None) -> _Layer:
    """Return a layer; where a path is given, its content is compressed to it."""
    name = digest(file)
    if packed is None:
        return _Layer(name, name, file, "tar")
    # No name and no time, so the same bytes give the same bytes with one version of zlib.
    with (
        file.open("rb") as data,
        packed.open("wb") as out,
        gzip.GzipFile("", "wb", _GZIP_LEVEL, out, mtime=0) as zipped,
    ):
        shutil.copyfileobj(data, zipped, 1 << 20)
    return _Layer(name, digest(packed), packed, "tar+gzip")


def _write(target: Path, images: Sequence[Image], layers: dict[Path, _Layer]) -> dict[str, str]:
    blobs: dict[str, bytes] = {}
    manifests: list[dict[str, Any]] = []
    for name in dict.fromkeys(image.name for image in images):
        parts = [_describe(image, layers, blobs) for image in images if image.name == name]
        manifests.append(_joined(name, parts, blobs))
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": manifests}
    new = target.with_suffix(".new")
    with tarfile.open(new, "w") as tar:
        _add(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(tar, "index.json", json.dumps(index).encode())
        for name, data in sorted(blobs.items()):
            _add(tar, _blob(name), data)
        for name, file in sorted({each.digest: each.file for each in layers.values()}.items()):
            info = tarfile.TarInfo(_blob(name))
            info.size = file.stat().st_size
            with file.open("rb") as data:
                tar.addfile(info, data)
    new.rename(target)
    return {each["annotations"]["org.opencontainers.image.ref.name"]: each["digest"]
            for each in manifests}  # fmt: skip


def _joined(name: str, parts: Sequence[dict[str, Any]], blobs: dict[str, bytes]) -> dict[str, Any]:
    """Return the entry of an image of one platform, or of the index of several."""
    if len(parts) > 1:
        parts = [_keep(blobs, f"{_OCI}.index.v1+json", {
            "schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": list(parts),
        })]  # fmt: skip
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    return {**parts[0], "annotations": names}


def _describe(image: Image, known: dict[Path, _Layer], blobs: dict[str, bytes]) -> dict[str, Any]:
    """Add an image's configuration and manifest to the blobs; return its entry of the index."""
    platform = {"architecture": MACHINES[image.machine], "os": "linux"}
    layers = [known[layer] for layer in image.layers]
    diff_ids = [layer.diff_id for layer in layers]
    config = _keep(blobs, f"{_OCI}.config.v1+json", {
        **platform, "config": image.config, "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })  # fmt: skip
    manifest = _keep(blobs, f"{_OCI}.manifest.v1+json", {
        "schemaVersion": 2, "mediaType": f"{_OCI}.manifest.v1+json", "config": config,
        "layers": [
            {"mediaType": f"{_OCI}.layer.v1.{layer.ending}", "digest": layer.digest,
             "size": layer.file.stat().st_size}
            for layer in layers
        ],
    })  # fmt: skip
    return {**manifest, "platform": platform}


def _keep(blobs: dict[str, bytes], media_type: str, content: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(content, sort_keys=True).encode()
    name = f"sha256:{hashlib.sha256(data).hexdigest()}"
    blobs[name] = data
    return {"mediaType": media_type, "digest": name, "size": len(data)}


def _blob(name: str) -> str:
    return f"blobs/{name.replace(':', '/')}"


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
