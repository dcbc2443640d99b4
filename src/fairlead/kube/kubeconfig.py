"""Where a cluster is and who we are: kubeconfig files, read, merged, resolved and written.

The rules are kubectl's (kubernetes.io/docs, "Organizing cluster access using kubeconfig files"):
KUBECONFIG lists files, the first one to name a cluster, user, context or the current context wins,
files that do not exist are skipped, paths inside a file are relative to that file. What is not
supported (auth providers, passwords) is refused where it is used, never ignored: a request that
goes out under the wrong name is worse than none. Every error names file, place and remedy.
Credential plugins are read here and run by `fairlead.kube.exec_auth`.

Importing this module is cheap (the YAML parser is loaded when a file is read).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, cast

CONFIG_BYTES_MAX = 16 << 20


class KubeconfigError(Exception):
    """The configuration cannot be used; the message says what, where, and what to do."""


class KubeconfigSection(Enum):
    """The named lists of a kubeconfig, with the name of their inner record."""

    CLUSTERS = "cluster"
    USERS = "user"
    CONTEXTS = "context"

    @property
    def plural(self) -> str:
        """The key in the file."""
        return f"{self.value}s"


@dataclass(frozen=True, slots=True)
class NamedRecord:
    """One named record as it stands in a file; `place` is such as `/home/x/config: users[2]`."""

    name: str
    values: Mapping[str, Any]
    file: Path
    place: str


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """The merged files, in the order in which they were read."""

    files: tuple[Path, ...]
    current_context: str = ""
    entries: Mapping[KubeconfigSection, Mapping[str, NamedRecord]] = field(
        default_factory=dict[KubeconfigSection, Mapping[str, NamedRecord]]
    )

    def names(self, section: KubeconfigSection) -> tuple[str, ...]:
        """Return the names of a section, sorted."""
        return tuple(sorted(self.entries.get(section, {})))


class Interactive(Enum):
    """Whether a credential plugin may talk to a person."""

    NEVER = "Never"
    IF_AVAILABLE = "IfAvailable"
    ALWAYS = "Always"


#: Versions of the plugin protocol that are spoken here.
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
#: The extension of a cluster that is handed to plugins.
EXEC_EXTENSION = "client.authentication.k8s.io/exec"


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that prints credentials (kubernetes.io/docs, "client-go credential plugins")."""

    command: str
    api_version: str
    place: str
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    install_hint: str = ""
    interactive: Interactive = Interactive.IF_AVAILABLE
    gets_cluster: bool = False
    cluster_config: Any = None


@dataclass(frozen=True, slots=True)
class Connection:
    """All that a client needs to reach a server. Certificates are PEM bytes.

    `token_file` is read again now and then, and after a 401. `source` says where it all came
    from, for error messages.
    """

    server: str
    source: str
    namespace: str = "default"
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    certificate_authority: bytes = b""
    skip_server_verification: bool = False
    server_name: str = ""
    client_certificate: bytes = b""
    client_key: bytes = field(default=b"", repr=False)
    proxy_url: str = ""
    impersonate_user: str = ""
    impersonate_groups: tuple[str, ...] = ()
    impersonate_uid: str = ""
    #: Names and values; a name may come several times.
    impersonate_extra: tuple[tuple[str, str], ...] = ()
    exec_plugin: ExecPlugin | None = None


def config_paths(
    explicit: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[Path, ...]:
    """Return the files to read: the explicit one, else those in KUBECONFIG, else ~/.kube/config."""
    if explicit is not None:
        return (explicit,)
    variables = os.environ if environment is None else environment
    listed = [part for part in variables.get("KUBECONFIG", "").split(os.pathsep) if part]
    if listed:
        return tuple(Path(part).expanduser() for part in listed)
    return (Path(variables.get("HOME", "~")).expanduser() / ".kube" / "config",)


def load(paths: Sequence[Path]) -> Kubeconfig:
    """Read and merge files; KubeconfigError when none exists or one is malformed."""
    found = tuple(path for path in paths if os.path.lexists(path))
    if not found:
        names = ", ".join(str(path) for path in paths)
        raise KubeconfigError(
            f"no kubeconfig: {names} does not exist; start a cluster with `fairlead up`, "
            "or set KUBECONFIG to the file of an existing one"
        )
    current = ""
    merged: dict[KubeconfigSection, dict[str, NamedRecord]] = {
        section: {} for section in KubeconfigSection
    }
    for path in found:
        document = _read(path)
        current = current or _text(document, "current-context", f"{path}")
        for section in KubeconfigSection:
            for entry in _entries(document, section, path):
                merged[section].setdefault(entry.name, entry)
    return Kubeconfig(files=found, current_context=current, entries=merged)


def resolve(config: Kubeconfig, context: str = "") -> Connection:
    """Return the connection of a context, by default the current one; KubeconfigError if none."""
    files = ", ".join(str(file) for file in config.files)
    name = context or config.current_context
    if not name:
        raise KubeconfigError(
            f"{files}: no current-context is set; choose one with `--context NAME` or "
            f"`kubectl config use-context NAME`; {_accepted(config, KubeconfigSection.CONTEXTS)}"
        )
    chosen = _find(
        config, KubeconfigSection.CONTEXTS, name, "--context" if context else "current-context"
    )
    cluster_name = _text(chosen.values, "cluster", chosen.place)
    user_name = _text(chosen.values, "user", chosen.place)
    cluster = _find(config, KubeconfigSection.CLUSTERS, cluster_name, f"{chosen.place}.cluster")
    user = (
        _find(config, KubeconfigSection.USERS, user_name, f"{chosen.place}.user")
        if user_name
        else None
    )
    server = _text(cluster.values, "server", cluster.place).rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise KubeconfigError(
            f"{cluster.place}.server: want a URL such as https://host:6443, got '{server}'"
        )
    return Connection(
        server=server,
        source=f"context '{name}' of {files}",
        namespace=_text(chosen.values, "namespace", chosen.place) or "default",
        certificate_authority=_bytes(cluster, "certificate-authority"),
        skip_server_verification=cluster.values.get("insecure-skip-tls-verify") is True,
        server_name=_text(cluster.values, "tls-server-name", cluster.place),
        proxy_url=_proxy(cluster),
        exec_plugin=_exec_plugin(user, cluster),
        **_credentials(user),
    )


def load_connection(
    context: str = "",
    *,
    path: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Connection:
    """Return the connection that kubectl would use here; KubeconfigError if there is none."""
    return resolve(load(config_paths(path, environment)), context)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise KubeconfigError(f"{path}: larger than {CONFIG_BYTES_MAX} bytes; no kubeconfig")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise KubeconfigError(
            f"{path}: cannot be read: {error.strerror}; check the path and its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise KubeconfigError(
            f"{path}: byte {error.start} is not UTF-8; a kubeconfig is a text file"
        ) from error
    document: object = _parse(text, path)
    document = {} if document is None else document
    return _mapping(document, f"{path}", "a mapping with clusters, users and contexts")


def _parse(text: str, path: Path) -> object:
    if text.startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):  # YAML begins so, too; and it says what is wrong
            pass
    from fairlead.input.plain import UnreadableText, yaml_document  # loads what reads YAML

    try:
        return yaml_document(text)
    except UnreadableText as error:
        raise KubeconfigError(f"{path}: {error}") from error


def _entries(
    document: Mapping[str, Any], section: KubeconfigSection, path: Path
) -> list[NamedRecord]:
    listed: object = document.get(section.plural)
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise KubeconfigError(
            f"{path}: {section.plural}: want a list, got a {type(listed).__name__}"
        )
    out: list[NamedRecord] = []
    for number, item in enumerate(cast("list[object]", listed)):
        place = f"{path}: {section.plural}[{number}]"
        record = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        name: object = record.get("name")
        values: object = record.get(section.value) or {}
        if not isinstance(name, str) or not isinstance(values, dict):
            raise KubeconfigError(
                f"{place}: want a mapping with 'name' (text) and '{section.value}' (a mapping)"
            )
        inner = f"{place}.{section.value}"
        out.append(NamedRecord(name, cast("dict[str, Any]", values), path, inner))
    return out


def _find(config: Kubeconfig, section: KubeconfigSection, name: str, place: str) -> NamedRecord:
    entry = config.entries.get(section, {}).get(name)
    if entry is not None:
        return entry
    raise KubeconfigError(
        f"{place}: no {section.value} is named '{name}'; {_accepted(config, section)}"
    )


def _accepted(config: Kubeconfig, section: KubeconfigSection) -> str:
    names = config.names(section)
    files = ", ".join(str(file) for file in config.files)
    if not names:
        return f"{files} has no {section.plural}"
    return f"{files} has: {', '.join(names)}"


def _text(values: Mapping[str, Any], key: str, place: str) -> str:
    value: object = values.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise KubeconfigError(f"{place}.{key}: want text, got a {type(value).__name__}")
    return value


def _bytes(entry: NamedRecord, key: str) -> bytes:
    """Return `key-data` (base64) or the content of the file `key`; b"" when neither is set."""
    data = _text(entry.values, f"{key}-data", entry.place)
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise KubeconfigError(f"{entry.place}.{key}-data: not base64: {error}") from error
    name = _text(entry.values, key, entry.place)
    if not name:
        return b""
    path = entry.file.parent / name
    try:
        return path.read_bytes()
    except OSError as error:
        raise KubeconfigError(
            f"{entry.place}.{key}: {path} cannot be read: {error.strerror}; correct the path, "
            "or log in to the cluster again"
        ) from error


def _proxy(cluster: NamedRecord) -> str:
    proxy = _text(cluster.values, "proxy-url", cluster.place)
    if proxy and not proxy.startswith(("http://", "https://")):
        raise KubeconfigError(
            f"{cluster.place}.proxy-url: want an http or https proxy, got '{proxy}'"
        )
    return proxy


_REFUSED = {
    "auth-provider": "uses an auth provider, which Kubernetes itself removed in 1.26",
    "username": "uses a password, which Kubernetes itself removed in 1.19",
    "password": "uses a password, which Kubernetes itself removed in 1.19",
}


#: Where a user has one of these, the plugin is not run (client-go
#: `plugin/pkg/client/auth/exec/exec.go`, UpdateTransportConfig).
_BEFORE_PLUGIN = ("token", "tokenFile", "client-certificate", "client-certificate-data")


def _credentials(user: NamedRecord | None) -> dict[str, Any]:
    """Return the keyword arguments of Connection that come from a user; refuse what we can't do."""
    if user is None:
        return {}
    for key, why in _REFUSED.items():
        if user.values.get(key):
            raise KubeconfigError(
                f"{user.place}.{key}: user '{user.name}' {why}; use a token instead: put the "
                "output of `kubectl create token SERVICEACCOUNT` under user.token, or name a file "
                "in user.tokenFile"
            )
    token_file = _text(user.values, "tokenFile", user.place)
    certificate = _bytes(user, "client-certificate")
    key_bytes = _bytes(user, "client-key")
    if bool(certificate) != bool(key_bytes):
        raise KubeconfigError(
            f"{user.place}: client-certificate and client-key go together, but only one is set"
        )
    return {
        "token": _text(user.values, "token", user.place),
        "token_file": user.file.parent / token_file if token_file else None,
        "client_certificate": certificate,
        "client_key": key_bytes,
        **_impersonation(user),
    }


def _impersonation(user: NamedRecord) -> dict[str, Any]:
    """Return the keyword arguments of Connection that say on whose behalf requests are made."""
    values, place = user.values, user.place
    extra = _mapping(values.get("as-user-extra") or {}, f"{place}.as-user-extra")
    out = {
        "impersonate_user": _text(values, "as", place),
        "impersonate_groups": tuple(map(str, _listed(values, "as-groups", place))),
        "impersonate_uid": _text(values, "as-uid", place),
        "impersonate_extra": tuple(
            (name, str(value))
            for name in extra
            for value in _listed(extra, name, f"{place}.as-user-extra")
        ),
    }
    if any(out.values()) and not out["impersonate_user"]:
        raise KubeconfigError(f"{place}: as-groups, as-uid and as-user-extra need as, the user")
    return out


def _exec_plugin(user: NamedRecord | None, cluster: NamedRecord) -> ExecPlugin | None:
    """Return the user's credential plugin; None without one, or where others go before it."""
    found: object = user.values.get("exec") if user is not None else None
    if user is None or not found or any(user.values.get(key) for key in _BEFORE_PLUGIN):
        return None
    place = f"{user.place}.exec"
    values = _mapping(found, place)
    command = _text(values, "command", place)
    if not command:
        raise KubeconfigError(f"{place}.command: want the name of a program, got nothing")
    version = _text(values, "apiVersion", place)
    if version not in EXEC_VERSIONS:
        raise KubeconfigError(
            f"{place}.apiVersion: want {' or '.join(EXEC_VERSIONS)}, got '{version}'; update the "
            "tool that wrote this file and let it write it again"
        )
    mode = _text(values, "interactiveMode", place) or Interactive.IF_AVAILABLE.value
    if mode not in {each.value for each in Interactive}:
        raise KubeconfigError(
            f"{place}.interactiveMode: want {', '.join(i.value for i in Interactive)}, got '{mode}'"
        )
    if os.sep in command and not Path(command).is_absolute():
        command = str(user.file.absolute().parent / command)
    return ExecPlugin(
        command=command,
        api_version=version,
        place=place,
        arguments=tuple(str(each) for each in _listed(values, "args", place)),
        environment=tuple(_variables(values, place)),
        install_hint=_text(values, "installHint", place),
        interactive=Interactive(mode),
        gets_cluster=values.get("provideClusterInfo") is True,
        cluster_config=_exec_config(cluster),
    )


def _listed(values: Mapping[str, Any], key: str, place: str) -> list[Any]:
    listed: object = values.get(key) or []
    if not isinstance(listed, list):
        raise KubeconfigError(f"{place}.{key}: want a list, got a {type(listed).__name__}")
    return cast("list[Any]", listed)


def _mapping(found: object, place: str, wanted: str = "a mapping") -> dict[str, Any]:
    if not isinstance(found, dict):
        raise KubeconfigError(f"{place}: want {wanted}, got a {type(found).__name__}")
    return cast("dict[str, Any]", found)


def _variables(values: Mapping[str, Any], place: str) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for number, item in enumerate(_listed(values, "env", place)):
        record = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        name = _text(record, "name", f"{place}.env[{number}]")
        if not name:
            raise KubeconfigError(f"{place}.env[{number}]: want a mapping with name and value")
        out.append((name, _text(record, "value", f"{place}.env[{number}]")))
    return out


def _exec_config(cluster: NamedRecord) -> Any:
    for item in _listed(cluster.values, "extensions", cluster.place):
        if isinstance(item, dict):
            extension = cast("dict[str, Any]", item)
            if extension.get("name") == EXEC_EXTENSION:
                return extension.get("extension")
    return None


def write_kubeconfig(
    path: Path, server: str, token: str, context: str, *, authority: bytes = b"",
    namespace: str = "default",
) -> None:  # fmt: skip
    """Write a kubeconfig with one cluster, user and context, all named `context`, in JSON: that is
    YAML as well, and read without loading what reads YAML.

    `authority` is who signed the server's certificate, in PEM. The file appears whole or not at
    all, and only its owner may read it (0600). KubeconfigError when the directory does not exist
    or cannot be written.
    """
    cluster = {"server": server}
    if authority:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    inside = {"cluster": context, "user": context, "namespace": namespace}
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": context,
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": context, "user": {"token": token}}],
        "contexts": [{"name": context, "context": inside}],
    }  # fmt: skip
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # a left-over of a crashed process with our number may be somebody's link: never follow it
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise KubeconfigError(
            f"{path}: cannot be written: {error.strerror}; choose another place with --data"
        ) from error
