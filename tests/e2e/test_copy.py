"""`fairlead cp` to and from members of a cluster of `fairlead up`, with real processes."""

from __future__ import annotations

import filecmp
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e
#: What an image has: Python, or tar and the small programs of the scripts, or neither.
PLAIN = ("sh", "sleep", "cat", "touch")
IMAGES = {
    "python": (*PLAIN, "python3"),
    "tar": (*PLAIN, "tar", "mktemp", "mkdir", "dirname", "basename", "mv", "rm"),
    "neither": PLAIN,
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    world = Shell(tmp_path_factory.mktemp("copy"))
    world.up("--nodes", "0", "--listen", "127.0.0.1:0")
    (world.root / "stay.sh").write_text("#!/bin/sh\n#FAIRLEAD --cpus 50m\nexec sleep 3600\n")
    for image, programs in IMAGES.items():
        path = world.root / "images" / image
        path.mkdir(parents=True)
        for program in programs:
            real = sys.executable if program == "python3" else f"/usr/bin/{program}"
            (path / program).symlink_to(Path(real).resolve())
        (world.root / f"in-{image}").mkdir()
        world.run("submit", "stay.sh", "--name", image, "--env", f"PATH={path}", "--chdir",
                  str(world.root / f"in-{image}"))  # fmt: skip
    world.run("wait", *IMAGES, "--for", "started", "--timeout", "100s")
    yield world
    world.down()


def tree(path: Path) -> Path:
    (path / "sub" / "empty").mkdir(parents=True)
    (path / "sub" / "random").write_bytes(os.urandom(5 << 20))
    (path / "run.sh").write_text("#!/bin/sh\n")
    (path / "run.sh").chmod(0o755)
    (path / "link").symlink_to("sub/random")
    return path


def alike(one: Path, other: Path) -> bool:
    found = filecmp.dircmp(one, other)
    names = (*found.left_only, *found.right_only, *found.diff_files, *found.funny_files)
    return not names and all(alike(one / each, other / each) for each in found.common_dirs)


@pytest.mark.parametrize("image", ["python", "tar"])
def test_a_tree_goes_there_and_comes_back_the_same(shell: Shell, image: str) -> None:
    source = tree(shell.root / f"tree-{image}")
    inside = shell.root / f"in-{image}"
    shell.run("cp", source.name, f"{image}:")
    assert alike(source, inside / source.name)
    shell.run("cp", f"{image}/worker-0:{source.name}/", f"back-{image}")
    assert alike(source, shell.root / f"back-{image}")
    assert (shell.root / f"back-{image}" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (shell.root / f"back-{image}" / "link").is_symlink()
    again = shell.run("cp", source.name, f"{image}:", code=5)
    assert "exists; --force replaces it" in again.err
    (source / "more").write_text("1")
    shell.run("cp", "--force", source.name, f"{image}:")
    assert alike(source, inside / source.name)
    shell.run("cp", f"{source.name}/run.sh", f"{image}:./other.sh")
    shell.run("cp", f"{source.name}/more", f"{image}:other.sh")
    assert (inside / "other.sh").read_text() == "1"
    assert sorted(each.name for each in inside.iterdir()) == ["other.sh", source.name]


@pytest.mark.parametrize("image", ["python", "tar"])
def test_what_cannot_be_copied_is_said_and_changes_nothing(shell: Shell, image: str) -> None:
    (shell.root / "one").write_text("1")
    for words, said in (
        (("one", f"{image}:nowhere/"), "no such directory"),
        ((f"{image}:absent", "."), "no such file or directory"),
        (("absent", f"{image}:"), "no such file or directory"),
        ((f"{image}:.", "."), "does not name what is copied"),
        (("one", "two"), "none is JOB[/MEMBER]:PATH"),
        ((f"{image}:a", f"{image}:b"), "both is JOB[/MEMBER]:PATH"),
        (("one", "nojob:"), "job 'nojob' does not exist"),
    ):
        assert said in shell.run("cp", *words, code=None).err, words
    assert not list(shell.root.glob("**/.fairlead-cp-*"))


def test_an_image_with_neither_python_nor_tar_is_refused_with_what_to_do(shell: Shell) -> None:
    (shell.root / "one").write_text("1")
    refused = shell.run("cp", "one", "neither:", code=5).err
    assert "neither Python 3.8 nor tar" in refused
    assert "fairlead exec JOB -- cat FILE > FILE" in refused


@pytest.mark.parametrize("image", ["python", "tar"])
@pytest.mark.parametrize("is_sent", [True, False])
def test_a_copy_that_is_killed_leaves_nothing_under_the_final_name(
    shell: Shell, image: str, is_sent: bool
) -> None:
    inside = shell.root / f"in-{image}"
    source = (shell.root if is_sent else inside) / f"huge-{is_sent}"
    with source.open("wb") as file:
        file.truncate(40 << 30)
    words = [source.name, f"{image}:goes"] if is_sent else [f"{image}:{source.name}", "goes"]
    place = inside if is_sent else shell.root
    running = shell.start("cp", *words)
    try:
        eventually(lambda: bool(list(place.glob(".fairlead-cp-*"))), True)
        running.send_signal(signal.SIGKILL if is_sent else signal.SIGINT)
        code = running.wait(PATIENCE_SECONDS)
        assert code == (-signal.SIGKILL if is_sent else 130)
        eventually(lambda: list(place.glob(".fairlead-cp-*")), [])
        assert not (place / "goes").exists()
    finally:
        running.kill()
        source.unlink()


def test_a_hostile_member_writes_nothing_outside_of_the_copy(shell: Shell) -> None:
    (shell.root / "images" / "evil").mkdir()
    for program in IMAGES["tar"]:
        (shell.root / "images" / "evil" / program).symlink_to(f"/usr/bin/{program}")
    evil = shell.root / "images" / "evil" / "tar"
    evil.unlink()
    text = "import io, tarfile, sys\nout = tarfile.open(fileobj=sys.stdout.buffer, mode='w|')\n"
    text += (
        "link = tarfile.TarInfo('copied/d'); link.type = tarfile.SYMTYPE; link.linkname = '..'\n"
    )
    text += "top = tarfile.TarInfo('copied'); top.type = tarfile.DIRTYPE\n"
    text += "file = tarfile.TarInfo('copied/d/planted')\n"
    text += "[out.addfile(each) for each in (top, link, file)]; out.close()\n"
    (shell.root / "evil.py").write_text(text)
    evil.write_text(f"#!/bin/sh\nexec {sys.executable} {shell.root}/evil.py\n")
    evil.chmod(0o755)
    shell.run("submit", "stay.sh", "--name", "evil", "--env", f"PATH={evil.parent}")
    shell.run("wait", "evil", "--for", "started", "--timeout", "100s")
    (shell.root / "into").mkdir()
    done = shell.run("cp", "evil:/bin", "into", code=5)
    assert "nothing was copied" in done.err
    assert list((shell.root / "into").iterdir()) == []
    assert not (shell.root / "planted").exists()
