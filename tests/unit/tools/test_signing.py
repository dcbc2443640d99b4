"""What a release signs, verified by OpenSSL: a stranger has nothing of this project."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tools.cluster.archive import Image, write_archive
from tools.release.build import sign_files
from tools.release.sign import PASSWORD, BadKey, Signer, provenance, sign_image

OPENSSL = shutil.which("openssl") or ""
pytestmark = pytest.mark.skipif(not OPENSSL, reason="there is no openssl here")
MADE_OF = provenance("c0ffee", {"requirements/run.lock": "ab" * 32})


def openssl(*arguments: str | Path, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([OPENSSL, *arguments], input=data, capture_output=True, check=False)


def make_key(file: Path, *, curve: str = "prime256v1") -> Path:
    made = openssl("ecparam", "-name", curve, "-genkey", "-noout")
    file.write_bytes(made.stdout)
    file.chmod(0o600)
    return file


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer(make_key(tmp_path / "key.pem"))


def is_verified(public: Path, data: bytes, signature: str) -> bool:
    """Ask OpenSSL whether this is the key's signature of these bytes."""
    file = public.with_name("signature")
    file.write_bytes(base64.b64decode(signature, validate=True))
    done = openssl("dgst", "-sha256", "-verify", public, "-signature", file, data=data)
    assert (done.returncode == 0) is (done.stdout == b"Verified OK\n")
    return done.returncode == 0


def opened(public: Path, envelope: bytes) -> dict[str, Any]:
    """Return the statement in an envelope, once OpenSSL has verified it as DSSE has it."""
    outer = json.loads(envelope)
    body = base64.b64decode(outer["payload"], validate=True)
    kind = outer["payloadType"].encode()
    signed = b" ".join((b"DSSEv1", str(len(kind)).encode(), kind, str(len(body)).encode(), body))
    (signature,) = outer["signatures"]
    assert is_verified(public, signed, signature["sig"])
    assert not is_verified(public, signed.replace(b"c0ffee", b"c0ffef"), signature["sig"])
    return json.loads(body)


def test_a_stranger_verifies_each_file_and_what_it_was_made_of(
    tmp_path: Path, signer: Signer
) -> None:
    directory = tmp_path / "dist"
    directory.mkdir()
    wheel = directory / "fairlead-1.0.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    sign_files(directory, "1.0.0", signer, MADE_OF)
    public = tmp_path / "fairlead.pub"
    shutil.copy(directory / "fairlead.pub", public)
    files = sorted(path.name for path in directory.iterdir() if path.suffix != ".sig")
    assert {wheel.name, "SHA256SUMS", "fairlead-1.0.0.intoto.json"} < set(files)
    for name in files:
        if name != "fairlead.pub":
            data, signature = (directory / name).read_bytes(), directory / f"{name}.sig"
            assert is_verified(public, data, signature.read_text())
            assert not is_verified(public, data + b"x", signature.read_text())
    statement = opened(public, (directory / "fairlead-1.0.0.intoto.json").read_bytes())
    digest = hashlib.sha256(b"a wheel").hexdigest()
    assert statement["subject"] == [{"name": wheel.name, "digest": {"sha256": digest}}]
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"revision": "c0ffee"}
    done = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=directory, check=False,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 0


def test_the_signature_of_an_image_is_an_image_beside_it_as_cosign_looks_for_it(
    tmp_path: Path, signer: Signer
) -> None:
    layer = tmp_path / "layer.tar"
    with tarfile.open(layer, "w"):
        pass
    name = "docker.io/library/fairlead:1.0.0"
    archive, target = tmp_path / "image.tar", tmp_path / "signed.tar"
    digest = write_archive(archive, [Image(name, (layer,))])[name]
    sign_image(archive, target, signer, MADE_OF)
    public = tmp_path / "fairlead.pub"
    public.write_bytes(signer.public)
    with tarfile.open(target) as tar:
        tar.extractall(tmp_path / "signed", filter="data")
    root = tmp_path / "signed"
    tags = {
        each["annotations"]["org.opencontainers.image.ref.name"]: each
        for each in json.loads((root / "index.json").read_text())["manifests"]
    }
    tag = digest.replace(":", "-")
    assert set(tags) == {name, *(f"{name.removesuffix('1.0.0')}{tag}.{k}" for k in ("sig", "att"))}
    assert tags[name]["digest"] == digest

    def blob(described: dict[str, Any]) -> bytes:
        data = (root / "blobs" / described["digest"].replace(":", "/")).read_bytes()
        assert described["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert described["size"] == len(data)
        return data

    def layer_of(suffix: str) -> dict[str, Any]:
        manifest = json.loads(blob(tags[f"{name.removesuffix('1.0.0')}{tag}.{suffix}"]))
        config = json.loads(blob(manifest["config"]))
        (only,) = manifest["layers"]
        assert config["rootfs"]["diff_ids"] == [only["digest"]]
        return only

    signed = layer_of("sig")
    payload = blob(signed)
    assert is_verified(public, payload, signed["annotations"]["dev.cosignproject.cosign/signature"])
    assert json.loads(payload)["critical"]["image"] == {"docker-manifest-digest": digest}
    statement = opened(public, blob(layer_of("att")))
    assert statement["subject"][0]["digest"] == {"sha256": digest.partition(":")[2]}


def test_a_key_with_a_password_takes_it_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, locked = make_key(tmp_path / "plain.pem"), tmp_path / "key.pem"
    openssl("pkcs8", "-topk8", "-in", plain, "-out", locked, "-passout", "pass:secret")
    locked.chmod(0o600)
    with pytest.raises(BadKey, match=f"the password is read from {PASSWORD}"):
        Signer(locked)
    monkeypatch.setenv(PASSWORD, "wrong")
    with pytest.raises(BadKey, match=f"or {PASSWORD} is wrong"):
        Signer(locked)
    monkeypatch.setenv(PASSWORD, "secret")
    signed = Signer(locked)
    monkeypatch.delenv(PASSWORD)
    assert signed.sign(b"x") == Signer(plain).sign(b"x")


def test_a_key_that_others_can_read_or_of_another_kind_signs_nothing(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key.pem")
    key.chmod(0o640)
    with pytest.raises(BadKey, match=r"can be read by others: chmod 600 .*key\.pem"):
        Signer(key)
    with pytest.raises(BadKey, match="no key of the curve P-256"):
        Signer(make_key(tmp_path / "other.pem", curve="secp384r1"))
    key.chmod(0o600)
    key.write_bytes(b"-----BEGIN PRIVATE KEY-----\n\xff\n")
    with pytest.raises(BadKey, match="no private key in PEM"):
        Signer(key)
    with pytest.raises(FileNotFoundError):
        Signer(tmp_path / "none.pem")
