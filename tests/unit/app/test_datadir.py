"""The data directory: nothing in it may come from another user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.app.datadir import TOKEN_FILE, prepare, read_token, size_bytes
from fairlead.input.errors import CliError, Code

NOBODY = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def refusal(data: Path) -> str:
    with pytest.raises(CliError) as caught:
        prepare(data)
    problem = caught.value.problems[0]
    assert problem.code is Code.DATA_UNSAFE
    return problem.message


def test_a_new_directory_and_one_of_our_own_are_fine(tmp_path: Path) -> None:
    data = tmp_path / "data"
    prepare(data)
    assert data.stat().st_mode & 0o777 == 0o700
    (data / "own-link").symlink_to(data / "store")
    (data / "broken-link").symlink_to(data / "absent")
    prepare(data)
    through = tmp_path / "link"
    through.symlink_to(data)
    prepare(through)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    assert refusal(data) == f"other users can write to {data} (mode {mode:04o})"
    data.chmod(0o755)
    prepare(data)


@pytest.mark.parametrize("part", ["store", "token", "store/1.log"])
def test_a_part_that_others_can_write_to_is_refused(tmp_path: Path, part: str) -> None:
    data = tmp_path / "data"
    prepare(data)
    place = data / part
    if not place.exists():
        place.write_text("planted")
    place.chmod(0o777)
    assert refusal(data) == f"other users can write to {place} (mode 0777)"


def test_a_directory_whose_parent_anybody_can_rename_it_in_is_refused(tmp_path: Path) -> None:
    parent = tmp_path / "open"
    parent.mkdir()
    parent.chmod(0o777)
    assert refusal(parent / "data") == f"other users can write to {parent} (mode 0777)"
    parent.chmod(0o1777)  # as /tmp: only the owner renames
    prepare(parent / "data")


@as_root
@pytest.mark.parametrize("part", ["", "token", "store/1.log"])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, part: str) -> None:
    data = tmp_path / "data"
    prepare(data)
    place = data / part if part else data
    if not place.exists():
        place.write_text("planted")
    os.chown(place, NOBODY, NOBODY)
    assert refusal(data).startswith(f"{place} belongs to user ")


@as_root
def test_a_link_that_another_user_planted_or_that_leads_to_one_is_refused(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    prepare(data)
    elsewhere.mkdir()
    link = data / "logs"
    link.symlink_to(elsewhere)
    prepare(data)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    assert refusal(data).startswith(f"{link} belongs to user ")
    link.unlink()
    link.symlink_to(elsewhere)
    os.chown(elsewhere, NOBODY, NOBODY)
    assert refusal(data).startswith(f"{link} belongs to user ")


def test_a_token_is_drawn_once_and_always_kept_from_others(tmp_path: Path) -> None:
    token = read_token(tmp_path)
    file = tmp_path / TOKEN_FILE
    assert len(token) >= 32
    for mode in (0o600, 0o644, 0o660):
        file.chmod(mode)
        assert read_token(tmp_path) == token
        assert file.stat().st_mode & 0o777 == 0o600


def test_the_size_counts_what_is_in_the_directory_and_nothing_behind_links(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for folder in (data / "store", other):
        folder.mkdir(parents=True)
    before = size_bytes(data)
    (data / "store/log-1").write_bytes(b"x" * 100_000)
    own = size_bytes(data)
    assert own - before >= 100_000
    (other / "large").write_bytes(b"x" * 1_000_000)
    (data / "link").symlink_to(other)
    (data / "circle").symlink_to(data)
    assert size_bytes(data) - own < 100_000
