"""What an API server measured of its answers scales the bytes that a log is modelled with."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.doctor.audit_log import Log

from fairlead.cli.main import guarded
from fairlead.doctor.audit.cost import CostModel, summarise
from fairlead.doctor.audit.measured import measured
from fairlead.doctor.audit.parallel import read_logs

LABELS = 'component="apiserver",group="{g}",resource="{r}",scope="{s}",subresource="{u}",verb="{v}"'


def page(
    *answers: tuple[str, str, float, float], objects: str = "", group: str = "", sub: str = ""
) -> bytes:
    """A page of metrics; answers are (verb, resource, count, bytes)."""
    text = objects
    for verb, resource, count, total in answers:
        scope = "cluster" if verb == "LIST" else "resource"
        labels = LABELS.format(g=group, r=resource, s=scope, u=sub, v=verb)
        text += f"apiserver_response_sizes_count{{{labels}}} {count}\n"
        text += f"apiserver_response_sizes_sum{{{labels}}} {total}\n"
    return text.encode()


def test_two_pages_give_what_was_sent_between_them() -> None:
    pages = (page(("LIST", "pods", 10, 1e6)), page(("LIST", "pods", 14, 9e6)))
    assert measured(pages).answer_bytes == {("list", "pods", "cluster"): 2e6}
    assert measured(pages[1:]).answer_bytes == {("list", "pods", "cluster"): 9e6 / 14}
    restarted = (page(("LIST", "pods", 10, 1e6)), page(("LIST", "pods", 2, 8e4)))
    assert measured(restarted).answer_bytes == {("list", "pods", "cluster"): 4e4}


def test_names_are_those_of_the_log() -> None:
    own = page(("GET", "jobs", 1, 5), group="fairlead.dev", sub="status")
    assert measured([own]).answer_bytes == {("get", "jobs.fairlead.dev/status", "resource"): 5.0}
    objects = (
        'apiserver_storage_objects{resource="pods"} 7\n'
        'apiserver_storage_objects{resource="jobs.fairlead.dev"} 3\n'
        'apiserver_resource_objects{group="coordination.k8s.io",resource="leases"} 9\n'
        'apiserver_resource_objects{group="",resource="events"} -1\n'
    )
    found = measured([page(objects=objects)]).objects
    assert found == {"pods": 7, "jobs.fairlead.dev": 3, "leases": 9}


def test_callers_of_one_kind_share_what_was_measured_of_it(tmp_path: Path) -> None:
    log = Log()
    for number in range(4):
        log.add("/api/v1/pods", at=number, user="whole")
        log.add("/api/v1/pods?limit=100", at=number, user="page")
        log.add("/api/v1/pods", at=number, user="refused", code=429)
        log.add("/api/v1/pods/p", at=number, verb="patch", user="writer")
    path, sizes = tmp_path / "audit.log", tmp_path / "metrics.txt"
    path.write_bytes(log.text())
    count = 'apiserver_storage_objects{resource="pods"} 1000\n'
    answers = (("LIST", "pods", 8, 8 * 550_000), ("GET", "pods", 1, 2_500))
    sizes.write_bytes(page(*answers, objects=count))
    known = measured([sizes.read_bytes()])
    model = CostModel(objects=known.objects, answer_bytes=known.answer_bytes)
    found = summarise(read_logs([str(path)], processes=1), model)
    sent = {each.principal: each.bytes for each in found.callers}
    assert sent["whole"] == pytest.approx(4 * 1_000_000), "ten times what a page of 100 is"
    assert sent["page"] == pytest.approx(4 * 100_000)
    assert sent["refused"] == 0
    assert sent["writer"] == pytest.approx(4 * 2_500), "an answer to a write is the object"
    assert sum(each or 0 for each in sent.values()) == pytest.approx(8 * 550_000 + 10_000)


@pytest.mark.parametrize("text", [b"\xff{\n", b"apiserver_response_sizes_sum{ 1\n"])
def test_a_page_that_is_none_is_refused_with_a_reason(
    text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, sizes = tmp_path / "audit.log", tmp_path / "metrics.txt"
    log.write_bytes(b"")
    sizes.write_bytes(text)
    code = guarded(["doctor", "audit", "--metrics", str(sizes), str(log)])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    if text.startswith(b"api"):
        assert code == 2
        assert "--metrics" in err


def test_more_than_two_pages_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = ["--metrics", "a"] * 3
    assert guarded(["doctor", "audit", *pages, str(tmp_path / "audit.log")]) == 2
    assert "one of before and one of after" in capsys.readouterr().err
