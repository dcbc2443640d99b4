"""Defaults and rules of webhook configurations, as findings with field paths.

The rules are those of Kubernetes (`pkg/apis/admissionregistration/validation/validation.go`), with
two of our own: CEL match conditions are not evaluated here, so a configuration that has some is
refused rather than called too often; and a cluster that cannot call anybody (no HTTP server is
running, as in the simulator) takes no configurations. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from fairlead.api.kubernetes import webhooks as types
from fairlead.api.kubernetes.selectors import is_label_value, is_qualified_name
from fairlead.api.status import BadRequest
from fairlead.embedded import builtins
from fairlead.embedded.resource_info import NameRule, ResourceInfo
from fairlead.embedded.verbs import errors
from fairlead.embedded.verbs.errors import FieldProblem, ProblemType
from fairlead.embedded.verbs.strategies import structural
from fairlead.embedded.verbs.strategies.validation import name_problem

TIMEOUT_SECONDS_MAX = 30
TIMEOUT_SECONDS = 10
PORT = 443
PORT_MAX = 65_535
REVIEW_VERSIONS = ("v1", "v1beta1")
_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_SCOPES = ("*", "Cluster", "Namespaced")
_SIDE_EFFECTS = ("None", "NoneOnDryRun")
_POLICIES = ("Fail", "Ignore")
_MATCHES = ("Equivalent", "Exact")
_REINVOCATIONS = ("IfNeeded", "Never")
_FORM = "; desired format: https://host[/path]"

Obj = dict[str, Any]


def admit(info: ResourceInfo, obj: Obj, *, can_call: bool) -> None:
    """Default a configuration in place.

    BadRequest for what does not decode, Invalid when nothing here could call the webhooks.
    """
    fixed = structural.repair(info, obj)
    try:
        _webhooks(info, fixed)
    except msgspec.ValidationError as error:  # what a schema lets pass: a null in a list
        raise _undecodable(info, str(error)) from None
    hooks = fixed.get("webhooks")
    if hooks and not can_call:
        why = "no API server is running that could call webhooks; serve this cluster over HTTP"
        problem = FieldProblem("webhooks", ProblemType.FORBIDDEN, why)
        raise errors.invalid(info, str(fixed["metadata"].get("name", "")), [problem])
    if hooks is None:
        obj.pop("webhooks", None)
        return
    is_mutating = info is builtins.MUTATING_WEBHOOKS
    obj["webhooks"] = [_defaulted(info, hook, is_mutating=is_mutating) for hook in hooks]


def _defaulted(info: ResourceInfo, hook: Mapping[str, Any], *, is_mutating: bool) -> Obj:
    out: Obj = {
        "failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": {},
        "objectSelector": {}, "timeoutSeconds": TIMEOUT_SECONDS,
    }  # fmt: skip
    if is_mutating:
        out["reinvocationPolicy"] = "Never"
    out.update(hook)
    if "rules" in hook:
        out["rules"] = [{"scope": "*", **rule} for rule in hook["rules"]]
    client = dict(hook.get("clientConfig") or {})
    if client.get("service") is not None:
        client["service"] = {"port": PORT, **client["service"]}
    if client.get("caBundle"):
        _check_base64(info, client["caBundle"])
    out["clientConfig"] = client
    return out


def _check_base64(info: ResourceInfo, text: str) -> None:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        raise _undecodable(info, "caBundle: illegal base64 data") from None


def _undecodable(info: ResourceInfo, why: str) -> BadRequest:
    return BadRequest(
        f'{info.kind} in version "{info.version}" cannot be handled as a {info.kind}: {why}'
    )


def _webhooks(info: ResourceInfo, obj: Obj) -> Sequence[types.ValidatingWebhook]:
    if info is builtins.MUTATING_WEBHOOKS:
        return msgspec.convert(obj, types.MutatingWebhookConfiguration).webhooks
    return msgspec.convert(obj, types.ValidatingWebhookConfiguration).webhooks


def problems(info: ResourceInfo, obj: Obj) -> list[FieldProblem]:
    """Return what is wrong with a defaulted configuration."""
    found: list[FieldProblem] = []
    names: list[str] = []
    for i, hook in enumerate(_webhooks(info, obj)):
        at = f"webhooks[{i}]"
        found += _hook_problems(hook, at)
        if hook.name and hook.name in names:
            found.append(FieldProblem(f"{at}.name", ProblemType.DUPLICATE, "", hook.name))
        names.append(hook.name)
    return found


def _hook_problems(hook: types.ValidatingWebhook, at: str) -> Iterable[FieldProblem]:
    yield from _name_problems(hook.name, f"{at}.name")
    for i, rule in enumerate(hook.rules):
        yield from _rule_problems(rule, f"{at}.rules[{i}]")
    yield from _one_of(f"{at}.failurePolicy", hook.failure_policy, _POLICIES)
    yield from _one_of(f"{at}.matchPolicy", hook.match_policy, _MATCHES)
    if not hook.side_effects:
        why = f"must specify one of {', '.join(_SIDE_EFFECTS)}"
        yield FieldProblem(f"{at}.sideEffects", ProblemType.REQUIRED, why)
    else:
        yield from _one_of(f"{at}.sideEffects", hook.side_effects, _SIDE_EFFECTS)
    seconds = hook.timeout_seconds
    if seconds is not None and not 1 <= seconds <= TIMEOUT_SECONDS_MAX:
        why = f"the timeout value must be between 1 and {TIMEOUT_SECONDS_MAX} seconds"
        yield FieldProblem(f"{at}.timeoutSeconds", ProblemType.INVALID, why, seconds)
    yield from _selector_problems(hook.namespace_selector, f"{at}.namespaceSelector")
    yield from _selector_problems(hook.object_selector, f"{at}.objectSelector")
    if isinstance(hook, types.MutatingWebhook):
        yield from _one_of(f"{at}.reinvocationPolicy", hook.reinvocation_policy, _REINVOCATIONS)
    yield from _client_problems(hook.client_config, f"{at}.clientConfig")
    if hook.match_conditions:
        why = "CEL expressions are not evaluated by the embedded cluster; use rules and selectors"
        yield FieldProblem(f"{at}.matchConditions", ProblemType.FORBIDDEN, why)
    yield from _version_problems(hook.admission_review_versions, f"{at}.admissionReviewVersions")


def _one_of(path: str, value: str, accepted: tuple[str, ...]) -> Iterable[FieldProblem]:
    if value not in accepted:
        why = "supported values: " + ", ".join(f'"{each}"' for each in accepted)
        yield FieldProblem(path, ProblemType.NOT_SUPPORTED, why, value)


def _name_problems(name: str, path: str) -> Iterable[FieldProblem]:
    if not name:
        yield FieldProblem(path, ProblemType.REQUIRED)
    elif why := name_problem(NameRule.SUBDOMAIN, name):
        yield FieldProblem(path, ProblemType.INVALID, why, name)
    elif name.count(".") < 2:
        why = "should be a domain with at least three segments separated by dots"
        yield FieldProblem(path, ProblemType.INVALID, why, name)


def _rule_problems(rule: types.RuleWithOperations, at: str) -> Iterable[FieldProblem]:
    for field, values, what in (
        ("operations", rule.operations, "operations"),
        ("apiGroups", rule.api_groups, "API groups"),
        ("apiVersions", rule.api_versions, "API versions"),
    ):
        if not values:
            yield FieldProblem(f"{at}.{field}", ProblemType.REQUIRED)
        if len(values) > 1 and "*" in values:
            why = f"if '*' is present, must not specify other {what}"
            yield FieldProblem(f"{at}.{field}", ProblemType.INVALID, why, list(values))
    for i, operation in enumerate(rule.operations):
        yield from _one_of(f"{at}.operations[{i}]", operation, _OPERATIONS)
    for i, version in enumerate(rule.api_versions):
        if not version:
            yield FieldProblem(f"{at}.apiVersions[{i}]", ProblemType.REQUIRED)
    yield from _resource_problems(rule.resources, f"{at}.resources")
    yield from _one_of(f"{at}.scope", rule.scope, _SCOPES)


def _resource_problems(resources: tuple[str, ...], at: str) -> Iterable[FieldProblem]:
    if not resources:
        yield FieldProblem(at, ProblemType.REQUIRED)
    whole: list[str] = []  # resources given with all their sub-resources
    everywhere: list[str] = []  # sub-resources given for all resources
    for i, text in enumerate(resources):
        if not text:
            yield FieldProblem(f"{at}[{i}]", ProblemType.REQUIRED)
            continue
        resource, slash, sub = text.partition("/")
        if not slash:
            continue
        for given, wildcard in ((whole, f"{resource}/*"), (everywhere, f"*/{sub}")):
            if (resource if given is whole else sub) in given:
                why = f"if '{wildcard}' is present, must not specify {text}"
                yield FieldProblem(f"{at}[{i}]", ProblemType.INVALID, why, text)
        if sub == "*":
            whole.append(resource)
        if resource == "*":
            everywhere.append(sub)
    if len(resources) > 1 and "*/*" in resources:
        why = "if '*/*' is present, must not specify other resources"
        yield FieldProblem(at, ProblemType.INVALID, why, list(resources))
    if "*" in resources and any(r not in ("", "*") and "/" not in r for r in resources):
        why = "if '*' is present, must not specify other resources without subresources"
        yield FieldProblem(at, ProblemType.INVALID, why, list(resources))


def _selector_problems(selector: types.LabelSelector | None, at: str) -> Iterable[FieldProblem]:
    if selector is None:
        return
    for key, value in selector.match_labels.items():
        yield from _key_problems(key, f"{at}.matchLabels")
        yield from _value_problems(value, f"{at}.matchLabels")
    for i, term in enumerate(selector.match_expressions):
        path = f"{at}.matchExpressions[{i}]"
        if term.operator in ("In", "NotIn"):
            if not term.values:
                why = "must be specified when `operator` is 'In' or 'NotIn'"
                yield FieldProblem(f"{path}.values", ProblemType.REQUIRED, why)
        elif term.operator not in ("Exists", "DoesNotExist"):
            why = "not a valid selector operator"
            yield FieldProblem(f"{path}.operator", ProblemType.INVALID, why, term.operator)
        elif term.values:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield FieldProblem(f"{path}.values", ProblemType.FORBIDDEN, why)
        yield from _key_problems(term.key, f"{path}.key")
        for j, value in enumerate(term.values):
            yield from _value_problems(value, f"{path}.values[{j}]")


def _key_problems(key: str, path: str) -> Iterable[FieldProblem]:
    if not is_qualified_name(key):
        why = "a qualified name has at most 63 characters after an optional DNS prefix and '/'"
        yield FieldProblem(path, ProblemType.INVALID, why, key)


def _value_problems(value: str, path: str) -> Iterable[FieldProblem]:
    if not is_label_value(value):
        why = "a label value has at most 63 characters, alphanumeric ones at both ends"
        yield FieldProblem(path, ProblemType.INVALID, why, value)


def _client_problems(client: types.WebhookClientConfig, at: str) -> Iterable[FieldProblem]:
    if (client.url is None) == (client.service is None):
        yield FieldProblem(at, ProblemType.REQUIRED, "exactly one of url or service is required")
    elif client.url is not None:
        yield from _url_problems(client.url, f"{at}.url")
    elif client.service is not None:
        yield from _service_problems(client.service, f"{at}.service")


def _url_problems(url: str, path: str) -> Iterable[FieldProblem]:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        why = f"url must be a valid URL: {error}{_FORM}"
        yield FieldProblem(path, ProblemType.REQUIRED, why)
        return
    if parts.scheme != "https":
        why = f"'https' is the only allowed URL scheme{_FORM}"
        yield FieldProblem(path, ProblemType.INVALID, why, parts.scheme)
    if not host:
        yield FieldProblem(path, ProblemType.INVALID, f"host must be specified{_FORM}", "")
    if "@" in parts.netloc:
        why = "user information is not permitted in the URL"
        yield FieldProblem(path, ProblemType.INVALID, why, parts.username or "")
    if parts.fragment:
        why = "fragments are not permitted in the URL"
        yield FieldProblem(path, ProblemType.INVALID, why, parts.fragment)
    if parts.query:
        why = "query parameters are not permitted in the URL"
        yield FieldProblem(path, ProblemType.INVALID, why, parts.query)


def _service_problems(service: types.ServiceReference, at: str) -> Iterable[FieldProblem]:
    if not service.name:
        yield FieldProblem(f"{at}.name", ProblemType.REQUIRED)
    if not service.namespace:
        yield FieldProblem(f"{at}.namespace", ProblemType.REQUIRED)
    if not 1 <= service.port <= PORT_MAX:
        why = f"port is not valid: must be between 1 and {PORT_MAX}, inclusive"
        yield FieldProblem(f"{at}.port", ProblemType.INVALID, why, service.port)
    path = service.path
    if not path or path == "/":
        return
    if not path.startswith("/"):
        yield FieldProblem(f"{at}.path", ProblemType.INVALID, "must start with a '/'", path)
    for i, segment in enumerate(path[1:].removesuffix("/").split("/")):
        why = name_problem(NameRule.SUBDOMAIN, segment) if segment else "may not be empty"
        if why:
            yield FieldProblem(f"{at}.path", ProblemType.INVALID, f"segment[{i}]: {why}", path)


def _version_problems(versions: tuple[str, ...], at: str) -> Iterable[FieldProblem]:
    if not versions:
        why = f"must specify one of {', '.join(REVIEW_VERSIONS)}"
        yield FieldProblem(at, ProblemType.REQUIRED, why)
        return
    for i, version in enumerate(versions):
        if version in versions[:i]:
            yield FieldProblem(f"{at}[{i}]", ProblemType.INVALID, "duplicate version", version)
        elif why := name_problem(NameRule.DNS_1035, version):
            yield FieldProblem(f"{at}[{i}]", ProblemType.INVALID, why, version)
    if "v1" not in versions:
        why = "must include v1, the only version that the embedded cluster speaks"
        yield FieldProblem(at, ProblemType.INVALID, why, list(versions))
