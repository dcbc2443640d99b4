"""`fairlead webhook -f`: what would become of objects, without a cluster."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fairlead.cli.main import guarded

ENABLED = "fairlead.dev/gang-scheduling=enabled"
POD = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {}}\n"
SET = """apiVersion: apps/v1
kind: %s
metadata: {name: web, namespace: team}
spec: {template: {metadata: {labels: {app: web}}, spec: {}}}
"""
JOB = """apiVersion: fairlead.dev/v1alpha1
kind: Job
metadata: {name: train}
spec:
  roles: [{name: w, template: {spec: {containers: [{name: c, image: i}]}}}]
  after: [{job: %s}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "objects.yaml"


def test_it_says_what_would_be_changed_and_who_asked_for_it(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(POD)
    assert guarded(["webhook", "-f", str(file)]) == 0
    assert "is left alone: neither it nor its namespace" in capsys.readouterr().out
    assert guarded(["webhook", "-f", str(file), "--namespace-labels", ENABLED]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Pod default/p: waits for its gang's place: its namespace's label")
    assert lines[1] == '  add /spec/schedulingGates [{"name": "fairlead.dev/gang"}]'
    assert guarded(["webhook", "-f", str(file), "-n", "kube-system", "--namespace-labels",
                    ENABLED]) == 0  # fmt: skip
    assert "pods of namespace kube-system never wait" in capsys.readouterr().out


def test_what_makes_pods_is_judged_by_its_template(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("---\n".join(SET % kind for kind in ("StatefulSet", "DaemonSet")))
    assert guarded(["webhook", "-f", str(file), "--namespace-labels", ENABLED, "-o", "json"]) == 0
    gated, daemon = msgspec.json.decode(capsys.readouterr().out)
    assert (gated["object"], gated["ruling"]) == ("Pod of StatefulSet team/web", "gated")
    assert [each["path"] for each in gated["patch"]] == [
        "/spec/schedulingGates", "/metadata/labels/fairlead.dev~1gang-scheduling",
    ]  # fmt: skip
    assert (daemon["ruling"], daemon["patch"]) == ("daemon", [])
    [warning] = gated["warnings"]
    assert "create it with podManagementPolicy: Parallel" in warning
    file.write_text(
        (SET % "StatefulSet").replace("spec: {", "spec: {podManagementPolicy: Parallel, ", 1)
    )
    assert guarded(["webhook", "-f", str(file), "--namespace-labels", ENABLED]) == 0
    assert "warning" not in capsys.readouterr().out


def test_a_job_that_would_be_refused_is_a_problem_and_its_fields_are_named(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(JOB % "train")
    assert guarded(["webhook", "-f", str(file)]) == 1
    assert "  spec.after[0].job: Invalid value" in capsys.readouterr().out
    file.write_text(JOB % "prepare")
    assert guarded(["webhook", "-f", str(file)]) == 0
    file.write_text((JOB % "prepare") + "---\n" + (JOB % "train"))
    assert guarded(["webhook", "-f", str(file)]) == 1


@pytest.mark.parametrize(
    ("text", "code"),
    [("[1]", "E101"), ("a: [", "E101"), ("a: 1\na: 2", "E107"), (POD + "---\n[]", "E101"),
     ("{apiVersion: v1, kind: Pod, spec: {nodeName: 7}}", "E103")],
)  # fmt: skip
def test_what_is_no_object_is_said_with_its_place(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, code: str
) -> None:
    file.write_text(text)
    assert guarded(["webhook", "-f", str(file)]) == 2
    said = capsys.readouterr().err
    assert f"error[{code}]" in said
    assert f"{file}:" in said
