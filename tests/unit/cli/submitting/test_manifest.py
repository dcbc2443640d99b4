"""Manifests: what good ones become, and that every place is right (bad ones: tests/golden)."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.resources import CONFIG_MAPS, JOBS
from fairlead.cli.connection.common import Format, dump
from fairlead.cli.submitting.manifest import parse_manifest
from fairlead.input.yamlmarks import YamlMark, locate, plain_scalar, read_documents, to_plain
from fairlead.input.yamlwrite import to_yaml

GOOD = """\
# two objects
apiVersion: fairlead.dev/v1alpha1
kind: Job
metadata:
  name: train
spec:
  roles:
    - name: worker
      count: 4
      template:
        spec:
          containers:
            - name: main
              command: [python, train.py]
              ports: [{containerPort: 80}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: team}
data: {rate: "0.1"}
"""


def test_a_good_manifest_gives_its_objects_as_they_are() -> None:
    documents, problems = parse_manifest(GOOD.encode(), "job.yaml")
    assert problems == ()
    assert [d.resource for d in documents] == [JOBS, CONFIG_MAPS]
    assert [(d.namespace, d.name) for d in documents] == [("", "train"), ("team", "settings")]
    role = documents[0].body["spec"]["roles"][0]
    assert role["template"]["spec"]["containers"][0]["ports"] == [{"containerPort": 80}]


def test_a_list_of_objects_is_taken_apart() -> None:
    items = "".join(
        f"- {{apiVersion: v1, kind: ConfigMap, metadata: {{name: {n}}}}}\n" for n in "ab"
    )
    documents, problems = parse_manifest(
        f"apiVersion: v1\nkind: List\nitems:\n{items}".encode(), "l"
    )
    assert problems == ()
    assert [d.name for d in documents] == ["a", "b"]


def test_json_is_yaml() -> None:
    text = dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}, Format.JSON)
    assert parse_manifest(text.encode(), "a.json")[1] == ()


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm() -> None:
    data = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()
    assert parse_manifest(data, "job.yaml")[1] == ()


def test_a_file_that_is_too_large_is_not_even_parsed() -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n" + "".join(
        f"  k{i}: v\n" for i in range(250_000)
    )
    (problem,) = parse_manifest(text.encode(), "big.yaml")[1]
    assert "200,000 values" in problem.message


def test_paths_lead_to_their_places() -> None:
    ((first, _), mistakes) = read_documents(GOOD)
    assert mistakes == []
    assert locate(first, "spec.roles[0].count")[0] == YamlMark(9, 7)
    mark, value = locate(first, "spec.roles[0].template.spec.containers[0].command[1]")
    assert mark == YamlMark(14, 33)
    assert value is not None
    assert value.scalar == "train.py"
    assert locate(first, "spec.roles[7].count") == (YamlMark(7, 3), None)


@pytest.mark.parametrize(
    ("text", "value"),
    [("yes", "yes"), ("on", "on"), ("12:30", "12:30"), ("0o17", 15), ("0x1F", 31), ("017", 17),
     ("1e3", 1000.0), (".5", 0.5), ("1_000", "1_000"), ("~", None), ("", None), ("True", True),
     ("2026-01-01", "2026-01-01"), (".inf", ".inf"), ("1e999", "1e999"), ("+1", 1)],
)  # fmt: skip
def test_scalars_mean_what_people_expect(text: str, value: object) -> None:
    assert plain_scalar(text) == value
    assert type(plain_scalar(text)) is type(value)


def test_an_alias_that_contains_itself_ends() -> None:
    _, mistakes = read_documents("a: &a [*a]\n")
    assert "refers to no anchor" in mistakes[0].message


ODD = st.sampled_from(["1e3", "0o17", "yes", "12:30", "017", "a: b", "# c", "x\ny\n", "~", "1_0"])
TEXTS = st.text(max_size=12) | ODD
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)
    ),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(PLAIN.filter(lambda value: value is not None))
def test_what_is_written_is_read_back(value: object) -> None:
    text = to_yaml(value)
    documents, mistakes = read_documents(text)
    assert [m for m in mistakes if "<<" not in m.message] == []
    if not mistakes:
        assert to_plain(documents[0]) == value
        assert yaml.safe_load(text) == value


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_input_breaks_the_reader(data: bytes) -> None:
    documents, problems = parse_manifest(data, "x")
    assert documents or problems
