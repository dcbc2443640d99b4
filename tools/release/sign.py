"""Signs files, provenance and images with a key, in the formats that cosign verifies with one.

A signature is ECDSA over P-256 with SHA-256, of a file as it is: `cosign verify-blob` and `openssl
dgst` both check it. Provenance is an in-toto statement in a DSSE envelope. Those of an image are
images beside it in the same archive, under the tags that cosign looks for. Why: the page on
releases, docs/design/releases.md.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

PASSWORD = "FAIRLEAD_RELEASE_KEY_PASSWORD"
STATEMENT, PROVENANCE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
PAYLOAD = "application/vnd.in-toto+json"
#: What `make release` does, at this version of its meaning.
BUILD_TYPE = "https://fairlead.dev/release/v1"
_OCI = "application/vnd.oci.image"
_SIGNATURE = "dev.cosignproject.cosign/signature"
_SIMPLE, _ENVELOPE = (
    "application/vnd.dev.cosign.simplesigning.v1+json", "application/vnd.dsse.envelope.v1+json",
)  # fmt: skip
Json = dict[str, Any]


class BadKey(Exception):
    """The key cannot sign a release; the text says why and the remedy."""


class Signer:
    """A private key of a release."""

    def __init__(self, file: Path) -> None:
        """Read a PEM file; BadKey, OSError."""
        mode = file.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise BadKey(f"{file} can be read by others: chmod 600 {file}")
        password = os.environ.get(PASSWORD)
        try:
            key = load_pem_private_key(file.read_bytes(), password.encode() if password else None)
        except TypeError as error:  # it has a password and none is given, or the other way round
            raise BadKey(f"{file}: {error}; the password is read from {PASSWORD}") from error
        except (ValueError, UnsupportedAlgorithm) as error:
            raise BadKey(f"{file} is no private key in PEM, or {PASSWORD} is wrong") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
            made = "openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8"
            raise BadKey(f"{file} is no key of the curve P-256: {made} makes one")
        self._key = key

    @property
    def public(self) -> bytes:
        """The public key, in PEM."""
        return self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def sign(self, data: bytes) -> str:
        """Return the signature of bytes, in base64; the same each time."""
        algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
        return base64.b64encode(self._key.sign(data, algorithm)).decode()

    def envelope(self, statement: Json) -> bytes:
        """Return a statement in a signed envelope (github.com/secure-systems-lab/dsse, v1)."""
        body = encoded(statement)
        signed = b"DSSEv1 %d %b %d %b" % (len(PAYLOAD), PAYLOAD.encode(), len(body), body)
        signatures = [{"keyid": "", "sig": self.sign(signed)}]
        payload = base64.b64encode(body).decode()
        return encoded({"payload": payload, "payloadType": PAYLOAD, "signatures": signatures})


def encoded(value: Json) -> bytes:
    """Return JSON, the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def provenance(revision: str, locks: Mapping[str, str]) -> Json:
    """Return the statement that what becomes its subject was made of a revision.

    `locks` are the digests of the lock files, by their paths: with them it is all that went in.
    """
    source = {"uri": "git+file:fairlead", "digest": {"gitCommit": revision}}
    resolved = [source, *({"name": name, "digest": {"sha256": digest}}
                          for name, digest in sorted(locks.items()))]  # fmt: skip
    return {
        "_type": STATEMENT,
        "subject": [],
        "predicateType": PROVENANCE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"revision": revision},
                "resolvedDependencies": resolved,
            },
            "runDetails": {"builder": {"id": BUILD_TYPE}},
        },
    }


def sign_image(archive: Path, target: Path, signer: Signer, made_of: Json) -> None:
    """Copy an OCI archive; each image gets its signature and its provenance beside it.

    `made_of` is a statement whose subject each image becomes. The images themselves stay as they
    are, byte for byte, and so do their digests.
    """
    blobs: dict[str, bytes] = {}
    with tarfile.open(archive) as old, tarfile.open(target, "w") as new:
        found = old.extractfile("index.json")
        assert found is not None, "not written by write_archive"
        index = json.load(found)
        for image in list(index["manifests"]):
            index["manifests"] += _beside(image, signer, made_of, blobs)
        _add(new, "index.json", json.dumps(index).encode())
        for name, data in sorted(blobs.items()):
            _add(new, f"blobs/{name.replace(':', '/')}", data)
        for member in old:
            if member.name != "index.json":
                new.addfile(member, old.extractfile(member))


def _beside(image: Json, signer: Signer, made_of: Json, blobs: dict[str, bytes]) -> list[Json]:
    """Return the entries of the index for the signature and the provenance of an image."""
    digest = image["digest"]
    repository = image["annotations"]["org.opencontainers.image.ref.name"].rpartition(":")[0]
    critical = {
        "identity": {"docker-reference": repository},
        "image": {"docker-manifest-digest": digest},
        "type": "cosign container image signature",
    }
    simple = encoded({"critical": critical, "optional": None})
    subject = {"name": repository, "digest": {"sha256": digest.partition(":")[2]}}
    envelope = signer.envelope({**made_of, "subject": [subject]})
    parts = (
        ("sig", _SIMPLE, simple, {_SIGNATURE: signer.sign(simple)}),
        ("att", _ENVELOPE, envelope, {_SIGNATURE: "", "predicateType": PROVENANCE}),
    )
    entries: list[Json] = []
    for suffix, media_type, data, notes in parts:
        layer = {**_keep(blobs, media_type, data), "annotations": notes}
        rootfs = {"type": "layers", "diff_ids": [layer["digest"]]}
        config = _keep(blobs, f"{_OCI}.config.v1+json", encoded(
            {"architecture": "", "os": "", "config": {}, "rootfs": rootfs}))  # fmt: skip
        manifest = _keep(blobs, f"{_OCI}.manifest.v1+json", encoded({
            "schemaVersion": 2, "mediaType": f"{_OCI}.manifest.v1+json", "config": config,
            "layers": [layer],
        }))  # fmt: skip
        name = f"{repository}:{digest.replace(':', '-')}.{suffix}"
        names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        entries.append({**manifest, "annotations": names})
    return entries


def _keep(blobs: dict[str, bytes], media_type: str, data: bytes) -> Json:
    name = f"sha256:{hashlib.sha256(data).hexdigest()}"
    blobs[name] = data
    return {"mediaType": media_type, "digest": name, "size": len(data)}


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
