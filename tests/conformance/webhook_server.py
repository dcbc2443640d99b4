"""An admission webhook of the test's own: an HTTPS server on loopback that both targets can call.

Its certificate is made by the `pki` tool of the real control plane, or by openssl where that is not
built. Each path has an answerer, a function from the review's `request` to the `response`.

A real server takes up a configuration some time after it was accepted, and forgets it some time
after it was deleted. So each configuration begins with a webhook by which one sees that it is in
force, and all webhooks select only objects that carry this server's own label.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.conformance.target import Answer, Target
from tests.kubernetes.controlplane import NoControlPlane, find_binaries
from tests.patience import PATIENCE_SECONDS

KINDS = "/apis/admissionregistration.k8s.io/v1"
MAPS = "/api/v1/namespaces/default/configmaps"
STEP_SECONDS = 0.02
Response = dict[str, Any]
Answerer = Callable[[Mapping[str, Any]], Response | Awaitable[Response]]


def allow(_request: Mapping[str, Any]) -> Response:
    return {"allowed": True}


def patches(*operations: Mapping[str, Any]) -> Answerer:
    encoded = base64.b64encode(msgspec.json.encode(operations)).decode()
    return lambda _: {"allowed": True, "patch": encoded, "patchType": "JSONPatch"}


def certificate(directory: Path) -> tuple[Path, Path, Path]:
    """Make (authority, certificate, key) for 127.0.0.1; skip the test where nothing can."""
    authority, crt, key = (
        directory / name for name in ("ca.crt", "apiserver.crt", "apiserver.key")
    )
    try:
        subprocess.run([find_binaries() / "pki", directory], check=True)
        return authority, crt, key
    except NoControlPlane as reason:
        if shutil.which("openssl") is None:
            pytest.skip(f"nothing here makes certificates: no openssl, and {reason}")
    command = (
        "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2 "
        f"-subj /CN=webhook -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {crt}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return crt, crt, key


@dataclass(slots=True)
class Hooks:
    """The running webhook server. `asked` are the requests so far: (path, request)."""

    port: int
    bundle: str
    answers: dict[str, Answerer] = field(default_factory=dict)
    asked: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def labels(self) -> dict[str, str]:
        """What an object has to carry to be sent here."""
        return {"hooked-by": f"port-{self.port}"}

    def of(self, path: str) -> list[Mapping[str, Any]]:
        """The requests at one path."""
        return [request for each, request in self.asked if each == path]

    def named(self, name: str, **more: Any) -> dict[str, Any]:
        """A ConfigMap that is sent here."""
        metadata = {"name": name, "labels": self.labels}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **more}

    def webhook(self, path: str, answer: Answerer = allow, **more: Any) -> dict[str, Any]:
        """A webhook at a path of this server."""
        self.answers[path] = answer
        rule = {
            "operations": more.pop("operations", ["CREATE"]),
            "apiGroups": more.pop("groups", [""]),
            "apiVersions": ["v1"],
            "resources": more.pop("resources", ["configmaps"]),
        }
        url = f"https://127.0.0.1:{self.port}/{path}"
        return {
            "name": f"{path}.example.dev",
            "clientConfig": {"url": url, "caBundle": self.bundle},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "objectSelector": {"matchLabels": self.labels},
            **more,
        }

    async def configure(
        self, target: Target, kind: str, name: str, *webhooks: Mapping[str, Any]
    ) -> Answer:
        """Store a configuration and return once it is in force; `kind` Mutating or Validating."""
        probe = {**self.labels, "probe": f"{kind}-{name}"}
        ready = self.webhook(f"ready-{name}", objectSelector={"matchLabels": probe})
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}WebhookConfiguration",
            "metadata": {"name": f"{name}-{self.port}"},
            "webhooks": [ready, *webhooks],
        }
        path = f"{KINDS}/{kind.lower()}webhookconfigurations"
        answer = await target.request("POST", path, body)
        assert answer.status == 201, answer
        sample = self.named("probe")
        sample["metadata"]["labels"] = probe
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.of(f"ready-{name}"):
                await target.request("POST", MAPS, sample, query={"dryRun": "All"})
                await asyncio.sleep(STEP_SECONDS)  # another process takes it up
        self.asked.clear()
        return answer

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer one review."""
        path = request.path.strip("/")
        asked = msgspec.json.decode(await request.read())["request"]
        self.asked.append((path, asked))
        found = self.answers[path](asked)
        response = await found if isinstance(found, Awaitable) else found
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        review["response"] = {"uid": asked["uid"], **response}
        return web.json_response(review)


@asynccontextmanager
async def webhook_server(directory: Path) -> AsyncIterator[Hooks]:
    """Serve webhooks on loopback until the block is left."""
    authority, crt, key = certificate(directory)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(crt, key)
    hooks = Hooks(0, base64.b64encode(authority.read_bytes()).decode())
    server = web.Server(hooks.answer, access_log=None)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(server, "127.0.0.1", 0, ssl=context)
    hooks.port = listener.sockets[0].getsockname()[1]
    try:
        yield hooks
    finally:
        listener.close()
        server.pre_shutdown()
        await server.shutdown(1.0)
