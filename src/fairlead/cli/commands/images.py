"""`images`: which images are where, how large they are, and who uses them."""

from __future__ import annotations

import click

from fairlead.api.resources import IMAGE_SETS, JOBS, NODES
from fairlead.api.status import Forbidden, NotFound
from fairlead.cli.connection.common import Common, Format, check_choice, common, dump
from fairlead.cli.connection.completers import words
from fairlead.cli.views.images import COLUMNS, csv_text, facts, lines_of, rows, truncated
from fairlead.input.errors import Code, fail

_FORMATS = ("table", "json", "yaml", "csv")


@click.command(
    epilog="""Examples:

    \b
      fairlead images                   those that jobs and image sets use
      fairlead images --all             and all others that nodes have
      fairlead images torch -o csv      with torch in their names
    """
)
@click.argument("text", metavar="[TEXT]", default="")
@click.option("--all", "everything", is_flag=True, help="Also images that nothing uses.")
@click.option("-o", "--output", "form", metavar="FORMAT", default="table", show_default=True,
              shell_complete=words(*_FORMATS), help="table, json, yaml or csv.")  # fmt: skip
@common(output=False)
def images(common_: Common, *, text: str, everything: bool, form: str) -> None:
    """Show images: where they are, their sizes, and who uses them.

    MEMBERS counts the members of jobs that run or wait, of all namespaces. NOTES say what each
    start costs: with the pull policy Always every start asks the registry, and a tag that moves
    gives members other versions, depending on when their node pulled it.
    """
    check_choice(form, _FORMATS, "-o")
    api = common_.connect()
    try:
        nodes = api.list(NODES)
    except Forbidden as error:
        raise fail(Code.FORBIDDEN, error.message,
                   help=("the role fairlead-cluster-view allows it",)) from error  # fmt: skip
    try:
        sets = api.list(IMAGE_SETS)
    except (NotFound, Forbidden):
        sets = []
    try:
        jobs = api.list(JOBS.raw)
    except Forbidden:
        space = common_.space(api.connection.namespace)
        common_.note(f"note: you may not list the jobs of all namespaces; those of {space} count")
        jobs = api.list(JOBS.raw, namespace=space)
    lines = [
        line for line in lines_of(nodes, jobs, sets)
        if text in line.image and (everything or line.is_used)
    ]  # fmt: skip
    if form == "csv":
        common_.emit(csv_text(lines))
    elif form != "table":
        common_.emit(dump([facts(line) for line in lines], Format(form)))
    else:
        common_.table(COLUMNS, rows(lines), empty="no such images")
        if count := truncated(nodes):
            common_.note(
                f"note: {count:,} nodes report as many images as they may, and may have more"
            )
