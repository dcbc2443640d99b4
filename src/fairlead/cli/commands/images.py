"""`images`: which images are where, how large they are, who uses them, and who pulls them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from fairlead.api.kubernetes.image_names import full_image_name
from fairlead.api.resources import EVENTS, IMAGE_SETS, JOBS, NODES, Resource
from fairlead.api.status import Forbidden, NotFound
from fairlead.cli.cluster.image_peers import peers_of
from fairlead.cli.connection.common import Common, Format, check_choice, common, dump
from fairlead.cli.connection.completers import words
from fairlead.cli.connection.transport import Api
from fairlead.cli.submitting.registry import login_of, look_up
from fairlead.cli.views import image_layers, image_pulls
from fairlead.cli.views.images import COLUMNS, ImageLine, csv_text, facts, lines_of, rows, truncated
from fairlead.decide.images.plan import registry_of
from fairlead.decide.images.pulled import pulls_of
from fairlead.input.errors import CliError, Code, fail

_FORMATS = ("table", "json", "yaml", "csv")
#: Images that a registry is asked for, and how many at a time.
_ASKED_MAX, _AT_A_TIME = 200, 8


@click.command(
    epilog="""Examples:

    \b
      fairlead images                              those that jobs and image sets use
      fairlead images --all                        and all others that nodes have
      fairlead images torch -o csv                 with torch in their names
      fairlead images --pulls job                  which jobs pulled most within the hour
      fairlead images --layers registry.example    which layers images have in common
    """
)
@click.argument("text", metavar="[TEXT]", default="")
@click.option("--all", "everything", is_flag=True, help="Also images that nothing uses.")
@click.option("--pulls", metavar="BY", default="", shell_complete=words(*image_pulls.BY_NAMES),
              help=f"What was pulled, by {', '.join(image_pulls.BY_NAMES)}.")  # fmt: skip
@click.option("--peers", metavar="LABELS", default="",
              help="Pods that serve images to nodes. [default: spegel, Dragonfly]")  # fmt: skip
@click.option("--layers", metavar="REGISTRY", multiple=True,
              help="Layers that its images share, as this registry says. Repeatable.")  # fmt: skip
@click.option("-o", "--output", "form", metavar="FORMAT", default="table", show_default=True,
              shell_complete=words(*_FORMATS), help="table, json, yaml or csv.")  # fmt: skip
@common(output=False)
def images(
    common_: Common, *, text: str, everything: bool, pulls: str, peers: str,
    layers: tuple[str, ...], form: str,
) -> None:  # fmt: skip
    """Show images: where they are, their sizes, and who uses them.

    MEMBERS counts the members of jobs that run or wait, of all namespaces. NOTES say what each
    start costs: with the pull policy Always every start asks the registry, and a tag that moves
    gives members other versions, depending on when their node pulled it.

    --pulls adds up what kubelets have reported within the hour that events last. BYTES is what was
    transferred at most, AGAIN those of it that the node had pulled before: its tag has moved, or
    the image was removed. ASKED counts the starts that asked the registry and got nothing, WAITED
    how long they waited for that. Where a program serves images between nodes, it says how fast
    nodes with it and without it pull.

    --layers asks the registries that it names, from this machine, with its logins.
    """
    check_choice(form, _FORMATS, "-o")
    if pulls:
        check_choice(pulls, image_pulls.BY_NAMES, "--pulls")
    if pulls and layers:
        raise fail(Code.BAD_COMBINATION, "--pulls and --layers are two tables; give one of them")
    if peers and not pulls:
        raise fail(Code.BAD_COMBINATION, "--peers is for --pulls", help=("add --pulls node",))
    api = common_.connect()
    if pulls:
        _show_pulls(common_, api, text, image_pulls.PullBy(pulls), selector=peers, form=form)
        return
    lines = _lines(common_, api)
    chosen = [line for line in lines if text in line.image and (everything or line.is_used)]
    if layers:
        _show_layers(common_, chosen, layers, form)
        return
    data = [facts(line) for line in chosen]
    if not _emitted(common_, form, data, csv_text(chosen)):
        common_.table(COLUMNS, rows(chosen), empty="no such images")


def _emitted(common_: Common, form: str, data: Sequence[Mapping[str, Any]], csv: str) -> bool:
    """Write data for programs; False where a table is wanted."""
    if form == "csv":
        common_.emit(csv)
    elif form != "table":
        common_.emit(dump(data, Format(form)))
    return form != "table"


def _lines(common_: Common, api: Api) -> list[ImageLine]:
    """Return all images; CliError for a user who may not see nodes."""
    try:
        nodes = api.list(NODES)
    except Forbidden as error:
        raise fail(Code.FORBIDDEN, error.message,
                   help=("the role fairlead-cluster-view allows it",)) from error  # fmt: skip
    try:
        sets = api.list(IMAGE_SETS)
    except (NotFound, Forbidden):
        sets = []
    jobs = _of_all(common_, api, JOBS.raw, "jobs")
    if count := truncated(nodes):
        common_.note(f"note: {count:,} nodes report as many images as they may, and may have more")
    return lines_of(nodes, jobs, sets)


def _of_all(common_: Common, api: Api, resource: Resource[Any], what: str, **query: str) -> Any:
    """Return the objects of all namespaces, else those of the one that the user works in."""
    try:
        return api.list(resource, **query)
    except Forbidden:
        space = common_.space(api.connection.namespace)
        common_.note(f"note: you may not list the {what} of all namespaces; those of {space} count")
        return api.list(resource, namespace=space, **query)


def _show_pulls(
    common_: Common, api: Api, text: str, by: image_pulls.PullBy, *, selector: str, form: str
) -> None:
    events = _of_all(common_, api, EVENTS, "events", field_selector="reason=Pulled")
    found = [pull for pull in pulls_of(events) if text in pull.image]
    jobs = _of_all(common_, api, JOBS.raw, "jobs")
    lines = image_pulls.lines_by(found, image_pulls.PullOwners(jobs), by)
    data = [image_pulls.facts(line) for line in lines]
    if not _emitted(common_, form, data, image_pulls.csv_text(lines)):
        empty = "no pulls were reported within the hour that events last"
        common_.table(image_pulls.columns(by), image_pulls.rows(lines), empty=empty)
    try:
        peers = peers_of(api, selector)
    except Forbidden:
        common_.note("note: you may not list pods; programs that serve images are not known")
        return
    if selector and not peers:
        common_.note(f"note: no pod of a DaemonSet with {selector} runs on a node")
    for effect in image_pulls.peer_effects(found, peers):
        common_.note(effect.words)


def _show_layers(
    common_: Common, lines: Iterable[ImageLine], registries: Sequence[str], form: str
) -> None:
    wanted = [line.image for line in lines if registry_of(line.image) in registries]
    if len(wanted) > _ASKED_MAX:
        common_.note(f"note: {len(wanted):,} images; the first {_ASKED_MAX} are asked for")
        wanted = wanted[:_ASKED_MAX]
    found: dict[str, Mapping[str, int]] = {}
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        for image, answer in zip(wanted, pool.map(_layers, wanted), strict=True):
            if isinstance(answer, CliError):
                common_.note(f"note: {answer.problems[0].message}")
            else:
                found[image] = answer
    shown = image_layers.lines_of(found)
    csv = image_layers.csv_text(shown)
    if not _emitted(common_, form, [line.facts for line in shown], csv):
        common_.table(image_layers.COLUMNS, image_layers.rows(shown), empty="no such images")
    if shown:
        common_.note(image_layers.summary(found))


def _layers(image: str) -> Mapping[str, int] | CliError:
    full = full_image_name(image)
    try:
        return look_up(full, login_of(registry_of(full))).layers
    except CliError as error:
        return error
