"""`install`: CRDs, rights, controllers and metrics on a Kubernetes cluster."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.api.names import OWN_NAMESPACE
from fairlead.cli.connection.common import Common, Format, common, dump
from fairlead.input.errors import CliError, Code, Exit, fail

if TYPE_CHECKING:
    from fairlead.install.manifests import Install
    from fairlead.install.values import Values
    from fairlead.kube.blocking import BlockingClient

REPLICAS_MAX = 10


@click.command(
    epilog="""Examples:

    \b
      fairlead install --image REGISTRY/fairlead:0.1.0
      fairlead install --values values.yaml         the keys of the Helm chart's values.yaml
      fairlead install --check                      say what is missing or differs
      fairlead install --dry-run                    say what it would do
      fairlead install --dry-run -o yaml            print the manifests; needs no cluster

    It may be repeated: what is there already is brought up to date, what others added stays, and
    what the values do not want any more is removed.
    """
)
@click.option("--values", "values_file", metavar="FILE", type=click.Path(path_type=Path),
              help="YAML file of values; flags win over it.")  # fmt: skip
@click.option("--image", metavar="IMAGE", default="",
              help="Image of the controllers. [default: fairlead:VERSION]")  # fmt: skip
@click.option("--replicas", metavar="N", type=click.IntRange(1, REPLICAS_MAX),
              help="Replicas; one leads, the others stand by. [default: 2]")  # fmt: skip
@click.option("--dry-run", "is_dry", is_flag=True, help="Change nothing.")
@click.option("--check", "is_check", is_flag=True,
              help="Change nothing; exit with 1 unless all is there and well.")  # fmt: skip
@common()
def install(
    common_: Common, *, values_file: Path | None, image: str, replicas: int | None, is_dry: bool,
    is_check: bool,
) -> int:  # fmt: skip
    """Put Fairlead on a Kubernetes cluster.

    CRDs, a namespace (-n, default fairlead-system), a service account with the least rights, two
    replicas of `fairlead controller`, and a Service for their metrics.
    """
    from fairlead.install.manifests import Install, manifests

    if is_dry and is_check:
        raise fail(Code.BAD_COMBINATION, "--dry-run and --check do not go together")
    is_structured = common_.is_structured
    if is_structured and is_check:
        raise fail(Code.BAD_COMBINATION, "--check prints lines: it does not go with -o")
    values = _values(values_file, image, replicas)
    chosen = Install(common_.namespace or OWN_NAMESPACE, values)
    if is_structured and is_dry:
        common_.emit(render(manifests(chosen), common_.format))
        return Exit.OK
    if is_dry or is_check:
        return _look(common_, chosen, is_check=is_check)
    _apply(common_, chosen)
    if is_structured:
        common_.emit(render(manifests(chosen), common_.format))
    return Exit.OK


def _values(path: Path | None, image: str, replicas: int | None) -> Values:
    """Return what was chosen: the flags, else the file, else the defaults."""
    import msgspec

    from fairlead.install.values import Values, conflicts, load_values, with_image

    values = Values() if path is None else load_values(path)
    if image:
        values = msgspec.structs.replace(values, image=with_image(values.image, image))
    if replicas is not None:
        values = msgspec.structs.replace(values, replicas=replicas)
    for name, message in conflicts(values):
        raise fail(Code.BAD_COMBINATION, f"{name}: {message}")
    return values


def render(objects: list[dict[str, object]], format_: Format) -> str:
    """Return manifests as YAML documents, or as one List in JSON."""
    if format_ is Format.JSON:
        return dump({"apiVersion": "v1", "kind": "List", "items": objects}, format_)
    return "---\n".join(dump(each, Format.YAML) for each in objects)


def _look(common_: Common, chosen: Install, *, is_check: bool) -> int:
    from fairlead.install.history_storage import advice, missing_class, read_storage_classes
    from fairlead.install.installer import (
        ObjectState,
        check_access,
        look,
        look_need,
        look_unwanted,
        needs,
    )
    from fairlead.install.manifests import manifests, unwanted

    would = {
        ObjectState.MISSING: "would be created", ObjectState.DIFFERS: "would be changed",
        ObjectState.UNWANTED: "would be deleted",
    }  # fmt: skip
    is_well = True
    with closing(common_.connect()) as api:
        check_access(api, chosen)
        release = _helm_release(api, chosen)
        if release and not is_check:
            raise _refusal(release, chosen)
        chosen = dataclasses.replace(chosen, helm_release=release)
        history, classes = chosen.values.history, read_storage_classes(api)
        found = [look(api, manifest) for manifest in manifests(chosen)]
        if is_check:
            found += [look_need(api, need) for need in needs(chosen)]
            lacking = missing_class(history, classes)
            found += [lacking] if lacking is not None else []
        found += [each for m in unwanted(chosen) if (each := look_unwanted(api, m)) is not None]
    for each in found:
        is_well = is_well and each.is_well
        word = each.state.value if is_check else would.get(each.state, "unchanged")
        note = f" ({each.note})" if each.note else ""
        common_.emit(f"{each.label}: {word}{note}\n")
    if is_check and (said := advice(history, classes)):
        common_.note(said)
    if is_check and not is_well:
        if release:
            get = f"helm get values {release} -n {chosen.namespace} -o yaml > values.yaml"
            common_.note(f"The values of the release: {get}; then --values values.yaml")
        remedy = f"helm upgrade {release}" if release else "fairlead install"
        common_.note(f"Not all is well; {remedy} brings its own objects up to date.")
        return Exit.FAILED
    return Exit.OK


def _helm_release(api: BlockingClient, chosen: Install) -> str:
    """Return the release of Helm that has the controllers; "" when there is none."""
    from fairlead.install.installer import get, helm_release
    from fairlead.install.manifests import manifests

    return helm_release(get(api, m) for m in manifests(chosen) if m["kind"] == "Deployment")


def _refusal(release: str, chosen: Install) -> CliError:
    return fail(
        Code.REFUSED, f"Helm installed Fairlead here, as release '{release}'",
        detail=("nothing was changed",),
        help=(f"helm upgrade {release} deploy/helm/fairlead -n {chosen.namespace}",
              "fairlead install --check says what differs from the values"),
    )  # fmt: skip


def _apply(common_: Common, chosen: Install) -> None:
    from fairlead.decide.words import plural
    from fairlead.install.history_storage import advice, read_storage_classes
    from fairlead.install.installer import (
        apply,
        await_established,
        check_access,
        look_unwanted,
        remove,
    )
    from fairlead.install.manifests import label_of, manifests, unwanted
    from fairlead.install.stored_versions import migrate

    is_structured = common_.is_structured

    def say(line: str) -> None:
        if is_structured:
            common_.note(line)
        else:
            common_.emit(f"{line}\n")

    with closing(common_.connect()) as api:
        check_access(api, chosen)
        if release := _helm_release(api, chosen):
            raise _refusal(release, chosen)
        for manifest in manifests(chosen):
            is_kind = manifest["kind"] == "CustomResourceDefinition"
            if is_kind and (count := migrate(api, manifest)):
                say(f"{label_of(manifest)}: {plural(count, 'object')} stored in its version")
            say(f"{label_of(manifest)}: {apply(api, manifest).value}")
            if is_kind:
                await_established(api, manifest)
        for manifest in unwanted(chosen):
            if look_unwanted(api, manifest) is not None:
                say(f"{label_of(manifest)}: {remove(api, manifest).value}")
        said = advice(chosen.values.history, read_storage_classes(api))
        if said:
            common_.note(said)
