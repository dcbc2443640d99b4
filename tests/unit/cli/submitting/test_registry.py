"""What a registry says of an image, by a server of its API that also answers wrongly."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.fake_api import FakeApi, serve

from fairlead.api.meta import to_wire
from fairlead.api.resources import NODES
from fairlead.cli.app import run
from fairlead.cli.submitting.registry import login_of, look_up
from fairlead.input.errors import CliError
from fairlead.testing.builders import make_node

LOGIN = base64.b64encode(b"ana:secret").decode()


def digest_of(body: bytes) -> str:
    return f"sha256:{sha256(body).hexdigest()}"


CONFIG = json.dumps({"architecture": "arm64", "os": "linux"}).encode()
LAYERS = [{"digest": "sha256:x", "size": 8 * 10**9}, {"digest": "sha256:y", "size": 2 * 10**8}]
MANIFEST = json.dumps({"config": {"digest": digest_of(CONFIG)}, "layers": LAYERS}).encode()
INDEX = json.dumps({"manifests": [
    {"digest": "sha256:w", "platform": {"os": "windows", "architecture": "amd64"}},
    {"digest": digest_of(MANIFEST), "platform": {"os": "linux", "architecture": "amd64"}},
    {"digest": digest_of(MANIFEST), "platform": {"os": "linux", "architecture": "arm64"}},
]}).encode()  # fmt: skip


class Registry:
    """What it has by path, what it asks for, and what came."""

    def __init__(self) -> None:
        self.has: dict[str, tuple[int, bytes, dict[str, str]]] = {}
        self.challenge = ""
        #: Path, and the Authorization of each request.
        self.seen: list[tuple[str, str]] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, sent = self.path.partition("?")[0], self.headers.get("Authorization", "")
                registry.seen.append((self.path, sent))
                status, body, more = registry.has.get(path, (404, b"{}", {}))
                if registry.challenge and path.startswith("/v2/") and sent != "Bearer t":
                    challenge = registry.challenge.replace("HOST", registry.host)
                    status, body, more = 401, b"{}", {"WWW-Authenticate": challenge}
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"

    def put(self, path: str, body: bytes, status: int = 200, **more: str) -> None:
        self.has[f"/v2/team/torch/{path}"] = status, body, more

    @property
    def image(self) -> str:
        return f"{self.host}/team/torch:1"


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    made.put("manifests/1", INDEX)
    made.put(f"manifests/{digest_of(MANIFEST)}", MANIFEST)
    made.put(f"blobs/{digest_of(CONFIG)}", CONFIG)
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def refusal(image: str, login: str = "") -> str:
    with pytest.raises(CliError) as caught:
        look_up(image, login)
    (problem,) = caught.value.problems
    assert problem.help, "each refusal has a remedy"
    return problem.message


def test_an_image_of_several_architectures_and_one_of_one(registry: Registry) -> None:
    found = look_up(registry.image, "")
    assert (found.digest, found.size_bytes) == (digest_of(INDEX), 8_200_000_000)
    assert found.words == (f"{registry.image}: 8.2 GB compressed, amd64, arm64, {digest_of(INDEX)}")
    registry.put("manifests/1", MANIFEST)
    assert look_up(registry.image, "").architectures == ("arm64",)
    by_digest = f"{registry.host}/team/torch@{digest_of(MANIFEST)}"
    assert look_up(by_digest, "").digest == digest_of(MANIFEST)


def test_a_login_goes_to_the_service_of_tokens_and_the_token_to_the_registry(
    registry: Registry,
) -> None:
    registry.challenge = 'Bearer realm="http://HOST/token",service="r",scope="any"'
    registry.has["/token"] = 200, b'{"token": "t"}', {}
    assert look_up(registry.image, LOGIN).size_bytes == 8_200_000_000
    paths = [(path.partition("?")[0], sent) for path, sent in registry.seen]
    assert paths[:3] == [("/v2/team/torch/manifests/1", ""), ("/token", f"Basic {LOGIN}"),
                         ("/v2/team/torch/manifests/1", "Bearer t")]  # fmt: skip
    assert "scope=repository%3Ateam%2Ftorch%3Apull" in registry.seen[1][0]


def test_a_login_never_goes_to_a_realm_without_https_nor_along_a_redirect(
    registry: Registry,
) -> None:
    registry.challenge = 'Bearer realm="http://r.example/token",service="r"'
    assert "a challenge that is not known" in refusal(registry.image, LOGIN)
    registry.challenge = 'Bearer realm="http://HOST/token",service="r"'
    registry.has["/token"] = 200, b'{"access_token": "t"}', {}
    registry.put("manifests/1", MANIFEST)
    registry.put(f"blobs/{digest_of(CONFIG)}", b"", 307, Location=f"http://{registry.host}/cdn")
    registry.has["/cdn"] = 200, CONFIG, {}
    assert look_up(registry.image, LOGIN).architectures == ("arm64",)
    assert ("/cdn", "") in registry.seen


def test_what_is_not_there_is_refused_or_wrong_says_so(registry: Registry) -> None:
    assert refusal(f"{registry.host}/team/other:1").startswith("there is no image ")
    registry.challenge = 'Basic realm="r"'
    assert refusal(registry.image).endswith("asks for a login (HTTP 401)")
    assert refusal(registry.image, LOGIN).endswith("refuses the login of this machine (HTTP 401)")
    registry.challenge = ""
    for status, words in ((403, "asks for a login"), (429, "throttles"), (500, "HTTP 500")):
        registry.put("manifests/1", b"", status)
        assert words in refusal(registry.image)
    wrong = f"{registry.host}/team/torch@{digest_of(MANIFEST)}"
    registry.put(f"manifests/{digest_of(MANIFEST)}", INDEX)
    assert "it sends sha256:" in refusal(wrong)
    other = {"config": {"digest": "sha256:0"}, "layers": LAYERS}
    for body, words in (
        (b"<html>", "is no image"), (b"{}", "no digest"), (json.dumps(other).encode(), "no digest"),
        (b'{"manifests": [{"digest": "x"}]}', "no Linux"),
        (b" " * (4 << 20) + b" ", "more than 4,194,304 bytes"),
    ):  # fmt: skip
        registry.put("manifests/1", body)
        assert words in refusal(registry.image)
    registry.put("manifests/1", MANIFEST)
    registry.put(f"blobs/{digest_of(CONFIG)}", b'{"architecture": "amd64"}')
    assert "another digest" in refusal(registry.image)
    for name in (f"{registry.host}/é:1", "[r.example/a:1"):
        assert "is not the name of an image" in refusal(name)
    assert "cannot be reached" in refusal("127.0.0.1:port/a:1")
    registry.challenge = 'Bearer realm="https://[/token"'
    assert "Invalid IPv6 URL" in refusal(registry.image)
    registry.server.shutdown()
    registry.server.server_close()
    assert "cannot be reached" in refusal(registry.image)


def test_logins_are_those_of_docker_and_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    environment = {"DOCKER_CONFIG": str(tmp_path)}
    assert login_of("r.example", environment) == ""
    auths = {
        "r.example": {"auth": LOGIN}, "https://index.docker.io/v1/": {"auth": LOGIN},
        "bad.example": {"auth": "no base64"}, "helper.example": {},
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"auths": auths, "credsStore": "desktop"}))
    assert login_of("r.example", environment) == LOGIN
    assert login_of("docker.io", environment) == LOGIN
    for other in ("bad.example", "helper.example", "unknown.example"):
        assert login_of(other, environment) == ""
    file.write_text("[")
    assert login_of("r.example", environment) == ""


def test_submit_says_what_the_registry_has_and_stores_nothing_where_there_is_none(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    api = FakeApi()
    api.create(NODES.raw, to_wire(make_node("n")))
    serve(monkeypatch, api)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("train.sh").write_text("#!/bin/sh\ntrue\n")
    asked = ["submit", "train.sh", "--check-image", "--image"]
    assert run([*asked, registry.image, "--dry-run"]) == 0
    assert f"Image    {registry.image}: 8.2 GB compressed, amd64, arm64, sha256:" in (
        capsys.readouterr().err
    )
    assert run([*asked, f"{registry.host}/team/torch:2"]) != 0
    assert "there is no image" in capsys.readouterr().err


def test_layers_that_images_share_count_once_and_only_named_registries_are_asked(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = [LAYERS[0], {"digest": "sha256:z", "size": 5 * 10**8}]
    config = {"digest": digest_of(CONFIG)}
    registry.put("manifests/2", json.dumps({"config": config, "layers": other}).encode())
    elsewhere = Registry()  # is not served: whoever asked it would wait
    images = {f"{registry.host}/team/torch:{tag}": 1 for tag in (1, 2, 3)}
    api = FakeApi()
    api.create(NODES.raw, to_wire(make_node("n", images={**images, elsewhere.image: 1})))
    serve(monkeypatch, api)
    assert run(["images", "--all", "--layers", registry.host, "-o", "json"]) == 0
    out, err = capsys.readouterr()
    assert [tuple(each.values())[1:] for each in json.loads(out)] == [
        (2, 8_500_000_000, 8_000_000_000, 500_000_000),
        (2, 8_200_000_000, 8_000_000_000, 200_000_000),
    ]
    assert f"there is no image {registry.host}/team/torch:3" in err
    assert "2 images of 16.7 GB: 8.7 GB with each layer counted once" in err
    assert run(["images", "--all", "--layers", registry.host]) == 0
    header, first, _ = capsys.readouterr().out.splitlines()
    assert header.split() == ["IMAGE", "LAYERS", "COMPRESSED", "SHARED", "OWN"]
    assert first.split()[1:] == ["2", "8.5", "GB", "8", "GB", "500", "MB"]
    assert run(["images", "--all", "--layers", registry.host, "-o", "csv"]) == 0
    assert "ownBytes" in capsys.readouterr().out.splitlines()[0]
    assert elsewhere.seen == []
    elsewhere.server.server_close()
