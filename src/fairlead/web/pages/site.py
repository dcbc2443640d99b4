"""What all pages share: the cluster, who looks, and the rows of the command line."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self
from urllib.parse import parse_qsl, unquote

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.views.arrays import array_row
from fairlead.cli.views.jobs import COLUMNS, NAMESPACE_COLUMN, job_rows
from fairlead.model.asks.topology import Level
from fairlead.web.render import link
from fairlead.web.simulator import Simulations
from fairlead.web.sources.questions import Questions
from fairlead.web.sources.view import ClusterView

_FIELDS_MAX = 32
_JOB_COLUMNS = (NAMESPACE_COLUMN, *COLUMNS)


class NoSuchPage(Exception):
    """There is no such page, or nothing of that name; the message is for the person."""


@dataclass(frozen=True, slots=True)
class Site:
    """What a viewer sees of a cluster. `where` are the flags that lead a command to it."""

    cluster: ClusterView
    questions: Questions
    #: Under which name the person's jobs are stored; "" where that is not known.
    user: str
    #: The namespace of commands that name none.
    namespace: str
    where: str
    levels: Sequence[Level]
    #: It is a cluster of `fairlead up`, where some jobs are simulated.
    is_up: bool
    #: Who looks, where several do; pages with the same are one person's.
    viewer: str = ""
    #: None where simulations are not run: beside a cluster, for all its users.
    simulations: Simulations | None = None

    def command(
        self, *words: str, namespace: str | None = None, filters: Sequence[str] = ()
    ) -> str:
        """Return a command line for this cluster; `namespace` is one that it must name, "" all, and
        its lines are those with all texts of `filters`.
        """
        named: tuple[str, ...] = ()
        if namespace == "" and self.cluster.rights.jobs is None:
            named = ("-A",)
        elif namespace and namespace != self.namespace:
            named = ("-n", namespace)
        command = shlex.join(("fairlead", *words, *named)) + self.where
        return command + "".join(f" | grep -iF {shlex.quote(text)}" for text in filters if text)


@dataclass(frozen=True, slots=True)
class AskedPath:
    """A path in its parts, without the site's, and the query."""

    path: tuple[str, ...]
    query: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, path: str, query: str) -> Self:
        """Return what a path and a query ask for, as they stand in a URL; ValueError for a query
        of too many parts.
        """
        parts = tuple(unquote(part) for part in path.split("/") if part)
        return cls(parts, tuple(parse_qsl(query, max_num_fields=_FIELDS_MAX)))

    def text(self, name: str, length_max: int = 200) -> str:
        """Return a part of the query, "" where it is not given."""
        return next((v[:length_max].strip() for own, v in self.query if own == name), "")

    def texts(self, name: str, length_max: int = 200) -> list[str]:
        """Return all parts of the query with this name."""
        return [value[:length_max].strip() for own, value in self.query if own == name]

    def number(self, name: str, most: int) -> int:
        """Return a part of the query as a number from 0 to `most`; 0 for what is none."""
        text = self.text(name, 9)
        return min(int(text), most) if text.isascii() and text.isdecimal() else 0


class JobLine(NamedTuple):
    """A row of the table of jobs: an array is one as well."""

    namespace: str
    name: str
    href: str
    cells: Mapping[str, str]
    is_array: bool = False


def cells_of(columns: Sequence[Column], row: Row) -> dict[str, str]:
    """Return a row by the titles of its columns, in lower case; the last cell also as "why"."""
    titles = (column.title.lower() for column in columns)
    return dict(zip(titles, row, strict=True)) | {"why": row[-1]}


def job_lines(site: Site, jobs: Iterable[Job | JobArray], now: float) -> list[JobLine]:
    """Return the rows of jobs and arrays as `fairlead ps -A -o wide` has them."""
    lines: list[JobLine] = []
    for each in jobs:
        namespace, name = each.metadata.key
        if isinstance(each, JobArray):
            row = array_row(each, now, with_namespace=True)
            href, is_array = link("arrays", namespace, name), True
        else:
            (row,) = job_rows((each,), now, with_namespace=True, is_up=site.is_up)
            href, is_array = link("jobs", namespace, name), False
        lines.append(JobLine(namespace, name, href, cells_of(_JOB_COLUMNS, row), is_array))
    return lines


class SiteTable(NamedTuple):
    """A table of the command line: its columns' titles, which of them are numbers, and its rows."""

    titles: tuple[str, ...]
    numbers: frozenset[int]
    rows: Sequence[Row]


def table_of(columns: Sequence[Column], rows: Sequence[Row]) -> SiteTable:
    """Return a table with all its columns."""
    numbers = (n for n, column in enumerate(columns) if column.align is Align.RIGHT)
    titles = (c.title.capitalize().replace("Gpu", "GPU").replace("Cpu", "CPU") for c in columns)
    return SiteTable(tuple(titles), frozenset(numbers), rows)
