"""What a release signs, verified by cosign as its documents say: where cosign and crane are.

    go install github.com/sigstore/cosign/v2/cmd/cosign@v2.6.5    and that directory in PATH

crane, whose registry holds the image, is one of the programs of `make kubernetes`; they are in the
directory that `tools/kubernetes/build.sh --where` prints.
"""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.unit.tools.test_signing import MADE_OF, make_key
from tools.cluster.archive import Image, write_archive
from tools.release.build import sign_files
from tools.release.sign import Signer, sign_image

COSIGN, CRANE = shutil.which("cosign") or "", shutil.which("crane") or ""
BY_KEY = ("--insecure-ignore-tlog", "--key")
IMAGE = "docker.io/library/fairlead:1.0.0"
pytestmark = pytest.mark.skipif(
    not (COSIGN and CRANE and shutil.which("openssl")), reason="cosign or crane is not in PATH"
)


def cosign(verb: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COSIGN, verb, *arguments], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path, Signer]:
    """The public key of a release, that of somebody else, and what signs with the former."""
    found: list[Path] = []
    signers: list[Signer] = []
    for name in ("own", "other"):
        signers.append(Signer(make_key(tmp_path / f"{name}.pem")))
        found.append(tmp_path / f"{name}.pub")
        found[-1].write_bytes(signers[-1].public)
    return found[0], found[1], signers[0]


@pytest.fixture
def registry() -> Iterator[str]:
    """The address of a registry on loopback."""
    address = f"127.0.0.1:{free_port()}"
    command = [CRANE, "registry", "serve", f"--address={address}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert any(b"serving on" in line for line in process.stderr)
            yield address
        finally:
            process.terminate()


def push(archive: Path, registry: str) -> None:
    """Put all images of an archive into a registry, by the specification of distribution."""
    connection = http.client.HTTPConnection(registry)

    def send(method: str, path: str, body: bytes = b"", kind: str = "") -> str:
        connection.request(method, path, body, {"Content-Type": kind} if kind else {})
        answer = connection.getresponse()
        answer.read()
        assert answer.status in (201, 202), (method, path, answer.status)
        return answer.headers.get("Location", "")

    with tarfile.open(archive) as tar:
        files = {each.name: each for each in tar if each.isfile()}

        def read(name: str) -> bytes:
            data = tar.extractfile(files[name])
            assert data is not None
            return data.read()

        for name in files:
            if name.startswith("blobs/"):
                digest = name.removeprefix("blobs/").replace("/", ":")
                place = send("POST", "/v2/fairlead/blobs/uploads/")
                send("PUT", f"{place}?digest={digest}", read(name))
        index: dict[str, Any] = json.loads(read("index.json"))
        for each in index["manifests"]:
            tag = each["annotations"]["org.opencontainers.image.ref.name"].rpartition(":")[2]
            manifest = read(f"blobs/{each['digest'].replace(':', '/')}")
            send("PUT", f"/v2/fairlead/manifests/{tag}", manifest, each["mediaType"])
    connection.close()


def test_cosign_verifies_the_files_of_a_release(
    tmp_path: Path, keys: tuple[Path, Path, Signer]
) -> None:
    own, other, signer = keys
    directory = tmp_path / "dist"
    directory.mkdir()
    wheel = directory / "fairlead-1.0.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    sign_files(directory, "1.0.0", signer, MADE_OF)
    signature = directory / f"{wheel.name}.sig"
    done = cosign("verify-blob", *BY_KEY, own, "--signature", signature, wheel)
    assert done.returncode == 0, done.stderr
    assert "Verified OK" in done.stderr
    assert cosign("verify-blob", *BY_KEY, other, "--signature", signature, wheel).returncode
    wheel.write_bytes(b"a wheeL")
    assert cosign("verify-blob", *BY_KEY, own, "--signature", signature, wheel).returncode


def test_cosign_verifies_an_image_in_a_registry_and_what_it_was_made_of(
    tmp_path: Path, keys: tuple[Path, Path, Signer], registry: str
) -> None:
    own, other, signer = keys
    layer = tmp_path / "layer.tar"
    with tarfile.open(layer, "w"):
        pass
    archive, signed = tmp_path / "image.tar", tmp_path / "signed.tar"
    unsigned = Image("docker.io/library/fairlead:0.9.0", (layer,), {"User": "1"})
    digests = write_archive(archive, [Image(IMAGE, (layer,))])
    sign_image(archive, signed, signer, MADE_OF)
    push(signed, registry)
    bare = write_archive(tmp_path / "bare.tar", [unsigned])
    push(tmp_path / "bare.tar", registry)
    image = f"{registry}/fairlead@{digests[IMAGE]}"

    done = cosign("verify", *BY_KEY, own, image)
    assert done.returncode == 0, done.stderr
    (said,) = json.loads(done.stdout)
    assert said["critical"]["image"]["docker-manifest-digest"] == digests[IMAGE]
    assert "no matching signatures" in cosign("verify", *BY_KEY, other, image).stderr
    missing = cosign("verify", *BY_KEY, own, f"{registry}/fairlead@{bare[unsigned.name]}")
    assert "no signatures found" in missing.stderr

    kind = ("--type", "slsaprovenance1")
    done = cosign("verify-attestation", *BY_KEY, own, *kind, image)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["payloadType"] == "application/vnd.in-toto+json"
    assert cosign("verify-attestation", *BY_KEY, other, *kind, image).returncode
