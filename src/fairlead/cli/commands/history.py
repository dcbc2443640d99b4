"""`history`: jobs that have ended, also those whose objects are gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from fairlead.api.status import Forbidden, NotFound
from fairlead.cli.common import Common, Format, common, now
from fairlead.cli.embedded import HISTORY_PATH
from fairlead.cli.errors import Code, fail
from fairlead.cli.lookup import clean_reference
from fairlead.cli.text import parse_duration
from fairlead.cli.transport import Api
from fairlead.cli.views.history import COLUMNS, NAMESPACE_COLUMN, HistoryLine, history_rows

LIMIT_DEFAULT = 50
LIMIT_MAX = 100_000


@click.command(
    epilog="""Examples:

    \b
      fairlead history
      fairlead history --since 7d --state Failed
      fairlead history train-1 -o json      the whole job as it was in the end
    """
)
@click.argument("job", metavar="[JOB]", required=False)
@click.option("--since", metavar="DURATION", help="Only jobs that ended this long ago or later.")
@click.option("--state", metavar="STATE", default="", help="Succeeded, Failed or Cancelled.")
@click.option("--user", metavar="NAME", default="", help="Only that user's jobs.")
@click.option("--limit", metavar="N", default=LIMIT_DEFAULT, show_default=True,
              type=click.IntRange(1, LIMIT_MAX), help="At most so many.")  # fmt: skip
@click.option("--history", "store", metavar="URL|FILE", default="",
              help="Read from here. Also: FAIRLEAD_HISTORY_URL.")  # fmt: skip
@common()
def history(
    common_: Common,
    *,
    job: str | None,
    since: str | None,
    state: str,
    user: str,
    limit: int,
    store: str,
) -> None:
    """Show jobs that have ended, the latest first.

    The record of a job outlives its object.
    """
    query = {"limit": str(limit)}
    if since is not None:
        try:
            query["since"] = f"{now() - parse_duration(since):.3f}"
        except ValueError as error:
            raise fail(Code.BAD_VALUE, f"--since: {error}") from error
    api = common_.connect()
    wanted = {
        "name": clean_reference(job) if job else "",
        "state": state[:1].upper() + state[1:],
        "user": user,
        "namespace": "" if common_.all_namespaces else common_.space(api.target.namespace),
    }
    query.update({key: value for key, value in wanted.items() if value})
    lines = _read(_raw_lines(api, store, query))
    if common_.format in (Format.JSON, Format.YAML):
        common_.structured("List", [line.document for line in lines], is_list=job is None)
    elif common_.format is Format.NAME:
        common_.emit("".join(f"{line.name}\n" for line in lines))
    else:
        spread = common_.all_namespaces
        columns = (NAMESPACE_COLUMN, *COLUMNS) if spread else COLUMNS
        rows = history_rows(lines, now(), with_namespace=spread)
        common_.table(columns, rows, empty="no job that matches has ended yet")


def _raw_lines(api: Api, store: str, query: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the records as JSON lines: from the store named, the cluster, or its controller."""
    import os

    from fairlead.cli.archive import Archive, NoArchive, direct_store, no_archive

    direct = direct_store(store, os.environ)
    if not direct:
        try:
            yield from api.lines(HISTORY_PATH, query)
        except (NotFound, Forbidden):
            pass  # not a cluster of fairlead up
        else:
            return
    try:
        yield from Archive(api, direct).history_lines(query)
    except NoArchive as error:
        raise no_archive("the history", error) from error


def _read(raw: Iterator[bytes]) -> list[HistoryLine]:
    import msgspec

    try:
        return [msgspec.json.decode(line, type=HistoryLine) for line in raw]
    except msgspec.DecodeError as error:
        raise fail(Code.BAD_ANSWER, f"the history cannot be read: {error}") from error
