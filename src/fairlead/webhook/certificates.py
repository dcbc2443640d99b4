"""The webhook's own authority and serving certificate: what they are, and when they change.

Each serving certificate has an authority of its own, whose key is thrown away once it has signed:
there is no key to steal and sign with later. The price is that a new certificate
needs a new authority, which API servers must know before they meet the certificate, and that they
must know the old one until no replica shows what it has signed. Hence three steps, a while apart:

    BEGIN     make the next pair and put its authority beside the old one in the bundle
    PROMOTE   serve the next pair
    SETTLE    take the old authority out

All of it is kept in one Secret with cert-manager's fields (ca.crt, tls.crt, tls.key; next.crt and
next.key only between BEGIN and PROMOTE), so that any replica can take the next step. Nothing here
waits or writes: `next_step` is a function of the Secret, of instants and of what was observed.

Sources: RFC 5280; kubernetes.io/docs, "TLS Secrets" and "Contacting the webhook".
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA, CRT, KEY, NEXT_CRT, NEXT_KEY = "ca.crt", "tls.crt", "tls.key", "next.crt", "next.key"
TYPE = "kubernetes.io/tls"
#: A bundle of more is not ours: two at a time, and what an interrupted rotation may leave.
AUTHORITIES_MAX = 4
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Times:
    """How long certificates live, and how much time the steps of a rotation leave to others."""

    life_seconds: float = 90 * _DAY_SECONDS
    #: Part of the life after which the next pair is made.
    renew_at: float = 0.6
    #: Between two steps: API servers learn of bundles, and replicas of pairs, within it.
    overlap_seconds: float = 600.0
    #: How far clocks of machines may differ: certificates begin that much earlier.
    skew_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key, in PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Material:
    """What the Secret holds. `bundle` is PEM, one authority after the other."""

    bundle: bytes
    serving: Pair
    next: Pair | None = None


class Step(Enum):
    """What is to be done with the Secret now."""

    KEEP = "keep"
    MAKE = "make"  # there is nothing that could be used
    BEGIN = "begin"
    PROMOTE = "promote"
    SETTLE = "settle"


class BadCertificate(Exception):
    """Something that cannot be served; the message says what is wrong with it."""


# Making


def make(
    hosts: Sequence[str], *, now: float, times: Times, name: str = "fairlead-webhook"
) -> tuple[bytes, Pair]:
    """Return a new authority, in PEM, and a pair for `hosts` that it has signed.

    The authority's key is not kept. Hosts are names or addresses; `name` is who is certified.
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Authorities of two rotations stand in one bundle: different names keep them apart.
    issuer = _name(f"{name}-ca {serial:x}"[:64])
    life = (_instant(now - times.skew_seconds), _instant(now + times.life_seconds))
    authority = (
        _builder(issuer, life)
        .subject_name(issuer)
        .public_key(authority_key.public_key())
        .serial_number(serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        # RFC 5280, 4.2.1.2; clients that verify strictly (Python 3.13) insist on it.
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _builder(issuer, life)
        .subject_name(_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return _pem(authority), Pair(_pem(certificate), private)


def _builder(issuer: x509.Name, life: tuple[datetime, datetime]) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .not_valid_before(life[0])
        .not_valid_after(life[1])
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=False, key_encipherment=False,
        content_commitment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    address = _address(text)
    return x509.DNSName(text) if address is None else x509.IPAddress(address)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _instant(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=int(seconds))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


# Reading


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a certificate is valid, in seconds since the epoch."""

    began_at: float
    ends_at: float


def validity_of(pair: Pair) -> Validity:
    """Return the life of a pair's certificate; BadCertificate."""
    return _validity(_read_pair(pair))


def check_pair(pair: Pair) -> None:
    """Return when certificate and key belong together; BadCertificate."""
    _read_pair(pair)


def _validity(certificate: x509.Certificate) -> Validity:
    return Validity(
        certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    )


def _read_pair(pair: Pair) -> x509.Certificate:
    """Return the leaf; certificates of intermediate authorities may follow it."""
    try:
        certificate = x509.load_pem_x509_certificates(pair.certificate)[0]
        key = serialization.load_pem_private_key(pair.key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadCertificate(f"certificate or key cannot be read: {error}") from error
    encoding = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if certificate.public_key().public_bytes(*encoding) != key.public_key().public_bytes(*encoding):
        raise BadCertificate("the key is not the certificate's")
    return certificate


def _read_bundle(bundle: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(bundle)[:AUTHORITIES_MAX]
    except ValueError as error:
        raise BadCertificate(f"authorities cannot be read: {error}") from error


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _covers(certificate: x509.Certificate, hosts: Sequence[str]) -> bool:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    names = {str(name.value) for name in found}
    return all(host in names for host in hosts)


def from_secret(data: Mapping[str, str]) -> Material:
    """Return what a Secret's data holds; BadCertificate for what is missing or is no base64."""

    def read(name: str) -> bytes:
        try:
            return base64.b64decode(data.get(name, ""), validate=True)
        except binascii.Error as error:
            raise BadCertificate(f"{name} is not base64") from error

    for name in (CRT, KEY):
        if not data.get(name):
            raise BadCertificate(f"{name} is missing")
    following = Pair(read(NEXT_CRT), read(NEXT_KEY)) if data.get(NEXT_CRT) else None
    return Material(read(CA), Pair(read(CRT), read(KEY)), following)


def to_secret(material: Material) -> dict[str, str | None]:
    """Return the data of a Secret; None takes away what an earlier step put there."""
    following = material.next
    parts = {
        CA: material.bundle,
        CRT: material.serving.certificate,
        KEY: material.serving.key,
        NEXT_CRT: following.certificate if following else None,
        NEXT_KEY: following.key if following else None,
    }
    return {
        name: None if part is None else base64.b64encode(part).decode()
        for name, part in parts.items()
    }


# Deciding


@dataclass(frozen=True, slots=True)
class Observed:
    """What one replica knows beyond the Secret.

    Since when the Secret has been as it is, and since when both configurations have had its
    bundle (None: not yet). Both count from when this replica saw it first, which is later than it
    was so; a replica that starts again waits longer, never less.
    """

    material_since: float
    bundle_since: float | None


def next_step(
    material: Material | None, observed: Observed, hosts: Sequence[str], *, now: float, times: Times
) -> Step:
    """Return the next step; the same for every replica that has observed the same."""
    if material is None or _is_unusable(material.serving, material.bundle, hosts):
        return Step.MAKE
    serving, following = validity_of(material.serving), material.next
    if following is not None:
        if _is_unusable(following, material.bundle, hosts) or now >= validity_of(following).ends_at:
            return Step.MAKE if now >= serving.ends_at else Step.BEGIN
        since = observed.bundle_since
        is_known = since is not None and now - since >= times.overlap_seconds
        return Step.PROMOTE if is_known or now >= serving.ends_at else Step.KEEP
    if now >= serving.ends_at:
        return Step.MAKE
    if now - serving.began_at >= times.renew_at * (serving.ends_at - serving.began_at):
        return Step.BEGIN
    is_mixed = len(_read_bundle(material.bundle)) > 1
    if is_mixed and now - observed.material_since >= times.overlap_seconds:
        return Step.SETTLE
    return Step.KEEP


def _is_unusable(pair: Pair, bundle: bytes, hosts: Sequence[str]) -> bool:
    try:
        certificate = _read_pair(pair)
        authorities = _read_bundle(bundle)
    except BadCertificate:
        return True
    is_signed = any(_has_signed(authority, certificate) for authority in authorities)
    return not is_signed or not _covers(certificate, hosts)


def take_step(
    step: Step, material: Material | None, hosts: Sequence[str], *, now: float, times: Times
) -> Material:
    """Return what the Secret is to hold after the step. What MAKE finds of authorities stays."""
    match step:
        case Step.MAKE:
            authority, pair = make(hosts, now=now, times=times)
            return Material(authority + _still_valid(material, now), pair)
        case Step.BEGIN if material is not None:
            authority, pair = make(hosts, now=now, times=times)
            old = _signers(material.serving, material.bundle)
            return Material(old + authority, material.serving, pair)
        case Step.PROMOTE if material is not None and material.next is not None:
            return Material(material.bundle, material.next)
        case Step.SETTLE if material is not None:
            return Material(_signers(material.serving, material.bundle), material.serving)
        case _:
            raise ValueError(f"{step.value} is no step from here")


def _signers(pair: Pair, bundle: bytes) -> bytes:
    """Return the authorities of the bundle that have signed the pair."""
    certificate = _read_pair(pair)
    return b"".join(_pem(a) for a in _read_bundle(bundle) if _has_signed(a, certificate))


def _still_valid(material: Material | None, now: float) -> bytes:
    """Return authorities that another replica may still need for what it serves."""
    if material is None:
        return b""
    try:
        authorities = _read_bundle(material.bundle)
    except BadCertificate:
        return b""
    kept = [each for each in authorities if now < _validity(each).ends_at]
    return b"".join(_pem(each) for each in kept[: AUTHORITIES_MAX - 1])
