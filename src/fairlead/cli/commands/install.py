"""`install`: CRDs, rights, controllers and metrics on a Kubernetes cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli.common import Common, Format, common, dump
from fairlead.cli.errors import Code, Exit, fail

if TYPE_CHECKING:
    from fairlead.cli.cluster.manifests import InstallValues

REPLICAS_MAX = 10


@click.command(
    epilog="""Examples:

    \b
      fairlead install --image REGISTRY/fairlead:0.1.0
      fairlead install --check                      say what is missing or differs
      fairlead install --dry-run                    say what it would do
      fairlead install --dry-run -o yaml            print the manifests; needs no cluster

    It may be repeated: what is there already is brought up to date, what others added stays.
    """
)
@click.option("--image", metavar="IMAGE", default="",
              help="Image of the controllers. [default: fairlead:VERSION]")  # fmt: skip
@click.option("--replicas", metavar="N", type=click.IntRange(1, REPLICAS_MAX), default=2,
              show_default=True, help="Replicas; one leads, the others stand by.")  # fmt: skip
@click.option("--dry-run", "is_dry", is_flag=True, help="Change nothing.")
@click.option("--check", "is_check", is_flag=True,
              help="Change nothing; exit with 1 unless all is there and well.")  # fmt: skip
@common()
def install(
    common_: Common, *, image: str, replicas: int, is_dry: bool, is_check: bool
) -> int:  # fmt: skip
    """Put Fairlead on a Kubernetes cluster.

    CRDs, a namespace (-n, default fairlead-system), a service account with the least rights, two
    replicas of `fairlead controller`, and a Service for their metrics.
    """
    from fairlead.cli.cluster.manifests import InstallValues, manifests

    if is_dry and is_check:
        raise fail(Code.BAD_COMBINATION, "--dry-run and --check do not go together")
    defaults = InstallValues()
    values = InstallValues(
        namespace=common_.namespace or defaults.namespace,
        image=image or defaults.image,
        replicas=replicas,
    )
    is_structured = common_.format in (Format.JSON, Format.YAML)
    if is_structured and is_check:
        raise fail(Code.BAD_COMBINATION, "--check prints lines: it does not go with -o")
    if is_structured and is_dry:
        common_.emit(render(manifests(values), common_.format))
        return Exit.OK
    if is_dry or is_check:
        return _look(common_, values, is_check=is_check)
    _apply(common_, values)
    if is_structured:
        common_.emit(render(manifests(values), common_.format))
    return Exit.OK


def render(objects: list[dict[str, object]], format_: Format) -> str:
    """Return manifests as YAML documents, or as one List in JSON."""
    if format_ is Format.JSON:
        return dump({"apiVersion": "v1", "kind": "List", "items": objects}, format_)
    return "---\n".join(dump(each, Format.YAML) for each in objects)


def _look(common_: Common, values: InstallValues, *, is_check: bool) -> int:
    from fairlead.cli.cluster.installer import State, check_access, look
    from fairlead.cli.cluster.manifests import manifests

    would = {State.MISSING: "would be created", State.DIFFERS: "would be changed"}
    is_well = True
    api = common_.connect()
    try:
        check_access(api, values)
        for manifest in manifests(values):
            found = look(api, manifest)
            is_well = is_well and found.is_well
            word = found.state.value if is_check else would.get(found.state, "unchanged")
            note = f" ({found.note})" if found.note else ""
            common_.emit(f"{found.label}: {word}{note}\n")
    finally:
        api.close()
    if is_check and not is_well:
        common_.note("Not all is well; fairlead install brings it up to date.")
        return Exit.FAILED
    return Exit.OK


def _apply(common_: Common, values: InstallValues) -> None:
    from fairlead.cli.cluster.installer import apply, await_established, check_access
    from fairlead.cli.cluster.manifests import label_of, manifests

    is_structured = common_.format in (Format.JSON, Format.YAML)
    api = common_.connect()
    try:
        check_access(api, values)
        for manifest in manifests(values):
            line = f"{label_of(manifest)}: {apply(api, manifest).value}"
            if is_structured:
                common_.note(line)
            else:
                common_.emit(f"{line}\n")
            if manifest["kind"] == "CustomResourceDefinition":
                await_established(api, manifest)
    finally:
        api.close()
