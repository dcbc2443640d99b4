"""`webhook`: what the admission webhook would change or refuse, and why; changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import click

from fairlead.cli.connection.common import Common, common
from fairlead.input.errors import CliError, Code, Exit, Problem, fail


@click.command(
    epilog="""Examples:

    \b
      fairlead webhook -f pod.yaml
      fairlead webhook -f pod.yaml --namespace-labels fairlead.dev/gang-scheduling=enabled
      kubectl get sts web -o yaml | fairlead webhook -f -
      fairlead webhook --explain web-0

    A file is judged without a cluster. It exits with 1 when a job in it would be refused.
    """
)
@click.option("-f", "--file", "file", metavar="FILE", default="",
              help="Manifest of pods, of what makes pods, or of jobs; - reads stdin.")  # fmt: skip
@click.option("--namespace-labels", metavar="K=V,...", default="",
              help="Labels that the namespace has, for --file.")  # fmt: skip
@click.option("--explain", "pod", metavar="POD", default="",
              help="Ask the cluster for a pod and its namespace, and explain it.")  # fmt: skip
@common()
def webhook(common_: Common, *, file: str, namespace_labels: str, pod: str) -> int:
    """Show what the webhook does to new pods and jobs.

    A pod with the label fairlead.dev/gang-scheduling=enabled, or in a namespace that has it, gets a
    scheduling gate until its whole gang has its place. This says what would be changed in a pod and
    why, or why it is left alone; and what is wrong with a job.
    """
    if bool(file) == bool(pod):
        raise fail(
            Code.BAD_COMBINATION, "give one of --file and --explain",
            help=("fairlead webhook -f pod.yaml",),
        )  # fmt: skip
    if pod and namespace_labels:
        raise fail(Code.BAD_COMBINATION, "--explain reads the labels of the namespace itself")
    if pod:
        return _explain(common_, pod)
    return _judge_file(common_, file, _labels(namespace_labels))


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise fail(
                Code.BAD_VALUE, f"--namespace-labels: '{part}' is not KEY=VALUE",
                help=("--namespace-labels fairlead.dev/gang-scheduling=enabled",),
            )  # fmt: skip
        labels[key.strip()] = value.strip()
    return labels


def _judge_file(common_: Common, file: str, labels: Mapping[str, str]) -> int:
    import msgspec

    from fairlead.api import names
    from fairlead.cli.views.webhook import Around, ObjectFinding, judge_object
    from fairlead.decide.admission.pod_gates import GateRules

    around = Around(common_.namespace or names.DEFAULT_NAMESPACE, labels, GateRules())
    findings: list[ObjectFinding] = []
    for where, body in _objects(file):
        try:
            finding = judge_object(body, around)
        except msgspec.ValidationError as error:
            message, _, at = str(error).partition(" - at `$")
            path = at.rstrip("`").removeprefix(".")
            raise CliError(Problem(Code.BAD_FIELD, message, where=where, field=path)) from error
        if finding is None:
            kind = body.get("kind", "an object without a kind")
            common_.note(f"{where}: the webhook has nothing to do with {kind}")
        else:
            findings.append(finding)
    if common_.is_structured:
        common_.data([finding.facts for finding in findings])
    else:
        common_.lines(line for each in findings for line in each.lines)
    return Exit.FAILED if any(each.is_refused for each in findings) else Exit.OK


def _objects(file: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of a file with their places; CliError for what is no YAML."""
    from fairlead.cli.submitting.manifest import read_bytes
    from fairlead.input.yamlmarks import YamlTooLarge, read_documents, to_plain

    try:
        documents, mistakes = read_documents(read_bytes(file).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        message = f"'{file}': byte {error.start} is not UTF-8"
        raise CliError(Problem(Code.MANIFEST_UNREADABLE, message)) from error
    except YamlTooLarge as error:
        raise CliError(Problem(Code.MANIFEST_TOO_LARGE, f"'{file}': {error}")) from error
    if mistakes:
        raise CliError([
            Problem(Code.DUPLICATE_KEY if each.key else Code.MANIFEST_SYNTAX, each.message,
                    where=f"{file}:{each.mark.line}:{each.mark.column}", field=each.key)
            for each in mistakes
        ])  # fmt: skip
    for document in documents:
        where = f"{file}:{document.mark.line}"
        body = to_plain(document)
        if not isinstance(body, dict):
            raise CliError(Problem(Code.MANIFEST_SYNTAX, "an object is a mapping", where=where))
        items = body.get("items")
        if str(body.get("kind", "")).endswith("List") and isinstance(items, list):
            for item in items:
                yield where, item if isinstance(item, dict) else {}
        else:
            yield where, body


def _explain(common_: Common, name: str) -> int:
    import msgspec

    from fairlead.api.resources import NAMESPACES, PODS
    from fairlead.api.status import NotFound
    from fairlead.cli.job_request.job_names import clean_reference
    from fairlead.cli.views.webhook import Around, judge_shape, pod_finding
    from fairlead.decide.admission.pod_gates import GateRules, PodGateShape
    from fairlead.webhook.configuration import MUTATING, NAME

    with closing(common_.connect()) as api:
        space = common_.space(api.connection.namespace)
        try:
            body = api.get(PODS.raw, clean_reference(name), namespace=space)
        except NotFound as error:
            raise fail(
                Code.NO_SUCH_POD, f"there is no pod '{clean_reference(name)}' in {space}",
                help=("fairlead webhook -f FILE judges a pod that is not there yet",),
            ) from error  # fmt: skip
        labels = api.get(NAMESPACES, space).metadata.labels
        try:
            own = _own_namespace(api.get(MUTATING.raw, NAME))
        except NotFound:
            own = ""
    shape = msgspec.convert(body, PodGateShape)
    spec = msgspec.structs.replace(shape.spec, node_name=None)
    judged = msgspec.structs.replace(shape, spec=spec)
    around = Around(space, labels, GateRules(own_namespace=own) if own else GateRules())
    finding = pod_finding(
        f"Pod {space}/{shape.shown_name}", space, judge_shape(judged, space, around)
    )
    if common_.is_structured:
        common_.data(finding.facts)
    else:
        common_.lines(finding.lines)
    if not own:
        common_.note("No API server asks: this cluster has no webhook; see fairlead install.")
    if shape.spec.node_name:
        node = shape.spec.node_name
        common_.note(f"It is on {node} now, and is judged as it was before. A pod that is created "
                     "with spec.nodeName is left alone.")  # fmt: skip
    return Exit.OK


def _own_namespace(configuration: Mapping[str, Any]) -> str:
    """Return the namespace of the Service that API servers call; "" for a URL."""
    for each in configuration.get("webhooks") or ():
        service = (each.get("clientConfig") or {}).get("service")
        if service:
            return str(service.get("namespace") or "")
    return ""
