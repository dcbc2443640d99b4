"""An image of several platforms is one index; a tree has no program of another architecture."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tools.cluster.archive import Image, digest, write_archive
from tools.cluster.foreign import ELF_MACHINES, ForeignTree, WrongMachine, check_machine

NAME = "docker.io/library/fairlead:9"


def blobs(archive: Path) -> dict[str, Any]:
    """All JSON of an archive by its digest, and `index`."""
    found: dict[str, Any] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            data = file.read()
            name = "index" if member.name == "index.json" else f"sha256:{member.name[-64:]}"
            if data.startswith(b"{"):
                found[name] = json.loads(data)
    return found


def test_a_node_of_either_architecture_finds_its_own_layers_and_the_shared_one_is_there_once(
    tmp_path: Path,
) -> None:
    for name in ("base-amd64", "base-arm64", "project"):
        (tmp_path / name).write_text(name)
    images = [
        Image(NAME, (tmp_path / f"base-{arch}", tmp_path / "project"), {"User": "1"}, machine)
        for arch, machine in (("amd64", "x86_64"), ("arm64", "aarch64"))
    ]
    digests = write_archive(tmp_path / "a.tar", images)
    found = blobs(tmp_path / "a.tar")
    [entry] = found["index"]["manifests"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == NAME
    assert entry["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert digests == {NAME: entry["digest"]}
    parts = {each["platform"]["architecture"]: each for each in found[entry["digest"]]["manifests"]}
    assert sorted(parts) == ["amd64", "arm64"]
    layers = {arch: found[each["digest"]]["layers"] for arch, each in parts.items()}
    assert layers["amd64"][0] != layers["arm64"][0]
    assert layers["amd64"][1] == layers["arm64"][1]
    config = found[found[parts["arm64"]["digest"]]["config"]["digest"]]
    assert (config["architecture"], config["config"]) == ("arm64", {"User": "1"})
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert len(tar.getnames()) == len(set(tar.getnames()))


def test_compressed_layers_are_named_by_what_a_node_unpacks_and_are_the_same_each_time(
    tmp_path: Path,
) -> None:
    layer = tmp_path / "layer"
    layer.write_bytes(b"a line\n" * 100_000)
    written = [tmp_path / f"{name}.tar" for name in "ab"]
    for archive in written:
        write_archive(archive, [Image(NAME, (layer,))], is_compressed=True)
    assert written[0].read_bytes() == written[1].read_bytes()
    assert written[0].stat().st_size < layer.stat().st_size // 10
    found = blobs(written[0])
    [entry] = found["index"]["manifests"]
    manifest = found[entry["digest"]]
    [packed] = manifest["layers"]
    assert packed["mediaType"] == "application/vnd.oci.image.layer.v1.tar+gzip"
    with tarfile.open(written[0]) as tar:
        file = tar.extractfile(f"blobs/{packed['digest'].replace(':', '/')}")
        assert file is not None
        data = file.read()
    assert packed["size"] == len(data)
    assert packed["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert gzip.decompress(data) == layer.read_bytes()
    config = found[manifest["config"]["digest"]]
    assert config["rootfs"]["diff_ids"] == [digest(layer)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "b.tar", "layer"]


def test_an_image_of_one_platform_is_no_index(tmp_path: Path) -> None:
    (tmp_path / "layer").write_text("x")
    write_archive(tmp_path / "a.tar", [Image(NAME, (tmp_path / "layer",), machine="aarch64")])
    [entry] = blobs(tmp_path / "a.tar")["index"]["manifests"]
    assert entry["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert entry["platform"] == {"architecture": "arm64", "os": "linux"}


def program(arch: str) -> bytes:
    """The head of a program."""
    return b"\x7fELF" + bytes(14) + ELF_MACHINES[arch].to_bytes(2, "little") + b"code"


def tree(root: Path, files: dict[str, bytes]) -> Path:
    """A directory with files."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def test_what_scripts_made_is_added_and_no_program_nor_library_path_of_this_machine(
    tmp_path: Path,
) -> None:
    native = tree(tmp_path / "native", {
        "etc/passwd": b"root", "etc/ld.so.cache": b"cache", "usr/bin/python3.11": program("amd64"),
        "usr/bin/only-here": program("amd64"), "usr/lib/x86_64-linux-gnu/libc.so": program("amd64"),
        "usr/lib/x86_64-linux-gnu/notes": b"text", "usr/lib/kept": b"native",
        "var/lib/dpkg/status": b"Package: libc6\nStatus: x\n\nPackage: base-files\n",
    })  # fmt: skip
    (native / "etc/link").symlink_to("passwd")
    own = {"usr/bin/python3.11": program("arm64"), "usr/lib/kept": b"foreign"}
    root = tree(tmp_path / "root", own)
    made = ForeignTree(native, "arm64")
    assert made.packages() == ["base-files", "libc6"]
    made.complete(root)
    there = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if not p.is_dir())
    assert there == ["etc/link", "etc/passwd", "usr/bin/python3.11", "usr/lib/kept"]
    assert (root / "usr/lib/kept").read_bytes() == b"foreign"
    assert check_machine(root, "arm64") == 1
    (root / "usr/bin/evil").write_bytes(program("amd64"))
    with pytest.raises(WrongMachine, match="usr/bin/evil is no program of arm64"):
        check_machine(root, "arm64")
