"""What `fairlead up` was asked for, and what the data directory remembers of the last time.

Nodes, profile, address and limits of logs are kept in `<data>/cluster.json`, so that a plain
`fairlead up` continues the cluster as it was; what is given on the command line wins and is
remembered in its turn.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from fairlead.app.configuration.controller_settings import ControllerSettings, load_settings
from fairlead.app.run_file import CLUSTER_FILE, write_private
from fairlead.input.errors import CliError, Code, fail

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7443
#: The warning of a cluster that listens beyond loopback.
OPEN_ADDRESS = "other machines can reach this cluster: its token runs programs here, as this user"
NODES_MAX = 100_000
GPUS_MAX = 1_000
_FILE_BYTES_MAX = 64 * 1024


class LogSettings(msgspec.Struct, frozen=True, rename="camel"):
    """How much of the logs of this machine's pods is kept; see `embedded.local.logfiles`."""

    file_mib: int = 50
    files: int = 5
    days: int = 30
    total_gib: int = 20


@dataclass(frozen=True, slots=True)
class AskedLogs:
    """The flags of `up` about logs; None where one was not given."""

    file_mib: int | None = None
    files: int | None = None
    days: int | None = None
    total_gib: int | None = None

    def over(self, before: LogSettings) -> LogSettings:
        """Return what is asked for, the rest as it was."""
        given = {name: value for name in self.__slots__ if (value := getattr(self, name))}
        return msgspec.structs.replace(before, **given)


@dataclass(frozen=True, slots=True)
class UpFlags:
    """The flags of `up`; None where one was not given."""

    nodes: int | None = None
    gpus: int | None = None
    profile: str | None = None
    listen: str | None = None
    logs: AskedLogs = AskedLogs()
    settings_file: str | None = None
    serves_beta: bool | None = None


class Remembered(msgspec.Struct, frozen=True, rename="camel"):
    """What the data directory keeps between two starts."""

    nodes: int = 0
    gpus: int = 8
    profile: str = ""
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    logs: LogSettings = LogSettings()
    settings_file: str = ""
    serves_beta: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What the cluster runs with.

    `port` 0 takes a free one; a busy port that was not asked for may be
    replaced by a free one. `serves_beta`: the API server has v1beta1 of our kinds, too.
    """

    data: Path
    nodes: int
    gpus: int
    profile: str
    host: str
    port: int
    is_port_asked: bool
    logs: LogSettings = field(default_factory=LogSettings)
    settings_file: str = ""
    controllers: ControllerSettings = field(default_factory=ControllerSettings)
    serves_beta: bool = False

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach the address."""
        return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback


def parse_listen(text: str, option: str = "--listen") -> tuple[str, int]:
    """Return (host, port) of `HOST:PORT`, `:PORT`, `PORT` or `[IPV6]:PORT`; CliError E707."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or DEFAULT_HOST
    if not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise fail(
            Code.LISTEN_ADDRESS, f"{option}: '{text}' has no port from 0 to 65535",
            detail=("accepted: HOST:PORT, [IPV6]:PORT or PORT; port 0 takes a free one",),
            help=(f"{option} {DEFAULT_HOST}:{DEFAULT_PORT}",),
        )  # fmt: skip
    try:
        if host != "localhost":
            ipaddress.ip_address(host)
    except ValueError as error:
        raise fail(
            Code.LISTEN_ADDRESS, f"{option}: '{host}' is not an IP address of this machine",
            help=(f"{option} {DEFAULT_HOST}:{port}",),
        ) from error  # fmt: skip
    return host, int(port)


def settle(data: Path, asked: UpFlags) -> Settings:
    """Return what to run with: what was asked, else what is remembered, else the defaults.

    CliError with all mistakes of the settings file.
    """
    before = _read(data)
    host, port, is_asked = before.host, before.port, False
    if asked.listen is not None:
        host, port = parse_listen(asked.listen)
        is_asked = port != 0
    file = before.settings_file if asked.settings_file is None else asked.settings_file
    return Settings(
        data=data,
        nodes=before.nodes if asked.nodes is None else asked.nodes,
        gpus=before.gpus if asked.gpus is None else asked.gpus,
        profile=before.profile if asked.profile is None else asked.profile,
        host=host,
        port=port,
        is_port_asked=is_asked,
        logs=asked.logs.over(before.logs),
        settings_file=file,
        controllers=_load(file, is_remembered=asked.settings_file is None),
        serves_beta=before.serves_beta if asked.serves_beta is None else asked.serves_beta,
    )


def _load(file: str, *, is_remembered: bool) -> ControllerSettings:
    """Read a settings file; the error of one that is remembered says how to do without."""
    try:
        return load_settings(file)
    except CliError as error:
        first, *rest = error.problems
        if not is_remembered or first.code is not Code.MANIFEST_UNREADABLE:
            raise
        note = ("it is remembered from an earlier start of this cluster",)
        help_ = ("fairlead up --settings FILE names another, --settings '' takes the defaults",)
        noted = replace(first, detail=(*first.detail, *note), help=(*first.help, *help_))
        raise CliError((noted, *rest)) from error


def remember(settings: Settings, port: int) -> None:
    """Keep the settings for the next start; `port` is the one that was taken in the end."""
    kept = Remembered(
        settings.nodes, settings.gpus, settings.profile, settings.host, port, settings.logs,
        settings_file=settings.settings_file, serves_beta=settings.serves_beta,
    )  # fmt: skip
    write_private(settings.data / CLUSTER_FILE, msgspec.json.encode(kept))


def _read(data: Path) -> Remembered:
    path = data / CLUSTER_FILE
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            return Remembered()
        return msgspec.json.decode(path.read_bytes(), type=Remembered)
    except (OSError, ValueError):
        return Remembered()


def resolve_profile(name: str) -> str:
    """Return a profile as it is remembered: a file's absolute path, or a built-in one's name."""
    if os.sep in name or name.endswith((".yaml", ".yml")):
        return str(Path(name).expanduser().absolute())
    return name
