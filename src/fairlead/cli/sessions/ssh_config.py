"""What OpenSSH's client needs to know of `*.fairlead`: a part of its configuration, and a host key.

The client starts `fairlead ssh-proxy` and speaks with it through pipes, so no third process
can take part and the key protects nothing; it is there since the protocol has one, and kept, with
the line of known_hosts that follows from it, so that no client ever asks. Both are in a directory
of mode 0700 of the user's own. Design: docs/design/interactive.md.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fairlead.app.run_file import write_private
from fairlead.cli.records.members import MemberReference
from fairlead.input.errors import Code, fail, writing

SUFFIX = ".fairlead"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_KEY_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class SshHost:
    """What a host's name means; namespace None: the usual one."""

    host: str
    reference: MemberReference
    namespace: str | None


def parse_host(host: str) -> SshHost:
    """Return what JOB, MEMBER.JOB or MEMBER.JOB.NAMESPACE names, with or without .fairlead."""
    labels = host.removesuffix(SUFFIX).split(".")
    if not (1 <= len(labels) <= 3 and all(_LABEL.fullmatch(each) for each in labels)):
        raise fail(
            Code.BAD_VALUE, f"'{host}' does not name a job or a member",
            help=(f"JOB{SUFFIX}, MEMBER.JOB{SUFFIX} or MEMBER.JOB.NAMESPACE{SUFFIX}, such as "
                  f"worker-0.train-1{SUFFIX}",),
        )  # fmt: skip
    member, job = (None, labels[0]) if len(labels) == 1 else (labels[0], labels[1])
    return SshHost(host, MemberReference(job, member), labels[2] if len(labels) == 3 else None)


@dataclass(frozen=True, slots=True)
class SshFiles:
    """The directory of a user's own in which all of it is."""

    directory: Path

    @property
    def key(self) -> Path:
        """The host key."""
        return self.directory / "host_key"

    @property
    def known_hosts(self) -> Path:
        """The line by which the client knows it."""
        return self.directory / "known_hosts"

    @property
    def config(self) -> Path:
        """What the user's configuration includes."""
        return self.directory / "config"

    def prepare(self, new_key: Callable[[], bytes], public: Callable[[bytes], bytes]) -> bytes:
        """Return the private host key, made if there is none, with its line in known_hosts.

        `public` returns the public half in OpenSSH's form. CliError where a file is not the user's
        own alone.
        """
        with writing(self.directory):
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_own(self.directory, stat.S_ISDIR, 0o022)
        if not self.key.exists() and not self.key.is_symlink():
            self._make(self.key, new_key())
        _check_own(self.key, stat.S_ISREG, 0o077)
        try:
            key = self.key.read_bytes()[:_KEY_BYTES_MAX]
            line = f"*{SUFFIX} ".encode() + public(key)
        except (OSError, ValueError) as error:
            raise fail(
                Code.BAD_VALUE, f"the host key {self.key} cannot be read: {error}",
                help=("remove it; the next connection makes a new one",),
            ) from error  # fmt: skip
        with suppress(FileNotFoundError):
            if self.known_hosts.read_bytes() == line:
                return key
        with writing(self.known_hosts):
            write_private(self.known_hosts, line)
        return key

    def write_config(self, text: str) -> None:
        """Write what is included."""
        with writing(self.config):
            write_private(self.config, text.encode())

    def _make(self, path: Path, data: bytes) -> None:
        """Make a file of mode 0600 whole; one that another process made meanwhile stays."""
        beside = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with writing(path):
            try:
                with open(os.open(beside, flags, 0o600), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                with suppress(FileExistsError):
                    os.link(beside, path)
            finally:
                beside.unlink(missing_ok=True)


def ssh_files(environment: Mapping[str, str]) -> SshFiles:
    """Return the files below $XDG_CONFIG_HOME, else ~/.config."""
    base = environment.get("XDG_CONFIG_HOME") or ""
    home = Path(environment.get("HOME") or Path.home())
    return SshFiles((Path(base) if base.startswith("/") else home / ".config") / "fairlead" / "ssh")


def _check_own(path: Path, is_kind: Callable[[int], bool], closed: int) -> None:
    """Refuse what is a link, another user's, or open to others; CliError."""
    found = path.lstat()
    if is_kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & closed:
        return
    raise fail(
        Code.BAD_VALUE, f"{path} must be your own, no link, and closed to others",
        help=(f"look at what it is; then: chmod go-rwx {shlex.quote(str(path))}",),
    )  # fmt: skip


def config_text(files: SshFiles, flags: str) -> str:
    """Return the part of OpenSSH's configuration. `flags` are those of `ssh-proxy`, quoted.

    Clients before OpenSSH 9.6 put any name of a host into the command's text. The quotes make it
    one word, and a name that has a quote itself is excluded.
    """
    program = f"{shlex.quote(sys.executable)} -m fairlead ssh-proxy{flags}".replace("%", "%%")
    known = str(files.known_hosts).replace("%", "%%")
    return f"""# Written by fairlead ssh-config; what is changed here is lost.
Host *{SUFFIX} "!*'*"
    ProxyCommand {program} -- '%h'
    UserKnownHostsFile "{known}"
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    HostKeyAlgorithms ssh-ed25519
    UpdateHostKeys no
    CheckHostIP no
    PubkeyAuthentication no
"""


def include_line(files: SshFiles) -> str:
    """Return the line of the user's configuration that includes it."""
    return f'Include "{files.config}"'


def user_config(environment: Mapping[str, str]) -> Path:
    """Return the user's own configuration of OpenSSH's client, links followed."""
    home = Path(environment.get("HOME") or Path.home())
    return (home / ".ssh" / "config").resolve()


def is_included(path: Path, files: SshFiles) -> bool:
    """Say whether the user's configuration has the line already; CliError."""
    return any(line.strip() == include_line(files) for line in _text(path).splitlines())


def include(path: Path, files: SshFiles) -> None:
    """Put the line before all that the user wrote, which stays byte for byte; CliError.

    It must be the first: after a `Host` it would hold for that host alone.
    """
    before = _text(path)
    with writing(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
        beside = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(f"{include_line(files)}\n{before}".encode(errors="surrogateescape"))
                os.fchmod(file.fileno(), mode)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="surrogateescape")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise fail(Code.BAD_VALUE, f"{path} cannot be read: {error.strerror}") from error
