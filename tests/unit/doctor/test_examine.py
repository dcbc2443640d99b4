"""Selection, suppressions, baselines, exit codes and the formats of a report."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from tests.tidy.sources import ROOT
from tests.unit.doctor.facts_of import seen

from fairlead import terminal
from fairlead.cli.doctor.examination import render
from fairlead.doctor.check import Check, Harm, Limit, MeasuredValue, evaluate
from fairlead.doctor.configuration import ConfigurationError, parse_baseline, parse_suppressions
from fairlead.doctor.examine import ExaminationReport, ExamineOptions, Suppression, examine, select
from fairlead.doctor.facts import ClusterFacts, Source
from fairlead.doctor.registry import CHECKS


def check(id_: str, *readings: float, severity: Harm = Harm.WARNING) -> Check:
    """A check that reads these values."""
    found = [MeasuredValue(f"s{i}", value, f"value {value}") for i, value in enumerate(readings)]
    return Check(id_, "Something", (Source.API,), lambda _: found, (Limit(severity, 1.0),),
                 "Because.", "do <this> & that", "a book", growth=1)  # fmt: skip


def blind(id_: str) -> Check:
    """A check that sees nothing."""

    def measure(facts: ClusterFacts) -> list[MeasuredValue]:
        raise facts.missing(Source.ETCD)

    return Check(id_, "Hidden", (Source.ETCD,), measure, (Limit(Harm.CRITICAL, 1.0),),
                 "Because.", "look", "a book")  # fmt: skip


def report(*checks: Check, **options: object) -> ExaminationReport:
    return examine(checks, ClusterFacts(nodes=10), ExamineOptions(**options))  # type: ignore[arg-type]


def test_findings_come_in_order_of_harm_and_then_of_the_registry() -> None:
    found = report(check("A-1", 2.0, 5.0), check("B-1", 2.0, severity=Harm.CRITICAL))
    assert [f.key for f in found.findings] == ["B-1/s0", "A-1/s1", "A-1/s0"]


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        ((check("A-1", 0.5),), 0),
        ((check("A-1", 2.0),), 1),
        ((check("A-1", 2.0, severity=Harm.INFO),), 0),
        ((check("A-1", 2.0), check("B-1", 2.0, severity=Harm.CRITICAL), blind("C-1")), 2),
        ((check("A-1", 0.5), blind("C-1")), 3),
    ],
)
def test_the_exit_code_tells_clean_warning_critical_and_unknown(
    checks: tuple[Check, ...], code: int
) -> None:
    assert report(*checks).exit_code() == code


def test_unknown_may_be_allowed_but_never_passes() -> None:
    found = report(blind("C-1"))
    assert found.exit_code(allows_unknown=True) == 0
    assert not found.passed
    assert [each.check.id for each in found.unknown] == ["C-1"]


def test_a_suppression_ends_with_its_day() -> None:
    rule = Suppression("A-*", "s0", "known", "2026-11-30")
    before = report(check("A-1", 2.0, 3.0), suppressions=(rule,), today="2026-11-30")
    assert [f.subject for f in before.findings] == ["s1"]
    assert before.suppressed[0].suppression.reason == "known"
    after = report(check("A-1", 2.0, 3.0), suppressions=(rule,), today="2026-12-01")
    assert len(after.findings) == 2
    assert after.expired == (rule,)


def test_an_unknown_check_can_be_suppressed() -> None:
    rule = Suppression("C-1", "*", "the provider hides etcd", "2026-12-31")
    assert report(blind("C-1"), suppressions=(rule,), today="2026-11-01").exit_code() == 0


def test_a_baseline_leaves_only_what_is_new() -> None:
    first = report(check("A-1", 2.0))
    known = parse_baseline(render(first, "json"))
    second = report(check("A-1", 2.0, 3.0), baseline=known)
    assert [f.subject for f in second.findings] == ["s1"]
    assert second.known == 1


def test_all_mistakes_of_a_suppressions_file_are_reported_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_suppressions("suppressions:\n- {check: A, until: soon}\n- {chek: B}\n")
    assert caught.value.mistakes == (
        "suppressions[0].reason is missing",
        "suppressions[0].until: 'soon' is not YYYY-MM-DD",
        "suppressions[1].check is missing",
        "suppressions[1].reason is missing",
        "suppressions[1].until is missing",
        "suppressions[1].chek is not known",
    )


@pytest.mark.parametrize("text", ["", "[]", "suppressions: 3", "{", "\t- x"])
def test_a_file_that_is_no_list_of_suppressions_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_suppressions(text)


@pytest.mark.parametrize("text", ["", "[]", '{"findings": 3}'])
def test_a_file_that_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_baseline(text)


def test_select_takes_patterns() -> None:
    assert {c.id for c in select(CHECKS, ("etcd-1*",), ("ETCD-1?", "ETCD-1??"))} == set()
    assert {c.id for c in select(CHECKS, ("etcd-01", "dns-0*"), ("dns-0[1-9]",))} == {
        "ETCD-01",
    }  # fmt: skip


def test_levels_depend_on_the_size_of_the_cluster() -> None:
    (rule,) = select(CHECKS, ("ETCD-16",), ())

    def severity(nodes: int) -> object:
        (result,) = evaluate(rule, ClusterFacts(nodes=nodes, flags={"kube-apiserver": {}}))
        return getattr(result, "severity", None)

    assert [severity(n) for n in (500, 501, 2501)] == [None, Harm.WARNING, Harm.CRITICAL]


def test_what_grows_is_projected() -> None:
    (finding,) = report(check("A-1", 2.0), project_to=100).findings
    assert finding.projected == pytest.approx(20.0)


def test_the_text_is_wrapped_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    long = replace(check("A-1", 2.0), title="A title " * 12, why="The reason is long. " * 12)
    found = report(long, *(blind(f"C-{number}") for number in range(60)))

    def longest() -> int:
        return max(len(line) for line in render(found, "text").splitlines())

    assert 80 < longest() <= 100
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for columns in (60, 160):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert columns - 20 < longest() <= columns
    assert render(found, "text").startswith("WARNING   A-1  A title")


def test_junit_has_a_case_per_check_and_escapes_its_text() -> None:
    found = report(check("A-1", 2.0, 3.0), blind("C-1"), check("B-1", 0.5))
    suite = ET.fromstring(render(found, "junit"))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert len(suite.findall("testcase/failure")) == 2


def test_the_page_escapes_what_it_shows() -> None:
    text = render(report(check("A-1", 2.0)), "html")
    assert "do &lt;this&gt; &amp; that" in text
    assert "<script" not in text


def test_json_names_evidence_fix_and_what_was_not_seen() -> None:
    values = json.loads(render(report(check("A-1", 2.0), blind("C-1")), "json"))
    assert values["findings"][0]["evidence"] == "value 2.0"
    assert values["unknown"][0]["show"].startswith("--metrics etcd=")


def test_an_object_that_cannot_be_listed_is_unknown_and_not_empty() -> None:
    (rule,) = select(CHECKS, ("API-22",), ())
    (result,) = evaluate(rule, seen())
    assert type(result).__name__ == "Unknown"


def test_the_reference_page_is_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tools.generate_doctor_reference", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("form", ["text", "html", "junit", "json", "yaml"])
@pytest.mark.parametrize("harm", ["\x1b]0;title\x07", "\x9b2J", "\u202e", "\r", "\x00", "\ufffe"])
def test_no_format_passes_what_a_terminal_obeys(form: str, harm: str) -> None:
    reading = MeasuredValue(f"caller{harm}", 2.0, f"agent {harm} asked")
    made = replace(check("A-1"), measure=lambda _: [reading])
    text = render(report(made), form)
    text = text if form != "text" else terminal.escaped(text)  # as it is written
    assert [c for c in text if not c.isprintable() and c != "\n"] == []
    assert "caller" in text
    if form == "junit":
        assert ET.fromstring(text) is not None
