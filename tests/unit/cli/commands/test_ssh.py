"""What `ssh-config` writes, and what it refuses to use."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fairlead.cli.records.members import MemberReference
from fairlead.cli.sessions.ssh_config import (
    SshFiles,
    config_text,
    include,
    include_line,
    is_included,
    parse_host,
    ssh_files,
    user_config,
)
from fairlead.input.errors import CliError


def test_names_of_hosts_are_jobs_members_and_namespaces() -> None:
    for name, expected in {
        "train.fairlead": (None, "train", None),
        "train": (None, "train", None),
        "17.fairlead": (None, "17", None),
        "worker-3.train.fairlead": ("worker-3", "train", None),
        "0.train.team-b.fairlead": ("0", "train", "team-b"),
    }.items():
        found = parse_host(name)
        member, job, space = expected
        assert (found.reference, found.namespace) == (MemberReference(job, member), space)


@pytest.mark.parametrize(
    "name", ["", ".fairlead", "a.b.c.d", "a'b", "-x", "a b", "../a", "a_b", "$(a)"]
)
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(CliError, match="does not name a job"):
        parse_host(name)


def prepared(files: SshFiles, key: bytes = b"secret") -> bytes:
    return files.prepare(lambda: key, lambda given: b"public of " + given + b"\n")


def test_the_key_is_made_once_and_what_follows_from_it_is_repaired(tmp_path: Path) -> None:
    files = ssh_files({"HOME": str(tmp_path)})
    assert prepared(files) == b"secret"
    assert prepared(files, b"other") == b"secret"
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.directory.stat().st_mode) == 0o700
    files.known_hosts.write_text("forged")
    prepared(files)
    assert files.known_hosts.read_bytes() == b"*.fairlead public of secret\n"
    assert sorted(each.name for each in files.directory.iterdir()) == ["host_key", "known_hosts"]


@pytest.mark.parametrize("fault", ["mode", "link", "directory", "owner"])
def test_a_key_that_others_may_have_laid_or_read_is_refused(tmp_path: Path, fault: str) -> None:
    files = SshFiles(tmp_path / "ssh")
    prepared(files)
    if fault == "mode":
        files.key.chmod(0o644)
    elif fault == "link":
        files.key.rename(tmp_path / "elsewhere")
        files.key.symlink_to(tmp_path / "elsewhere")
    elif fault == "directory":
        files.directory.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(files.key, 65534, 65534)
    else:
        pytest.skip("only root can act as another user")
    with pytest.raises(CliError, match="must be your own"):
        prepared(files)


def test_the_users_configuration_gets_one_line_first_and_keeps_the_rest(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "ssh_config"
    real.parent.mkdir()
    mine = b"Host *\n    User me\xff\n"
    real.write_bytes(mine)
    real.chmod(0o640)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").symlink_to(real)
    environment = {"HOME": str(tmp_path)}
    files, path = ssh_files(environment), user_config(environment)
    assert not is_included(path, files)
    include(path, files)
    assert real.read_bytes() == include_line(files).encode() + b"\n" + mine
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert (tmp_path / ".ssh" / "config").is_symlink()
    assert is_included(path, files)
    assert [each.name for each in real.parent.iterdir()] == ["ssh_config"]


def test_the_command_is_one_word_for_the_name_and_has_the_flags_that_were_given() -> None:
    text = config_text(SshFiles(Path("/home/a b/50%")), " -n team-b")
    assert " -m fairlead ssh-proxy -n team-b -- '%h'\n" in text
    assert 'UserKnownHostsFile "/home/a b/50%%/known_hosts"\n' in text
    assert text.splitlines()[1] == 'Host *.fairlead "!*\'*"'
