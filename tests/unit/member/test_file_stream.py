"""Copies as streams of tar: what comes through whole, and what a hostile other end cannot do."""

from __future__ import annotations

import ast
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.member import file_stream
from fairlead.member.file_stream import CopyError, receive_tree, send_tree


def sent(path: Path) -> bytes:
    out = io.BytesIO()
    send_tree(path, out, pytest.fail)
    return out.getvalue()


def made(*entries: tuple[str, bytes, str], end: bool = True, data: bytes = b"x") -> bytes:
    """Return a tar of names, types and link targets."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, target in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, target, 0o6777
            info.size = len(data) if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(data) if info.size else None)
        length = out.tell()
    return out.getvalue() if end else out.getvalue()[:length]


D, F, S, H = tarfile.DIRTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "place"
    directory.mkdir()
    (tmp_path / "secret").write_text("old")
    return directory


def receive(data: bytes, place: Path, target: str = "copy", **more: bool) -> list[str]:
    notes: list[str] = []
    receive_tree(io.BytesIO(data), str(place / target), "name", note=notes.append,
                 replaces=more.get("replaces", False))  # fmt: skip
    return notes


def test_a_tree_comes_through_with_its_files_modes_times_and_links(place: Path) -> None:
    tree = place / "tree"
    (tree / "a" / "deep").mkdir(parents=True)
    (tree / "a" / "deep" / "run.sh").write_bytes(os.urandom(3 << 20))
    (tree / "a" / "deep" / "run.sh").chmod(0o750)
    (tree / "empty").mkdir(mode=0o500)
    (tree / "link").symlink_to("a/deep/run.sh")
    (tree / "a" / "up").symlink_to("../empty")
    os.link(tree / "a" / "deep" / "run.sh", tree / "twin")
    os.utime(tree / "twin", (1000.5, 1000.5))
    long = tree / ("n" * 200)
    long.write_text("ä\n")
    assert receive(sent(tree), place) == []
    copy = place / "copy"
    assert (copy / "link").read_bytes() == (tree / "twin").read_bytes()
    assert (copy / "twin").stat().st_mtime == 1000.5
    assert (copy / "a/deep/run.sh").stat().st_mode & 0o7777 == 0o750
    assert str((copy / "a" / "up").readlink()) == "../empty"
    assert (copy / long.name).read_text() == "ä\n"
    assert sorted(each.name for each in place.iterdir()) == ["copy", "tree"]


HOSTILE = {
    "absolute": made(("/etc/x", F, "")),
    "up": made(("copied/../../secret", F, "")),
    "up at once": made(("../secret", F, "")),
    "through its link": made(("copied", D, ""), ("copied/d", S, ".."), ("copied/d/secret", F, "")),
    "through its directory": made(("copied", F, ""), ("copied/secret", F, "")),
    "twice": made(("copied", D, ""), ("copied/f", F, ""), ("copied/f", F, "")),
    "a link in place of a file": made(("copied", D, ""), ("copied/f", F, ""), ("copied/f", S, "d")),
    "hard link out": made(("copied", D, ""), ("copied/h", H, "../secret")),
    "hard link to a link": made(
        ("copied", D, ""), ("copied/s", S, "x"), ("copied/h", H, "copied/s")
    ),
    "no end": made(("copied", F, ""), end=False),
    "cut": made(("copied", F, ""), data=bytes(9000))[:2000],
    "nothing": made(),
    "no tar": b"hello" * 400,
    "deep": made(*((("a/" * depth) + "b", D, "") for depth in range(1, 140))),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_copy_changes_nothing(data: bytes, place: Path) -> None:
    before = sorted(place.parent.rglob("*"))
    with pytest.raises(CopyError):
        receive(data, place)
    assert sorted(place.parent.rglob("*")) == before
    assert (place.parent / "secret").read_text() == "old"


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "..", "../..", "a/../../..", "a/b/../../../secret", "../copied/../.."]
)
def test_links_that_lead_out_are_left_out_and_said(target: str, place: Path) -> None:
    data = made(("copied", D, ""), ("copied/a", S, "."), ("copied/l", S, target))
    (note,) = receive(data, place)
    assert "leads out of the copy" in note
    assert not os.path.lexists(place / "copy" / "l")


def test_no_chain_of_links_leads_out(place: Path) -> None:
    data = made(
        ("copied", D, ""), ("copied/d", D, ""), ("copied/d/up", S, ".."), ("copied/d/d", S, "../d"),
        ("copied/x", S, "d/up/d/up/../.."), ("copied/d/y", S, "../d/up/../../secret"),
        ("copied/d/z", S, "../d/up/d/z2"),
    )  # fmt: skip
    receive(data, place)
    top = (place / "copy").resolve()
    links = [each for each in top.rglob("*") if each.is_symlink()]
    assert {each.name for each in links} == {"up", "d", "z"}
    assert all(each.resolve().is_relative_to(top) for each in links)


def test_no_mode_gives_another_users_rights_and_devices_are_left_out(place: Path) -> None:
    data = made(("copied", D, ""), ("copied/f", F, ""), ("copied/pipe", tarfile.FIFOTYPE, ""))
    (note,) = receive(data, place)
    assert "pipe is no file" in note
    assert (place / "copy" / "f").stat().st_mode & 0o7777 == 0o777


def bomb(kind: bytes) -> bytes:
    info = tarfile.TarInfo("copied")
    info.type, info.size = kind, 1 << 40
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(4096)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_a_header_of_a_terabyte_is_not_read(kind: bytes, place: Path) -> None:
    with pytest.raises(CopyError, match="too long"):
        receive(bomb(kind), place)


def test_headers_without_an_end_are_refused(place: Path) -> None:
    one = tarfile.TarInfo("copied")
    one.type, one.size = tarfile.GNUTYPE_LONGNAME, 4
    with pytest.raises(CopyError):
        receive((one.tobuf() + b"abc\0".ljust(512, b"\0")) * 5000, place)


def is_directory(place: Path) -> None:
    (place / "copy").mkdir()
    (place / "copy" / "kept").write_text("1")


def is_file(place: Path) -> None:
    (place / "copy").write_text("1")


@pytest.mark.parametrize(
    ("prepare", "kind", "said"),
    [(is_file, D, "is no directory"), (is_directory, D, "--force replaces it")],
)
def test_what_is_there_is_not_replaced_unasked(
    prepare: Callable[[Path], None], kind: bytes, said: str, place: Path
) -> None:
    prepare(place)
    before = sorted(place.rglob("*"))
    (place / "copy" / "name").mkdir() if prepare is is_directory else None
    before = sorted(place.rglob("*"))
    with pytest.raises(CopyError, match=said):
        receive(made(("copied", kind, "")), place)
    assert sorted(place.rglob("*")) == before


def test_a_file_is_replaced_and_a_directory_with_force(place: Path) -> None:
    is_file(place)
    receive(made(("copied", F, "")), place)
    assert (place / "copy").read_text() == "x"
    (place / "into").mkdir()
    tree = made(("copied", D, ""), ("copied/new", F, ""))
    receive(tree, place, "into")
    (place / "into" / "name" / "old").write_text("")
    receive(tree, place, "into", replaces=True)
    assert [each.name for each in (place / "into" / "name").iterdir()] == ["new"]


def test_a_file_that_shrinks_while_it_is_read_leaves_no_end(place: Path) -> None:
    path = place / "shrinks"
    path.write_bytes(bytes(1 << 20))

    class Out(io.BytesIO):
        def write(self, data: bytes) -> int:  # type: ignore[override]
            os.truncate(path, 10)
            return super().write(data)

    out = Out()
    with pytest.raises(OSError, match="unexpected end of data"):
        send_tree(path, out, pytest.fail)
    with pytest.raises(CopyError):
        receive(out.getvalue(), place)


def test_it_can_be_read_by_python_3_8_and_imports_nothing_of_ours() -> None:
    text = Path(str(file_stream.__file__)).read_text()
    ast.parse(text, feature_version=(3, 8))
    assert "fairlead." not in "".join(line for line in text.splitlines() if "import" in line)
