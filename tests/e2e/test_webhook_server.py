"""The webhook's server over real sockets: limits on strangers, certificates, and how it leaves."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientError, ClientSession, TCPConnector
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from prometheus_client import CollectorRegistry
from tests.patience import PATIENCE_SECONDS

from fairlead.api.cluster.team import JobLimits
from fairlead.api.meta import to_wire
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.resources import JOBS, TEAMS
from fairlead.decide.admission.pod_gates import GateRules
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.outside.connections import ConnectionLimits
from fairlead.runtime.watching.mirror import Mirror
from fairlead.testing.builders import make_job, make_team
from fairlead.testing.fake_client import FakeClient
from fairlead.webhook.answers import AdmissionAnswers
from fairlead.webhook.certificates import BadCertificate, Material, Pair, Step, Times, take_step
from fairlead.webhook.configuration import Path as WebhookPath
from fairlead.webhook.server import WebhookMetrics, WebhookServer, WebhookServerLimits
from fairlead.webhook.service import Webhook, WebhookOptions

pytestmark = pytest.mark.e2e
LIMITS = WebhookServerLimits(
    body_bytes_max=64 << 10, bodies_bytes_max=96 << 10, requests_max=8,
    connections=ConnectionLimits(10, 5),
    body_seconds_max=0.3, linger_seconds=0.1, stop_seconds_max=0.5,
)  # fmt: skip
HOSTS = ("127.0.0.1",)


def new() -> Material:
    return take_step(Step.MAKE, None, HOSTS, now=SystemClock().now(), times=Times())


def trusting(material: Material) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=material.bundle.decode())


def review(**more: Any) -> bytes:
    resource = {"group": "", "version": "v1", "resource": "pods"}
    labels = {"fairlead.dev/gang-scheduling": "enabled"}
    request = {
        "uid": "u", "operation": "CREATE", "namespace": "n", "resource": resource,
        "object": {"metadata": {"name": "p", "labels": labels, **more}, "spec": {}},
    }  # fmt: skip
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return msgspec.json.encode(body)


@dataclass(slots=True)
class Serving:
    server: WebhookServer
    material: Material
    port: int
    metrics: Metrics
    session: ClientSession = field(repr=False)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}{WebhookPath.PODS.value}"

    async def ask(self, body: Any = None, **more: Any) -> int:
        """Send a review and return the status of the answer."""
        sent = review() if body is None else body
        async with self.session.post(self.url, data=sent, **more) as answer:
            await answer.read()
            return answer.status

    def counted(self, outcome: str) -> bool:
        return f'outcome="{outcome}"' in self.metrics.render().decode()


async def shows(port: int, material: Material) -> bool:
    """Tell whether a client that connects anew, and trusts this alone, is answered."""
    try:
        async with (
            ClientSession(connector=TCPConnector(ssl=trusting(material))) as session,
            session.post(
                f"https://127.0.0.1:{port}{WebhookPath.PODS.value}", data=review()
            ) as answer,
        ):
            return answer.status == 200
    except ClientError:
        return False


@asynccontextmanager
async def serving(limits: WebhookServerLimits = LIMITS) -> AsyncIterator[Serving]:
    registry = CollectorRegistry()
    metrics = Metrics(registry, version="test")
    server = WebhookServer(AdmissionAnswers(GateRules()), limits=limits)
    server.measure(WebhookMetrics(registry, lambda: server.ends_at))
    material = new()
    server.use(material.serving)
    connector = TCPConnector(ssl=trusting(material), limit=0)
    async with (
        server.listening("127.0.0.1", 0) as port,
        ClientSession(connector=connector) as session,
    ):
        yield Serving(server, material, port, metrics, session)


async def test_a_review_is_answered_and_what_is_none_fails_alone() -> None:
    async with serving() as up:
        async with up.session.post(up.url, data=review()) as answer:
            body = msgspec.json.decode(await answer.read())
        assert body["response"]["allowed"] is True
        assert body["response"]["patchType"] == "JSONPatch"
        async with up.session.get(up.url) as answer:
            assert answer.status == 405
        assert await up.ask(b"no review") == 400
        assert await up.ask(headers={"Content-Encoding": "gzip"}) == 415
        async with up.session.post(up.url + "/else", data=b"{}") as answer:
            assert answer.status == 404
            assert WebhookPath.PODS.value in await answer.text()
        assert await up.ask() == 200
        assert up.counted("gated")
        assert up.counted("malformed")


async def too_large() -> AsyncIterator[bytes]:
    large = review(annotations={"a": "x" * LIMITS.body_bytes_max})
    for start in range(0, len(large), 8192):
        yield large[start : start + 8192]


async def test_a_review_that_an_api_server_forwards_for_a_user_is_refused() -> None:
    async with serving() as up:
        headers = {"X-Forwarded-For": "192.0.2.7"}
        assert await up.ask(review(), headers=headers) == 403
        for path in WebhookPath:
            if path is not WebhookPath.OTHER:
                url = up.url.replace(WebhookPath.PODS.value, path.value)
                async with up.session.post(url, data=b"{}", headers=headers) as answer:
                    assert answer.status == 403, path
        assert await up.ask(review()) == 200


async def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not() -> None:
    large = review(annotations={"a": "x" * LIMITS.body_bytes_max})
    async with serving() as up:
        assert await up.ask(large) == 413
        assert await up.ask(too_large()) == 413
        assert await up.ask() == 200


async def test_a_body_that_does_not_come_ends_with_the_time_and_holds_no_memory() -> None:
    async def dripping() -> AsyncIterator[bytes]:
        yield b"x" * 50_000
        await asyncio.sleep(30)

    async with serving() as up:
        for _ in range(20):
            assert await up.ask(too_large()) == 413
        # together they would be more than may be held at a time
        assert [await up.ask(dripping()) for _ in range(3)] == [408] * 3
        assert await up.ask() == 200
        assert up.counted("timed-out")
    async with serving(replace(LIMITS, body_seconds_max=PATIENCE_SECONDS)) as up:
        asked = [asyncio.ensure_future(up.ask(dripping())) for _ in range(4)]
        done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert {each.result() for each in done} == {503}
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert up.counted("overloaded")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await up.ask(b"x" * 50_000) != 400:  # noqa: ASYNC110 # until
                await asyncio.sleep(0.01)


async def test_more_requests_or_connections_than_allowed_are_turned_away_and_it_goes_on() -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    async def ask(up: Serving) -> int:
        try:
            return await up.ask(slow())
        except ClientError:
            return 0

    # all have come before the first are given up, which makes room
    async with serving(replace(LIMITS, body_seconds_max=5.0)) as up:
        statuses = await asyncio.gather(*(ask(up) for _ in range(20)))
        assert 1 <= statuses.count(408) <= LIMITS.requests_max
        assert set(statuses) <= {408, 503, 0}
        assert await up.ask() == 200


@pytest.mark.parametrize("sent", [b"", b"POST /mutate-pods HTTP/1.1\r\nX-"])
async def test_who_only_keeps_connections_open_shuts_nobody_out(sent: bytes) -> None:
    async with serving() as up:
        held: list[asyncio.StreamWriter] = []
        for _ in range(2 * LIMITS.connections.total_max):
            _, writer = await asyncio.open_connection(
                "127.0.0.1", up.port, ssl=trusting(up.material)
            )
            writer.write(sent)
            held.append(writer)
        assert await up.ask() == 200
        for writer in held:
            writer.close()


def weak_authority() -> bytes:
    """Return a certificate with a key that TLS refuses in a chain."""
    key = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "weak")])
    began = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, began, began + timedelta(1))
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


async def test_a_new_certificate_is_shown_to_new_connections_and_old_ones_go_on() -> None:
    async with serving() as up:
        assert await up.ask() == 200
        second = new()
        up.server.use(second.serving)
        assert await up.ask() == 200, "over the connection that stands"
        assert await shows(up.port, second)
        with pytest.raises(BadCertificate):
            up.server.use(Pair(second.serving.certificate, up.material.serving.key))
        assert await shows(up.port, second), "it kept the last good one"
        third = new().serving
        with pytest.raises(BadCertificate, match="not usable for TLS"):
            up.server.use(Pair(third.certificate + weak_authority(), third.key))
        assert await shows(up.port, second), "not the new certificate with the old key"


async def test_a_replica_that_leaves_answers_for_a_while_and_sends_its_clients_away() -> None:
    server = WebhookServer(AdmissionAnswers(GateRules()), limits=LIMITS)
    material = new()
    server.use(material.serving)
    began = asyncio.Event()

    async def live() -> None:
        async with server.listening("127.0.0.1", 0, linger_seconds=1.0) as port:
            ports.append(port)
            began.set()
            await leaves.wait()

    ports: list[int] = []
    leaves = asyncio.Event()
    connector = TCPConnector(ssl=trusting(material))
    async with ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        task = group.create_task(live())
        await began.wait()
        url = f"https://127.0.0.1:{ports[0]}{WebhookPath.PODS.value}"
        async with session.post(url, data=review()) as answer:
            assert "Connection" not in answer.headers
        leaves.set()
        await asyncio.sleep(0.1)
        async with session.post(url, data=review()) as answer:
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
        await task
        with pytest.raises(ClientError):
            await session.post(url, data=review())


async def test_files_that_somebody_else_renews_are_taken_up_and_a_torn_pair_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.webhook.keeper.LOOK_SECONDS", 0.05)
    options = WebhookOptions(host="127.0.0.1", port=0, directory=tmp_path)
    registry = CollectorRegistry()
    webhook = Webhook(options, FakeClient(), registry, clock=SystemClock(), rng=random.Random(1))

    async def until_shown(material: Material) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await shows(webhook.port, material):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def write(certificate: Material, key: Material) -> None:
        (tmp_path / "tls.crt").write_bytes(certificate.serving.certificate)
        (tmp_path / "tls.key").write_bytes(key.serving.key)

    first, second = new(), new()
    async with webhook.listening(), asyncio.TaskGroup() as group:
        task = group.create_task(webhook.run())
        await asyncio.sleep(0.2)
        assert not webhook.is_ready
        write(first, first)
        await until_shown(first)
        assert webhook.is_ready
        write(second, first)
        await asyncio.sleep(0.2)
        assert await shows(webhook.port, first)
        write(second, second)
        await until_shown(second)
        task.cancel()


async def test_jobs_are_counted_also_where_a_team_limits_its_users_alone(tmp_path: Path) -> None:
    client, clock = FakeClient(), SystemClock()
    team = make_team("vision", user_limits=JobLimits(submitted=1))
    await client.create(TEAMS.raw, to_wire(team))
    job = make_job("first", namespace="vision", spec={"team": "vision"})
    body = to_wire(job)
    body["metadata"]["annotations"] = {SUBMITTED_BY: "ann"}
    await client.create(JOBS.raw, body, namespace="vision")
    teams = Mirror(client, TEAMS, clock=clock, rng=random.Random(1))
    webhook = Webhook(
        WebhookOptions(host="127.0.0.1", port=0, directory=tmp_path), client, CollectorRegistry(),
        clock=clock, rng=random.Random(1), teams=teams,
    )  # fmt: skip
    material = new()
    (tmp_path / "tls.crt").write_bytes(material.serving.certificate)
    (tmp_path / "tls.key").write_bytes(material.serving.key)
    request = {
        "uid": "u", "operation": "CREATE", "namespace": "vision", "userInfo": {"username": "ann"},
        "resource": {"group": "fairlead.dev", "version": "v1alpha1", "resource": "jobs"},
        "object": body,
    }  # fmt: skip
    asked = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}

    async def answered(session: ClientSession) -> str:
        url = f"https://127.0.0.1:{webhook.port}{WebhookPath.JOBS.value}"
        async with session.post(url, data=msgspec.json.encode(asked)) as answer:
            return await answer.text()

    connector = TCPConnector(ssl=trusting(material))
    async with (
        webhook.listening(), ClientSession(connector=connector) as session,
        asyncio.TaskGroup() as group,
    ):  # fmt: skip
        tasks = [
            group.create_task(each()) for each in (webhook.run, teams.run, webhook.follow_jobs)
        ]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "of at most 1" not in await answered(session):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()


def test_the_loop_of_the_real_process_serves_and_changes_certificates_as_well() -> None:
    import uvloop

    async def main() -> None:
        async with serving() as up:
            statuses = await asyncio.gather(*(up.ask() for _ in range(LIMITS.requests_max)))
            assert set(statuses) == {200}
            second = new()
            up.server.use(second.serving)
            assert await shows(up.port, second)
            assert not await shows(up.port, up.material)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
