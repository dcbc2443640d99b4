"""The pods of the node and their addresses, as the kubelet says: never a watch of the API server.

From the kubelet's `/pods` by HTTP, or from a file that holds the same list.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec

from fairlead.api.names import JOB_NAME, TEAM
from fairlead.api.values.bounds import NAME_MAX
from fairlead.node.traffic.classes import Address
from fairlead.node.traffic.flows import FlowGroup
from fairlead.node.traffic.ruleset import NODE, AddressOwner

BYTES_MAX = 64 << 20
PODS_MAX = 1024
ADDRESSES_MAX = 16
_SECONDS_MAX = 10.0
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9-]{1,64}")
PHASES_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class PodSource:
    """Where the list is: a URL or a file, with files of a token and of certificates."""

    place: str
    token_file: str = ""
    ca_file: str = ""


class _Address(msgspec.Struct):
    ip: str = ""


class _Owner(msgspec.Struct):
    kind: str = ""


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    namespace: str
    uid: str
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    host_network: bool = False


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""
    pod_ips: list[_Address] | None = msgspec.field(name="podIPs", default=None)


class CountedPod(msgspec.Struct):
    """What is needed of a pod."""

    metadata: _Metadata
    spec: _Spec
    status: _Status = _Status()

    @property
    def owner(self) -> AddressOwner:
        """Whose its traffic is."""
        return AddressOwner(self.metadata.namespace, self.metadata.uid)

    @property
    def group(self) -> FlowGroup:
        """With which others its traffic is added up. Longer values are no labels'."""
        labels = self.metadata.labels or {}
        team, job = (labels.get(key, "")[:NAME_MAX] for key in (TEAM, JOB_NAME))
        return FlowGroup(self.metadata.namespace, team, job)


class _Pods(msgspec.Struct):
    items: list[CountedPod] | None = None


def read_pods(source: PodSource) -> list[CountedPod]:
    """Return the pods of the node; OSError."""
    try:
        found = msgspec.json.decode(_read(source), type=_Pods)
    except ValueError as error:
        raise OSError(f"{source.place} is no list of pods: {error}") from error
    return found.items or []


def _read(source: PodSource) -> bytes:
    url = urlsplit(source.place)
    if url.scheme not in ("http", "https"):
        with Path(source.place).open("rb") as file:
            return _bounded(file.read(BYTES_MAX + 1), source)
    return _bounded(_get(url, source), source)


def _get(url: SplitResult, source: PodSource) -> bytes:
    """Return what a server answers; OSError."""
    import http.client
    import ssl

    headers = {"Accept": "application/json"}
    if source.token_file:
        token = Path(source.token_file).read_text("utf-8").strip()
        headers["Authorization"] = f"Bearer {token}"
    host, port = url.hostname or "", url.port
    connection = http.client.HTTPConnection(host, port, timeout=_SECONDS_MAX)
    if url.scheme == "https":
        context = ssl.create_default_context(cafile=source.ca_file or None)
        connection = http.client.HTTPSConnection(host, port, timeout=_SECONDS_MAX, context=context)
    try:
        connection.request("GET", url.path or "/pods", headers=headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise OSError(f"{source.place} answers {response.status} {response.reason}")
        return response.read(BYTES_MAX + 1)
    except http.client.HTTPException as error:
        raise OSError(f"{source.place} does not speak HTTP: {error}") from error
    finally:
        connection.close()


def _bounded(data: bytes, source: PodSource) -> bytes:
    if len(data) > BYTES_MAX:
        raise OSError(f"{source.place} is larger than {BYTES_MAX >> 20} MiB")
    return data


def owners(
    pods: Iterable[CountedPod], own: Iterable[Address]
) -> tuple[dict[Address, AddressOwner], tuple[str, ...]]:
    """Return who is counted at each address, and what is not counted, with the reason.

    The machine's own addresses are the node's, whatever a pod says. Pods of the host's network,
    and pods that have ended, have none of their own. Of two pods with one address the one that
    is not being deleted has it, then the younger one.
    """
    found: dict[Address, AddressOwner] = dict.fromkeys(own, NODE)
    refused: list[str] = []
    counted = 0
    for pod in sorted(pods, key=_precedence, reverse=True):
        meta, addresses = pod.metadata, pod.status.pod_ips or []
        if pod.spec.host_network or pod.status.phase in PHASES_ENDED or not addresses:
            continue
        where = f"{meta.namespace}/{meta.name}"
        if not is_named_soundly(meta):
            refused.append(f"{where[:80]!r}: namespace or uid is none of Kubernetes'")
            continue
        if counted == PODS_MAX:
            refused.append(f"{where}: only {PODS_MAX:,} pods are counted")
            continue
        counted += 1
        for each in addresses[:ADDRESSES_MAX]:
            try:
                address = ipaddress.ip_address(each.ip)
            except ValueError:
                refused.append(f"{where}: {each.ip[:50]!r} is no address")
                continue
            if found.setdefault(address, pod.owner) == NODE:
                refused.append(f"{where}: {address} is the node's own")
    return found, tuple(sorted(refused))


def is_named_soundly(meta: _Metadata) -> bool:
    """True where namespace and uid can be parts of names: they are as Kubernetes makes them."""
    return bool(_NAMESPACE.fullmatch(meta.namespace) and _UID.fullmatch(meta.uid))


def _precedence(pod: CountedPod) -> tuple[bool, str, str]:
    meta = pod.metadata
    return meta.deletion_timestamp is None, meta.creation_timestamp or "", meta.uid
