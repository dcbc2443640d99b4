"""Fairlead's image is made without a container engine, and equal inputs give an equal image."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tools.cluster.archive import Image, digest, write_archive, write_layer
from tools.cluster.images import Builder, build_archive, locked
from tools.cluster.layout import cache_directory

pytestmark = pytest.mark.kubernetes


def say(_: str) -> None:
    return


def test_a_layer_and_an_image_depend_on_names_and_contents_alone(tmp_path: Path) -> None:
    digests: set[str] = set()
    for name, files in (("a", ("x", "y")), ("b", ("y", "x"))):
        root = tmp_path / name
        for number, file in enumerate(files):
            path = root / "opt" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file)
            os.utime(path, (number, number))
        (root / "opt" / "link").symlink_to("x")
        (root / "elsewhere").mkdir()
        write_layer(tmp_path / f"{name}.tar", root, ("opt",))
        image = Image("fairlead:test", (tmp_path / f"{name}.tar",), {"User": "65532:65532"})
        archive = tmp_path / f"{name}-archive.tar"
        digests.add(write_archive(archive, [image])["fairlead:test"] + digest(archive))
    assert len(digests) == 1
    (tmp_path / "b" / "opt" / "x").write_text("changed")
    write_layer(tmp_path / "b.tar", tmp_path / "b", ("opt",))
    assert digest(tmp_path / "a.tar") != digest(tmp_path / "b.tar")


def test_entries_of_a_lock_file_keep_their_versions_and_hashes() -> None:
    lock = (
        "a==1 \\\n    --hash=sha256:0\n    # via b\nb==2 ; python_version < '3' \\\n    --hash=x\n"
    )
    assert locked(lock, ("b",)) == "b==2 ; python_version < '3' \\\n    --hash=x\n"


@pytest.mark.usefixtures("real_nodes")
def test_the_layer_of_the_project_is_the_same_when_it_is_made_again(tmp_path: Path) -> None:
    cache = cache_directory() / "images"
    archive = build_archive(say, with_examples=False)
    (again := tmp_path / "images").mkdir()
    for kept in cache.glob("*-*/"):
        if not kept.name.startswith("project-"):
            (again / kept.name).symlink_to(kept)
    first = Builder(cache, say).images(with_examples=False)
    second = Builder(again, say).images(with_examples=False)
    assert [digest(layer) for layer in first[0].layers] == [
        digest(layer) for layer in second[0].layers
    ]
    assert first[0].config == second[0].config
    assert first[0].config["User"] == "65532:65532"
    assert archive.exists()
    shutil.rmtree(again)
