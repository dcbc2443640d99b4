"""The part of Helm's template language that `fairlead install` evaluates."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from fairlead.install.template import TemplateError, render

VALUES = {
    "on": True, "off": False, "name": "x", "map": {"a": "1", "b": "yes"}, "none": {},
    "list": [1, "2"],
}  # fmt: skip
CONTEXT = {"Values": VALUES, "Release": {"Namespace": "space"}}


def read(text: str, definitions: str = "") -> Any:
    return yaml.safe_load(render(text, CONTEXT, definitions))


def test_a_branch_that_is_not_taken_leaves_no_trace() -> None:
    text = """\
{{- if .Values.on }}
kept: 1
  {{- if .Values.off }}
gone: {{ .Values.unknown }}
  {{- else }}
inner: 2
  {{- end }}
{{- else }}
gone: 3
{{- end }}
{{- if eq .Values.name "y" }}
gone: 4
{{- else }}
other: {{ .Values.name | toJson }}
{{- end }}
"""
    assert read(text) == {"kept": 1, "inner": 2, "other": "x"}


def test_with_sets_the_dot_and_leaves_out_what_is_empty() -> None:
    text = """\
labels:
  own: o
  {{- with .Values.map }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.none }}
gone: {{ . | toJson }}
{{- end }}
list:
  {{- toYaml .Values.list | nindent 2 }}
"""
    assert read(text) == {"labels": {"own": "o", "a": "1", "b": "yes"}, "list": [1, "2"]}


def test_a_named_template_is_included_with_its_indentation() -> None:
    definitions = """\
{{- define "inner" -}}
a: {{ .Values.name }}
{{- end }}

{{- define "outer" -}}
{{ include "inner" . }}
{{- if .Values.on }}
b: 2
{{- end }}
{{- end }}
"""
    text = 'x:\n  {{- include "outer" . | nindent 2 }}\n'
    assert render(text, CONTEXT, definitions) == "x:\n  a: x\n  b: 2\n"


def test_texts_are_made_of_values_and_keep_their_type() -> None:
    text = (
        'a: {{ printf "100%%/%v@%v" .Values.name .Release.Namespace | toJson }}\n'
        "b: {{ .Values.list | toJson | toJson }}\n"
        'c: "{{ "{{" }} x }}"\n'
    )
    assert read(text) == {"a": "100%/x@space", "b": '[1,"2"]', "c": "{{ x }}"}


def test_a_value_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError, match="tagg"):
        read("a: {{ .Values.map.tagg }}")


@pytest.mark.parametrize(
    "text",
    [
        "{{- range .Values.list }}\n{{- end }}",
        "a: {{ .Values.name | upper }}",
        "a: {{ default .Values.name }}",
        "{{- if .Values.on }}\na: 1",
        "{{- else }}",
        "a: {{ name }}",
    ],
)
def test_what_is_not_supported_is_an_error(text: str) -> None:
    with pytest.raises(TemplateError):
        read(text)
