"""What Fairlead consists of on a cluster: the objects of the Helm chart, for `fairlead install`.

The source is `chart/`: templates as Helm reads them, with the comments that explain them. Kinds and
webhook configurations, which other modules define, become templates here. `chart.py` writes all of
it to `deploy/helm`; `manifests` renders it, so chart and command make the same objects. Only the
command makes the namespace: for a chart Helm does that (`--create-namespace`).

The rights are exactly those that the controllers use: a test runs them under these rights on a real
API server and compares what they asked for with what they were given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml

from fairlead import __version__
from fairlead.api import names
from fairlead.api.schema import crd
from fairlead.api.schema.conversion import with_beta
from fairlead.decide.adoption.source_kinds import rules as source_rules
from fairlead.doctor.monitoring.alerts import groups as alert_groups
from fairlead.doctor.monitoring.boards import boards as monitoring_boards
from fairlead.input.sections import Tree, plain
from fairlead.input.yamlwrite import to_yaml
from fairlead.install.template import render
from fairlead.install.values import Values
from fairlead.webhook.configuration import INJECT, SERVICE, configurations
from fairlead.webhook.definitions import conversion
from fairlead.webhook.policies import BINDING, POLICY, policies

Manifest = dict[str, Any]

NAME = "fairlead-controller"
HISTORY = "fairlead-history"
PART_OF = ("app.kubernetes.io/part-of", "fairlead")
#: The chart's own files; `templates/` has one object in each.
CHART = Path(__file__).with_name("chart")
#: What Helm refuses and how it greets; the command has its own words for both.
_NOT_OBJECTS = frozenset({"checks.yaml"})
#: Kinds in the order in which their objects are created.
_ORDER = (
    "Namespace", "CustomResourceDefinition", "PriorityClass", "ServiceAccount", "ClusterRole",
    "ClusterRoleBinding", "Role", "RoleBinding", "Service", "ServiceMonitor", "PrometheusRule",
    "NetworkPolicy", "PodDisruptionBudget",
    "PersistentVolumeClaim", "Certificate", POLICY, BINDING, "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration", "ConfigMap", "Deployment", "DaemonSet",
)  # fmt: skip
#: What is not deleted when the values no longer ask for it.
_KEPT_KINDS = frozenset({"CustomResourceDefinition", "PersistentVolumeClaim"})


@dataclass(frozen=True, slots=True)
class Install:
    """An installation: where, and what was chosen."""

    namespace: str = names.OWN_NAMESPACE
    values: Values = field(default_factory=Values)
    #: The release of Helm whose objects these are; "" for those of `fairlead install`.
    helm_release: str = ""


def manifests(install: Install) -> list[Manifest]:
    """Return everything that was chosen, in the order in which it can be created."""
    return [manifest for manifest, is_chosen in all_objects(install) if is_chosen]


def unwanted(install: Install) -> list[Manifest]:
    """Return what an earlier choice may have left; not what holds jobs or their history."""
    return [
        manifest
        for manifest, is_chosen in all_objects(install)
        if not is_chosen and manifest["kind"] not in _KEPT_KINDS
    ]


def all_objects(install: Install) -> Iterator[tuple[Manifest, bool]]:
    """Yield every object that there may be, and whether it was chosen; in order of creation."""
    release = install.helm_release
    context = {
        "Values": _without_nulls(plain(install.values)),
        "Release": {
            "Name": release or "fairlead", "Namespace": install.namespace,
            "Service": "Helm" if release else "fairlead",
        },
        "Chart": {"Name": "fairlead", "Version": __version__, "AppVersion": __version__},
    }  # fmt: skip
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    for text in _in_order(with_namespace=not release):
        rendered = render(text, context, helpers)
        is_chosen = bool(rendered.strip())
        if not is_chosen:
            rendered = render(_unconditional(text), context, helpers)
        yield yaml.load(rendered, Loader=yaml.CSafeLoader), is_chosen


def _without_nulls(tree: Tree) -> Tree:
    """Return values as Helm has them: a key whose value is null is not there."""
    return {
        key: _without_nulls(cast("Tree", value)) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


@cache
def _in_order(*, with_namespace: bool) -> list[str]:
    """Return the text of every template, in the order in which the objects can be created."""

    def rank(text: str) -> int:
        found = re.search(r"^kind: (\w+)$", text, re.MULTILINE)
        assert found, "a template has the kind of its object on a line of its own"
        return _ORDER.index(found[1])

    namespace = [Path(__file__).with_name("namespace.yaml").read_text()] if with_namespace else []
    return sorted([*namespace, *templates().values()], key=rank)


def _unconditional(text: str) -> str:
    """Return a template without the condition around all of it."""
    lines = text.splitlines()
    assert (lines[0][:6], lines[-1]) == ("{{- if", "{{- end }}")
    return "\n".join(lines[1:-1])


def templates() -> Mapping[str, str]:
    """Return the templates of the objects in the chart: file name -> text."""
    files = sorted((CHART / "templates").glob("*.yaml"))
    found = {path.name: path.read_text() for path in files if path.name not in _NOT_OBJECTS}
    found["clusterrole.yaml"] = found["clusterrole.yaml"].replace(f"{_SOURCES}\n", _source_rules())
    found |= _definitions()
    inject = {INJECT: f"{_NAMESPACE}/{SERVICE}"}
    # Without a caBundle: the keeper of the certificate fills it in, and applying keeps it.
    for manifest in configurations(
        _NAMESPACE, SERVICE, "", system_namespaces=(_SYSTEM_NAMESPACES,)
    ):
        found[f"{manifest['kind'].lower()}.yaml"] = _generated(
            manifest, "webhook.enabled", "webhook.certManager.enabled", inject
        )
    for manifest in policies(_NAMESPACE, system_namespaces=(_SYSTEM_NAMESPACES,)):
        name = manifest["metadata"]["name"].removeprefix(f"{names.GROUP}-")
        file = f"{manifest['kind'].lower()}-{name}.yaml"
        found[file] = _generated(manifest, "admissionPolicies.enabled")
    boards = {name: json.dumps(board) for name, board in monitoring_boards().items()}
    found |= {
        "prometheusrule.yaml": _linked(
            _for_monitoring(
                "monitoring.coreos.com/v1",
                "PrometheusRule",
                "alerts",
                {"spec": alert_groups(runbooks=_RUNBOOKS)},
            )
        ),
        "configmap-dashboards.yaml": _for_monitoring(
            "v1", "ConfigMap", "dashboards", {"data": boards}
        ),
    }
    return dict(sorted(found.items()))


def definition_templates() -> Mapping[str, str]:
    """Return the templates of the chart that has the definitions alone, whatever its values."""
    return {name: f"{_unconditional(text)}\n" for name, text in _definitions().items()}


def _definitions() -> dict[str, str]:
    # As templates, not in crds/: Helm never upgrades what is in there.
    keep = {"helm.sh/resource-policy": "keep"}
    return {
        f"customresourcedefinition-{manifest['spec']['names']['plural']}.yaml": _with_beta(
            _generated(manifest, "crds.install", "crds.keep", keep), manifest
        )
        for manifest in crd.manifests()
    }


def _source_rules() -> str:
    """Return the rights to read what stands behind groups of other tools' pods."""
    return "".join(
        f"- apiGroups: [{group}]\n  resources: [{', '.join(plurals)}]\n  verbs: [get]\n"
        for group, plurals in source_rules()
    )


def _linked(rules: str) -> str:
    """Return rules whose links there are when the values say where the runbooks are."""
    return re.sub(
        rf"^( *)runbook_url: {_RUNBOOKS}(.*)$",
        r"\1{{- with .Values.metrics.alerts.runbookUrl }}\n\1runbook_url: {{ . }}\2\n\1{{- end }}",
        rules, flags=re.MULTILINE,
    )  # fmt: skip


def _for_monitoring(version: str, kind: str, value: str, body: Manifest) -> str:
    """Return an object beside the controllers that `metrics.VALUE.enabled` asks for."""
    return _MONITORING.format(
        version=version, kind=kind, value=value, body=to_yaml(body).replace("{{", '{{ "{{" }}')
    )


def _generated(
    manifest: Manifest, condition: str, annotated: str = "",
    annotations: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Return a cluster-wide object as a template: there, and annotated, when the values say so."""
    metadata = manifest["metadata"]
    assert "annotations" not in metadata, "they would be lost"
    body = {key: value for key, value in manifest.items() if key not in _FRAME_KEYS}
    lines = "".join(f"    {line}\n" for line in to_yaml(annotations or {}).splitlines())
    text = _FRAME.format(
        condition=condition, name=metadata["name"],
        notes=_NOTES.format(annotated=annotated, lines=lines) if annotations else "",
        body=to_yaml(body).replace("{{", '{{ "{{" }}'), **manifest,
    )  # fmt: skip
    text = re.sub(_SYSTEM_LINE, _system_lines, text, flags=re.MULTILINE)
    text = text.replace(f"{_NAMESPACE}/", "{{ .Release.Namespace }}/")
    return text.replace(_NAMESPACE, "{{ .Release.Namespace | toJson }}")


def _with_beta(text: str, manifest: Manifest) -> str:
    """Return the template of a definition that serves v1beta1, too, where the values say so."""
    spec = with_beta(manifest)["spec"]
    added = {"versions": spec["versions"][1:], "conversion": conversion(_NAMESPACE, SERVICE)}
    assert next(reversed(spec)) == "versions", "they are continued at the end"
    lines = to_yaml({"spec": added}).splitlines(keepends=True)[2:]
    body = "".join(lines).replace("{{", '{{ "{{" }}')
    body = body.replace(_NAMESPACE, "{{ .Release.Namespace | toJson }}")
    end = "{{- end }}\n"
    text = text.replace(_KEEP_NOTE, _KEEP_OR_INJECT_NOTE)
    assert text.endswith(end)
    assert _KEEP_OR_INJECT_NOTE in text
    return f"{text.removesuffix(end)}{{{{- if .Values.crds.v1beta1 }}}}\n{body}{end}{end}"


def _system_lines(found: re.Match[str]) -> str:
    """Return the lines of a list that has the namespaces of the settings."""
    indent = found[1]
    return (
        f"{indent}{{{{- with .Values.settings.teams.systemNamespaces }}}}\n"
        f"{indent}{{{{- toYaml . | nindent {len(indent)} }}}}\n{indent}{{{{- end }}}}"
    )


#: In a generated template: where the namespace of the release goes, and those of the settings.
_NAMESPACE, _SYSTEM_NAMESPACES = "release-namespace", "system-namespaces"
_SYSTEM_LINE = f"^( *)- {_SYSTEM_NAMESPACES}$"
_FRAME_KEYS = frozenset({"apiVersion", "kind", "metadata"})
_FRAME = """{{{{- if .Values.{condition} }}}}
apiVersion: {apiVersion}
kind: {kind}
metadata:
  name: {name}
  labels:
    {{{{- include "fairlead.labels" . | nindent 4 }}}}
{notes}{body}{{{{- end }}}}
"""
_NOTES = """  {{{{- if .Values.{annotated} }}}}
  annotations:
{lines}  {{{{- end }}}}
"""


#: Annotations of a definition: for Helm, and for cert-manager where objects are converted.
_KEEP_NOTE = """    helm.sh/resource-policy: keep
  {{- end }}
"""
_INJECT_NOTE = f"""    {INJECT}: {{{{ .Release.Namespace }}}}/{SERVICE}
{{{{- end }}}}
{{{{- end }}}}
"""
_INJECTED = """{{- if .Values.crds.v1beta1 }}
{{- if .Values.webhook.certManager.enabled }}
"""
_KEEP_OR_INJECT_NOTE = (
    f"    helm.sh/resource-policy: keep\n{_INJECTED}{_INJECT_NOTE}  {{{{- else }}}}\n"
    f"{_INJECTED}  annotations:\n{_INJECT_NOTE}  {{{{- end }}}}\n"
)
#: Where in the ClusterRole the rights to read sources go.
_SOURCES = "SOURCES"
#: Stands in the rules for the URL that the values give.
_RUNBOOKS = "RUNBOOKS"
_MONITORING = """{{{{- if .Values.metrics.{value}.enabled }}}}
apiVersion: {version}
kind: {kind}
metadata:
  name: fairlead-{value}
  namespace: {{{{ .Release.Namespace | toJson }}}}
  labels:
    {{{{- include "fairlead.labels" . | nindent 4 }}}}
    {{{{- with .Values.metrics.{value}.labels }}}}
    {{{{- toYaml . | nindent 4 }}}}
    {{{{- end }}}}
{body}{{{{- end }}}}
"""


def path_of(manifest: Manifest) -> str:
    """Return the URL path of a manifest's object."""
    kind, metadata = manifest["kind"].lower(), manifest["metadata"]
    ending = "es" if kind.endswith("s") else "s"
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}{ending}"
    middle = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{prefix_of(manifest)}{middle}/{plural}/{metadata['name']}"


def prefix_of(manifest: Manifest) -> str:
    """Return the URL path of the API group and version of a manifest's kind."""
    version = manifest["apiVersion"]
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def label_of(manifest: Manifest) -> str:
    """Return `kind namespace/name`, for people."""
    metadata = manifest["metadata"]
    space = f"{metadata['namespace']}/" if "namespace" in metadata else ""
    return f"{manifest['kind']} {space}{metadata['name']}"
