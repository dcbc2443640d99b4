"""The cluster's authority, its certificates, its users with their tokens, and their kubeconfigs.

Users are tokens in a file of the API server, drawn once per cluster. `admin` may do everything,
`user` has the role `edit` in the namespace `default`, as a researcher would.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tools.cluster.layout import CONTROL_PLANE, Layout

VALID = datetime.timedelta(days=365)
#: Name -> (user, group) of those that are not nodes.
USERS = {
    "admin": ("admin", "system:masters"),
    "user": ("user", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-proxy": ("system:kube-proxy", ""),
    "coredns": ("system:coredns", ""),
}


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def write_private(path: Path, data: bytes | str) -> None:
    """Write a file that only its owner may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + VALID)
    )


def make_authority(directory: Path) -> Authority:
    """Make an authority and write its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fairlead cluster on one machine")])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, key)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    write_private(directory / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))
    return Authority(certificate, key)


def issue(
    authority: Authority, path: Path, subject: dict[x509.ObjectIdentifier, str], names: list[str]
) -> None:
    """Write PATH.crt and PATH.key, valid for the DNS names and addresses in `names`."""
    key = ec.generate_private_key(ec.SECP256R1())
    parts = x509.Name([x509.NameAttribute(kind, value) for kind, value in subject.items()])
    usages = x509.ExtendedKeyUsage(
        [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    )
    builder = (
        _builder(parts, key)
        .issuer_name(authority.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usages, critical=False)
    )
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False
        )
    certificate = builder.sign(authority.key, hashes.SHA256())
    write_private(path.with_suffix(".crt"), certificate.public_bytes(serialization.Encoding.PEM))
    write_private(path.with_suffix(".key"), _pem(key))


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def write_credentials(layout: Layout) -> None:
    """Write certificates, tokens and kubeconfigs of a cluster; those that exist are replaced."""
    pki = layout.directory / "pki"
    authority = make_authority(pki)
    service = "kubernetes.default.svc"
    serving = [
        "localhost", "127.0.0.1", "kubernetes", "kubernetes.default", service,
        f"{service}.cluster.local", layout.kubernetes_service, layout.address(CONTROL_PLANE),
    ]  # fmt: skip
    issue(authority, pki / "apiserver", {NameOID.COMMON_NAME: "kube-apiserver"}, serving)
    client = {
        NameOID.ORGANIZATION_NAME: "system:masters",
        NameOID.COMMON_NAME: "kube-apiserver-kubelet-client",
    }
    issue(authority, pki / "kubelet-client", client, [])
    write_private(pki / "service-accounts.key", _pem(ec.generate_private_key(ec.SECP256R1())))
    users = USERS | {node: (f"system:node:{node}", "system:nodes") for node in layout.nodes}
    tokens = {name: secrets.token_hex(16) for name in users}
    lines = [f'{tokens[name]},{user},{name},"{group}"\n' for name, (user, group) in users.items()]
    write_private(pki / "tokens.csv", "".join(lines))
    for name, token in tokens.items():
        write_private(kubeconfig_path(layout, name), kubeconfig(layout, name, token))


def kubeconfig_path(layout: Layout, user: str) -> Path:
    """Return where the kubeconfig of a user, a daemon or a node is."""
    if user == "admin":
        return layout.kubeconfig
    if user == "user":
        return layout.directory / "user.kubeconfig"
    return layout.directory / "pki" / f"{user}.kubeconfig"


def kubeconfig(layout: Layout, user: str, token: str) -> str:
    """Return a kubeconfig, as JSON."""
    context = {"cluster": "fairlead", "user": user}
    cluster = {"server": layout.api, "certificate-authority": str(layout.ca)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fairlead",
        "clusters": [{"name": "fairlead", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "fairlead", "context": context}],
    }
    return json.dumps(content, indent=1)
