"""Credential plugins: the program that a kubeconfig names prints a token or a certificate.

The protocol is that of kubernetes.io/docs, "Authentication", section "client-go credential
plugins", versions v1 and v1beta1: the program gets KUBERNETES_EXEC_INFO and answers with an
ExecCredential on stdout. What it answered is kept until it expires or the server says 401; while it
runs, everybody waits for the one run. A plugin that may talk to a person has our terminal.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlead.api.values.times import parse_time
from fairlead.kube.kubeconfig import Connection, ExecPlugin, Interactive, KubeconfigError

OUTPUT_BYTES_MAX = 1 << 20
RUN_SECONDS_MAX = 60.0
#: A person at a log-in prompt is given longer.
INTERACTIVE_SECONDS_MAX = 600.0
STDERR_LINES_SHOWN = 5
#: A credential is replaced this long before it expires, so that none expires on its way.
EARLY_SECONDS = 10.0


class PluginError(KubeconfigError):
    """The plugin gave no credential; the message says which one, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What a plugin answered: a token, a certificate with its key, or both. PEM texts."""

    token: str = field(default="", repr=False)
    certificate: str = ""
    key: str = field(default="", repr=False)
    #: Seconds since the epoch; None: until the server refuses it.
    expires_at: float | None = None

    def is_good(self, now: float) -> bool:
        """True while it need not be replaced."""
        return self.expires_at is None or now < self.expires_at - EARLY_SECONDS


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""
    status: _Status | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """One run of a plugin: what is started, and for how long it may take."""

    plugin: ExecPlugin
    variables: Mapping[str, str]
    is_interactive: bool

    @property
    def command(self) -> tuple[str, ...]:
        return (self.plugin.command, *self.plugin.arguments)

    @property
    def seconds_max(self) -> float:
        return INTERACTIVE_SECONDS_MAX if self.is_interactive else RUN_SECONDS_MAX


def run_plugin(connection: Connection) -> Credential:
    """Run the connection's plugin and return what it answered; PluginError. Blocks.

    Not for a thread that runs an event loop.
    """
    return asyncio.run(run_plugin_beside(connection))


async def run_plugin_beside(connection: Connection) -> Credential:
    """Do what `run_plugin` does without holding up the event loop; PluginError."""
    asked = _ask(connection)
    try:
        process = await asyncio.create_subprocess_exec(
            *asked.command,
            env=dict(asked.variables),
            stdin=None if asked.is_interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if asked.is_interactive else subprocess.PIPE,
        )
    except OSError as error:
        raise _not_started(asked.plugin, error) from error
    try:
        async with asyncio.timeout(asked.seconds_max):
            output, said = await process.communicate()
    except TimeoutError as error:
        raise _too_slow(asked) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    _check_end(asked, process.returncode or 0, output, said or b"")
    return _parse(asked.plugin, output)


def _ask(connection: Connection) -> _Asked:
    plugin = connection.exec_plugin
    assert plugin is not None, "only connections with a plugin are asked"
    has_terminal = sys.stdin is not None and sys.stdin.isatty()
    is_interactive = has_terminal and plugin.interactive is not Interactive.NEVER
    if plugin.interactive is Interactive.ALWAYS and not has_terminal:
        raise PluginError(
            f"{plugin.place}: {plugin.command} wants to talk to a person (interactiveMode: "
            "Always), and there is no terminal here; use a token or another plugin"
        )
    info = json.dumps(_exec_info(connection, plugin, is_interactive=is_interactive))
    variables = {**os.environ, **dict(plugin.environment), "KUBERNETES_EXEC_INFO": info}
    return _Asked(plugin, variables, is_interactive)


def _exec_info(
    connection: Connection, plugin: ExecPlugin, *, is_interactive: bool
) -> dict[str, Any]:
    spec: dict[str, Any] = {"interactive": is_interactive}
    if plugin.gets_cluster:
        authority = base64.b64encode(connection.certificate_authority).decode()
        cluster = {
            "server": connection.server,
            "tls-server-name": connection.server_name,
            "insecure-skip-tls-verify": connection.skip_server_verification,
            "certificate-authority-data": authority,
            "proxy-url": connection.proxy_url,
            "config": plugin.cluster_config,
        }
        spec["cluster"] = {key: value for key, value in cluster.items() if value}
    return {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}


def _too_slow(asked: _Asked) -> PluginError:
    return PluginError(
        f"{asked.plugin.place}: {asked.plugin.command} did not answer within "
        f"{asked.seconds_max:g} s; run `{' '.join(asked.command)}` to see why"
    )


def _not_started(plugin: ExecPlugin, error: OSError) -> PluginError:
    who = f"{plugin.place}: {plugin.command}"
    if not isinstance(error, FileNotFoundError):
        return PluginError(f"{who} cannot be run: {error.strerror}")
    hint = plugin.install_hint.strip()
    return PluginError(
        f"{who} is not installed, or not in PATH"
        + (f"; the kubeconfig says: {hint}" if hint else "")
    )


def _check_end(asked: _Asked, code: int, output: bytes, said: bytes) -> None:
    who = f"{asked.plugin.place}: {asked.plugin.command}"
    if code != 0:
        lines = said.decode(errors="replace").strip().splitlines()
        text = " / ".join(lines[-STDERR_LINES_SHOWN:])
        raise PluginError(
            f"{who} ended with {code}"
            + (f": {text}" if text else "")
            + f"; run `{' '.join(asked.command)}` to see why, or log in to the cluster again"
        )
    if len(output) > OUTPUT_BYTES_MAX:
        raise PluginError(
            f"{who} printed more than {OUTPUT_BYTES_MAX} bytes; want one ExecCredential"
        )


def _parse(plugin: ExecPlugin, output: bytes) -> Credential:
    who = f"{plugin.place}: {plugin.command}"
    try:
        answer = msgspec.json.decode(output, type=_ExecCredential)
    except ValueError as error:
        raise PluginError(f"{who} did not print an ExecCredential as JSON: {error}") from error
    if answer.kind != "ExecCredential" or answer.api_version != plugin.api_version:
        raise PluginError(
            f"{who}: want an ExecCredential of {plugin.api_version}, got "
            f"'{answer.kind}' of '{answer.api_version}'; correct apiVersion in the kubeconfig, or "
            "update the plugin"
        )
    status = answer.status
    if status is None:
        raise PluginError(f"{who} printed an ExecCredential without status")
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise PluginError(
            f"{who}: clientCertificateData and clientKeyData go together, but only one is set"
        )
    if not status.token and not status.client_certificate_data:
        raise PluginError(f"{who} printed neither a token nor a client certificate")
    text = status.expiration_timestamp
    try:
        expires_at = None if text is None else parse_time(text)
    except ValueError as error:
        raise PluginError(f"{who}: expirationTimestamp '{text}' is no RFC 3339 time") from error
    return Credential(
        status.token, status.client_certificate_data, status.client_key_data, expires_at
    )


class PluginCredentials:
    """The current credential of a connection; many may ask, one run answers them all."""

    def __init__(
        self,
        connection: Connection,
        now: Callable[[], float],
        *,
        run: Callable[[Connection], Awaitable[Credential]] = run_plugin_beside,
    ) -> None:
        self._connection = connection
        self._now = now
        self._run = run
        self._lock = asyncio.Lock()
        self._current: Credential | None = None

    async def get(self, *, refused: Credential | None = None) -> Credential:
        """Return a credential that is good; another one than `refused`. PluginError.

        Who comes back with a credential that was replaced meanwhile gets the new one.
        """
        async with self._lock:
            current = self._current
            if current is None or current is refused or not current.is_good(self._now()):
                current = await self._run(self._connection)
                self._current = current
            return current
