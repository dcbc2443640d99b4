"""A file of values: read whole, refused with every mistake and its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.input.errors import CliError, Code
from fairlead.install.values import HistoryKind, HistoryValues, Values, load_values


def read(tmp_path: Path, text: str) -> Values:
    path = tmp_path / "values.yaml"
    path.write_text(text)
    return load_values(path)


def refused(tmp_path: Path, text: str) -> list[tuple[Code, str, str, str]]:
    """Return (code, line:column, field, message and help) of each problem."""
    with pytest.raises(CliError) as caught:
        read(tmp_path, text)
    return [
        (p.code, p.where.partition("values.yaml:")[2], p.field, " ".join((p.message, *p.help)))
        for p in caught.value.problems
    ]


def test_what_a_file_leaves_out_keeps_its_default(tmp_path: Path) -> None:
    assert read(tmp_path, "# nothing\n") == Values()
    values = read(tmp_path, "replicas: 1\nhistory:\n  kind: sqlite\n")
    assert values == Values(replicas=1, history=HistoryValues(kind=HistoryKind.SQLITE))


def test_mappings_are_joined_with_their_default_and_null_takes_away(tmp_path: Path) -> None:
    text = "resources: {requests: {cpu: 2}, limits: null}\n"
    assert read(tmp_path, text).resources == {"requests": {"cpu": 2, "memory": "256Mi"}}


def test_every_mistake_is_reported_with_its_line_and_the_nearest_key(tmp_path: Path) -> None:
    text = """\
replica: 3
leaderElection:
  leaseSeconds: "15"
image: fairlead:2
history:
  kind: mysql
extraArgs: [1]
metrics:
  service:
    enable: true
"""
    found = refused(tmp_path, text)
    assert [(code, at, field) for code, at, field, _ in found] == [
        (Code.UNKNOWN_FIELD, "1:1", "replica"),
        (Code.BAD_FIELD, "3:17", "leaderElection.leaseSeconds"),
        (Code.BAD_FIELD, "4:8", "image"),
        (Code.BAD_FIELD, "6:9", "history.kind"),
        (Code.BAD_FIELD, "7:12", "extraArgs"),
        (Code.UNKNOWN_FIELD, "10:5", "metrics.service.enable"),
    ]
    words = [words for *_, words in found]
    assert "did you mean replicas?" in words[0]
    assert "got '15'" in words[1]
    assert "memory, sqlite, postgres" in words[3]
    assert "did you mean enabled?" in words[5]


def test_values_that_do_not_go_together_are_refused_where_they_stand(tmp_path: Path) -> None:
    text = "history: {kind: sqlite}\nreplicas: 2\n"
    (problem,) = refused(tmp_path, text)
    assert problem[:3] == (Code.BAD_FIELD, "2:1", "replicas")
    text = "settings: {health: {enabled: true}}\nadmissionPolicies: {enabled: false}\n"
    (problem,) = refused(tmp_path, text)
    assert problem[2] == "admissionPolicies.enabled"
    assert "each node to its own report" in problem[3]
    (problem,) = refused(tmp_path, "crds: {v1beta1: true}\nwebhook: {enabled: false}\n")
    assert problem[2] == "crds.v1beta1"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: [", Code.MANIFEST_SYNTAX),
        ("replicas: 1\nreplicas: 2", Code.DUPLICATE_KEY),
        ("replicas: 1\n---\nreplicas: 2", Code.MANIFEST_SYNTAX),
        ("- replicas", Code.BAD_FIELD),
        ("replicas: 0", Code.BAD_FIELD),
        ("replicas:", Code.BAD_FIELD),
        ("image: {digest: sha256:1}", Code.BAD_FIELD),
    ],
)
def test_what_is_no_record_of_values_is_refused(tmp_path: Path, text: str, code: Code) -> None:
    assert code in [each[0] for each in refused(tmp_path, text)]
