"""OCI archives (image-spec 1.1, "Image Layout") from layers that are tar files.

Same layers and configuration, same bytes: nothing of this machine, no time, no account gets in.
Several images of one archive share their layers.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OCI = "application/vnd.oci.image"
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


def write_archive(target: Path, images: Sequence[Image]) -> dict[str, str]:
    """Write an archive of images; return the digest of each name.

    Images of one name are one image of several platforms: an index, of which a node takes its part.
    """
    digests = {layer: digest(layer) for image in images for layer in image.layers}
    blobs: dict[str, bytes] = {}
    manifests: list[dict[str, Any]] = []
    for name in dict.fromkeys(image.name for image in images):
        parts = [_describe(image, digests, blobs) for image in images if image.name == name]
        manifests.append(_joined(name, parts, blobs))
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": manifests}
    new = target.with_suffix(".new")
    with tarfile.open(new, "w") as tar:
        _add(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(tar, "index.json", json.dumps(index).encode())
        for name, data in sorted(blobs.items()):
            _add(tar, _blob(name), data)
        for name, layer in sorted({each: layer for layer, each in digests.items()}.items()):
            info = tarfile.TarInfo(_blob(name))
            info.size = layer.stat().st_size
            with layer.open("rb") as data:
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


def _describe(image: Image, digests: dict[Path, str], blobs: dict[str, bytes]) -> dict[str, Any]:
    """Add an image's configuration and manifest to the blobs; return its entry of the index."""
    platform = {"architecture": MACHINES[image.machine], "os": "linux"}
    layers = [digests[layer] for layer in image.layers]
    config = _keep(blobs, f"{_OCI}.config.v1+json", {
        **platform, "config": image.config, "rootfs": {"type": "layers", "diff_ids": layers},
    })  # fmt: skip
    manifest = _keep(blobs, f"{_OCI}.manifest.v1+json", {
        "schemaVersion": 2, "mediaType": f"{_OCI}.manifest.v1+json", "config": config,
        "layers": [
            {"mediaType": f"{_OCI}.layer.v1.tar", "digest": name, "size": layer.stat().st_size}
            for layer, name in zip(image.layers, layers, strict=True)
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
