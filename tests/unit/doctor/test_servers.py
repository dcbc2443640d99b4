"""The examinations of the controller ask etcd and a Prometheus that the settings name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.unit.doctor.loopback import Answer, loopback
from tests.unit.doctor.test_etcd_api import member

from fairlead.api.status import NotFound
from fairlead.decide.doctor.examination import Examination
from fairlead.doctor.examiner import Examiner, Servers
from fairlead.doctor.readers.prometheus import parse_jobs
from fairlead.doctor.registry import BY_ID
from fairlead.runtime.clock import SystemClock

CHECKS = [BY_ID[each] for each in ("ETCD-04", "ETCD-08B", "ETCD-09", "MET-01")]


async def nothing(path: str, query: Mapping[str, str]) -> bytes:
    """Answer as an API server that has nothing to read."""
    raise NotFound(path)


def examined(examiner: Examiner, times: int = 1) -> Examination:
    async def main() -> Examination:
        for _ in range(times - 1):
            await examiner()
        return await examiner()

    return asyncio.run(main())


def examiner_of(servers: Servers | None) -> Examiner:
    return Examiner(nothing, clock=SystemClock(), servers=servers, checks=CHECKS)


def prometheus(path: str, _: bytes) -> Answer:
    """Answer that an etcd is up, and that its leader changed five times."""
    metric = {"job": "my-etcd"} if "up%7B" in path else {"instance": "e", "fairlead_part": "value"}
    number = "1" if "up%7B" in path else "5"
    if not path.startswith("/api/v1/query"):
        return Answer(b'{"data":{"headStats":7}}')
    result = [{"metric": metric, "value": [1, number]}]
    return Answer(json.dumps({"data": {"resultType": "vector", "result": result}}).encode())


def test_without_servers_their_checks_are_unknown() -> None:
    examination = examined(examiner_of(None))
    assert set(examination.unknown) == {each.id for each in CHECKS}


def test_what_etcd_says_of_itself_is_examined() -> None:
    with loopback(member()) as etcd:
        examination = examined(examiner_of(Servers((etcd.url,))), 2)
    found = {each.check: each.subject for each in examination.found}
    assert found == {"ETCD-04": etcd.url.removeprefix("http://"), "ETCD-08B": "a"}


def test_what_prometheus_has_is_examined_with_the_mounted_token(tmp_path: Path) -> None:
    (tmp_path / "prometheus").mkdir()
    token = tmp_path / "prometheus" / "token"
    jobs = parse_jobs(["etcd=my-etcd"])
    with loopback(prometheus) as server:
        examiner = examiner_of(Servers((), server.url, jobs, tmp_path))
        for value in ("one", "two"):  # a Secret that changes
            token.write_text(f"{value}\n")
            before = len(server.seen)
            examination = examined(examiner)
            asked = server.seen[before:]
            assert asked
            assert {each[3]["Authorization"] for each in asked} == {f"Bearer {value}"}
    (changes,) = (each for each in examination.found if each.check == "ETCD-09")
    assert changes.subject == "e"
    assert "from Prometheus at" in changes.evidence


@pytest.mark.parametrize(
    ("directory", "name", "content"),
    [("etcd", "tls.crt", b"no certificate"), ("etcd", "ca.crt", b"\xff"),
     ("prometheus", "token", b"secret\nsecret"), ("prometheus", "login", b"secret\xff")],
)  # fmt: skip
def test_a_credential_that_cannot_be_used_makes_checks_unknown_and_is_not_shown(
    directory: str, name: str, content: bytes, tmp_path: Path
) -> None:
    (tmp_path / directory).mkdir()
    (tmp_path / directory / name).write_bytes(content)
    examiner = examiner_of(Servers(("https://127.0.0.1:1",), "http://127.0.0.1:1", {}, tmp_path))
    examination = examined(examiner)
    assert set(examination.unknown) == {each.id for each in CHECKS}
    assert "secret" not in str(examination)


def test_a_server_that_is_not_there_is_unknown() -> None:
    with loopback(member()) as server:
        pass
    examination = examined(examiner_of(Servers((server.url,), server.url)))
    assert set(examination.unknown) == {each.id for each in CHECKS}


@pytest.mark.parametrize("given", ["etcd", "etdc=x", "etcd=("])
def test_a_job_that_cannot_be_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"SOURCE=REGEX|pattern"):
        parse_jobs([given])
