"""Expressions in CEL name fields of our kinds as the version has them that they are asked in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from fairlead.api import names
from fairlead.api.resources import ALL
from fairlead.api.schema import crd
from fairlead.api.schema.conversion import renamed_path, with_beta
from fairlead.decide.admission.jobs import FREE_WHERE_ADOPTED
from fairlead.webhook.configuration import configurations
from fairlead.webhook.policies import policies

Manifest = Mapping[str, Any]
#: A field by its path from an object of ours; a name that a parenthesis follows is a function.
_PATH = re.compile(r"\b(object|oldObject|params)((?:\.[A-Za-z]+\b(?!\())+)")
KINDS = {each.plural: each.kind for each in ALL}
SCHEMAS: Mapping[str, Any] = {
    each["spec"]["names"]["kind"]: each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for each in crd.manifests()
}


def _texts(value: Any) -> Iterator[str]:
    """Yield all expressions of a manifest, those of messages, too."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            is_text = key in ("expression", "messageExpression")
            yield from [inner] if is_text else _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _asked() -> Iterator[tuple[str, Manifest, list[Manifest]]]:
    """Yield the name, the manifest and the rules of all that has expressions."""
    for each in policies("fairlead-system"):
        if "matchConstraints" in each["spec"]:
            spec = each["spec"]
            yield each["metadata"]["name"], spec, spec["matchConstraints"]["resourceRules"]
    for each in configurations("fairlead-system", "fairlead-webhook", ""):
        for hook in each["webhooks"]:
            yield hook["name"], hook, hook["rules"]


def _paths(manifest: Manifest, rules: list[Manifest]) -> Iterator[tuple[str, str]]:
    """Yield (kind, path) of the fields of our kinds that a manifest's expressions name."""
    ours = [rule for rule in rules if rule["apiGroups"] == [names.GROUP]]
    kinds = {KINDS[plural.partition("/")[0]] for rule in ours for plural in rule["resources"]}
    for text in _texts(manifest):
        for root, path in _PATH.findall(text):
            of_params = {manifest["paramKind"]["kind"]} if root == "params" else kinds
            yield from ((kind, path) for kind in of_params)


def _is_known(kind: str, path: str) -> bool:
    schema: Any = SCHEMAS[kind]
    for name in path.strip(".").split("."):
        if name == "metadata":
            return True
        schema = schema.get("properties", {}).get(name)
        if schema is None:
            return False
    return True


def test_expressions_name_fields_that_the_version_has_in_which_they_are_asked() -> None:
    found = [each for _, manifest, rules in _asked() for each in _paths(manifest, rules)]
    assert ("NodeReport", ".status.nodeUid") in found
    assert ("Fleet", ".status.teamsCount") in found
    assert ("Job", ".spec.adopts") in found
    assert [each for each in found if not _is_known(*each)] == []
    assert not _is_known("NodeReport", renamed_path(".status.nodeUid", "NodeReport")), "a canary"
    assert set(SCHEMAS["Job"]["properties"]["spec"]["properties"]) >= set(FREE_WHERE_ADOPTED)


def test_what_is_asked_about_v1beta1_is_asked_in_v1alpha1() -> None:
    for name, manifest, rules in _asked():
        for rule in rules:
            if rule["apiGroups"] == [names.GROUP]:
                assert rule["apiVersions"] == [names.VERSION], name
        place = manifest.get("matchConstraints", manifest)
        assert place.get("matchPolicy", "Equivalent") == "Equivalent", name


def test_a_rule_in_a_schema_whose_fields_v1beta1_would_not_rename_is_refused() -> None:
    (fleet,) = [each for each in crd.manifests() if each["spec"]["names"]["kind"] == "Fleet"]
    schema = fleet["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["x-kubernetes-validations"] = [{"rule": "!has(self.freeze)"}]
    with pytest.raises(AssertionError, match="renames no fields in rules"):
        with_beta(fleet)
