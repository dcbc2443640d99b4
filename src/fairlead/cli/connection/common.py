"""What every command shares: the common flags, where output goes, and the connection.

Data goes to stdout, all else to stderr. Colour and progress appear on a terminal only.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairlead import terminal
from fairlead.cli.connection.completers import complete_namespaces, words
from fairlead.cli.connection.connect import Choice, find_connection
from fairlead.cli.formats.table import WIDTH_DEFAULT, Column, Row, render_table
from fairlead.cli.formats.text import parse_duration
from fairlead.input.errors import Code, fail

if TYPE_CHECKING:
    from fairlead.kube.kubeconfig import Connection

#: Between two looks of --watch, and what clears a terminal before the next one.
WATCH_SECONDS = 5.0
CLEAR = "\x1b[H\x1b[2J"
F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def collector_paused() -> Generator[None]:
    """Collect no garbage: of many objects that stay to the end, each pass goes through all."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def kept_api(common_: Common) -> Callable[[], Any]:
    """Return what gives the same `Api` for hours, to one thread at a time, and another one once the
    kubeconfig names another address or credential. CliError where there is none.
    """
    kept: Any = None

    def connect() -> Any:
        nonlocal kept
        fresh = common_.connect()  # which asks nothing yet
        if kept is None or kept.connection != fresh.connection:
            kept = fresh
        return kept

    return connect


class Format(Enum):
    """Output formats."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Common:
    """The flags that all commands have."""

    format: Format
    namespace: str
    all_namespaces: bool
    kubeconfig: str
    context: str
    headers: bool
    color: bool
    quiet: bool
    verbosity: int
    #: Of a table: the columns to show, and that by which its rows are sorted; as they come without.
    columns: tuple[str, ...] = ()
    sort: str = ""
    is_csv: bool = False
    #: The server, and the credentials; None: as `kubeconfig` and `context` have it.
    connection: Connection | None = None
    #: Writes notes for the person; stderr unless a page collects them.
    tell: Callable[[str], None] = terminal.tell

    def connect(self, *, timeout_seconds: float | None = None) -> Any:
        """Return the `Api` of the chosen cluster; CliError when there is none."""
        from fairlead.cli.connection.transport import TIMEOUT_SECONDS, Api

        connection = self.connection or find_connection(
            Choice(self.kubeconfig, self.context), os.environ
        )
        return Api(connection, timeout_seconds=timeout_seconds or TIMEOUT_SECONDS)

    def space(self, default: str) -> str:
        """Return the namespace to work in: the flag's, else the kubeconfig's."""
        return self.namespace or default

    def require_one_namespace(self) -> None:
        """Refuse -A where a job is made: sbatch's -A names an account. CliError."""
        if self.all_namespaces:
            raise fail(
                Code.BAD_COMBINATION, "-A is for all namespaces, and a job has one",
                help=("-n NAMESPACE: that decides the team, as an account of Slurm does",),
            )  # fmt: skip

    def where(self, namespace: str = "") -> str:
        """Return the flags that lead another command to the same place; "" where none was given."""
        given = (("-n", namespace or self.namespace), ("--kubeconfig", self.kubeconfig),
                 ("--context", self.context))  # fmt: skip
        import shlex

        return "".join(f" {flag} {shlex.quote(value)}" for flag, value in given if value)

    def note(self, text: str) -> None:
        """Tell the person something, on stderr, unless -q."""
        if not self.quiet:
            self.tell(text)

    def detail(self, text: str) -> None:
        """Tell more with -v."""
        if self.verbosity:
            self.tell(text)

    def emit(self, text: str) -> None:
        """Write data to stdout."""
        terminal.say(text)

    def lines(self, lines: Iterable[object]) -> None:
        """Write data to stdout, a line each."""
        self.emit(terminal.joined(map(str, lines)))

    @property
    def is_structured(self) -> bool:
        """True for -o json and -o yaml."""
        return self.format in (Format.JSON, Format.YAML)

    def data(self, value: Any) -> None:
        """Write a value to stdout as JSON or YAML."""
        self.emit(dump(value, self.format))

    def table(self, columns: Sequence[Column], rows: Sequence[Row], *, empty: str) -> None:
        """Write a table to stdout; with no rows say `empty` on stderr instead. CliError for a
        column that it does not have.
        """
        if self.columns or self.sort or self.is_csv:
            columns, rows = self._chosen(columns, rows)
        if self.is_csv:
            from fairlead.cli.formats.csv_table import as_csv

            self.emit(as_csv([column.title for column in columns], rows))
            return
        if not rows:
            self.note(empty)
            return
        is_wide = self.format is Format.WIDE
        width = text_width(0) or None
        text = render_table(columns, rows, width=width, wide=is_wide, headers=self.headers)
        terminal.say(text, partial(_colored, headers=self.headers) if self.color else str)

    def _chosen(
        self, columns: Sequence[Column], rows: Sequence[Row]
    ) -> tuple[Sequence[Column], Sequence[Row]]:
        from fairlead.cli.formats.chosen_columns import chosen, column_names, sorted_by

        flag, names = ("--sort", column_names(columns)) if self.sort else ("-o", [])
        try:
            rows = sorted_by(columns, rows, self.sort) if self.sort else rows
            flag, names = "-o", column_names(columns)
            return chosen(columns, rows, self.columns) if self.columns else (columns, rows)
        except KeyError as error:
            check_choice(str(error.args[0]), names, flag)
            raise

    def structured(self, items: Iterable[Any], *, is_list: bool = True) -> None:
        """Write objects as JSON or YAML: one as itself, several as a List of the API's form."""
        objects = list(items)
        value: Any = objects[0] if len(objects) == 1 and not is_list else {
            "apiVersion": "v1", "kind": "List", "items": objects, "metadata": {},
        }  # fmt: skip
        self.data(value)


def dump(value: Any, format_: Format) -> str:
    """Return a value as indented JSON or as YAML."""
    if format_ is Format.YAML:
        from fairlead.input.yamlwrite import to_yaml

        return to_yaml(value)
    return json_text(value, indent=2)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON whose texts a terminal can show, with a line feed at the end."""
    import json

    return terminal.json_escaped(json.dumps(value, indent=indent, ensure_ascii=False)) + "\n"


_STATE_COLORS = {
    "Running": "32", "Succeeded": "32", "ready": "32", "healthy": "32", "Waiting": "33",
    "Starting": "36", "Restarting": "33", "Stopping": "33", "Held": "35", "Failed": "31",
    "Cancelled": "31", "not-ready": "31", "cordoned": "33", "failed": "31",
}  # fmt: skip


def _colored(text: str, *, headers: bool) -> str:
    """Return a table with its header bold and its first state word coloured; widths stay."""
    lines = text.splitlines()
    out: list[str] = []
    for number, line in enumerate(lines):
        if number == 0 and headers:
            out.append(f"\x1b[1m{line}\x1b[0m")
            continue
        words = line.split()
        state = next((word for word in words[1:] if word in _STATE_COLORS), None)
        if state:
            at = line.index(f" {state}") + 1
            color = f"\x1b[{_STATE_COLORS[state]}m{state}\x1b[0m"
            line = line[:at] + color + line[at + len(state) :]
        out.append(line)
    return "\n".join(out) + "\n"


def text_width(otherwise: int) -> int:
    """Return the columns for text on stdout: the terminal's; what is given where it is none."""
    if not terminal.is_terminal():
        return otherwise
    import shutil

    return shutil.get_terminal_size((WIDTH_DEFAULT, 24)).columns


def now() -> float:
    """Return the wall clock; views get instants as arguments."""
    return time.time()


def common(*, output: bool = True, cluster: bool = True, columns: bool = False) -> Callable[[F], F]:
    """Return a decorator that adds the common flags and passes them as the first argument.

    `output` adds -o and --no-headers; `cluster` the flags that choose cluster and namespace;
    `columns` lets -o name columns of a table, or be csv, and adds --sort.
    """

    def decorate(function: F) -> F:
        def wrapper(**options: Any) -> Any:
            return function(_collect(options, columns=columns), **options)

        wrapper.__name__ = function.__name__
        wrapper.__doc__ = function.__doc__
        marked: Any = wrapper
        # click keeps parameters on the function, the last one first; the common ones come last.
        for option in reversed(_options(output=output, cluster=cluster, columns=columns)):
            marked = option(marked)
        marked.__click_params__ += getattr(function, "__click_params__", [])
        return marked

    return decorate


def _options(*, output: bool, cluster: bool, columns: bool) -> list[Callable[[Any], Any]]:
    options: list[Callable[[Any], Any]] = []
    forms = ", name, csv, or columns as NAME,STATE." if columns else " or name."
    if columns:
        options.append(click.option(
            "--sort", metavar="COLUMN", default="",
            help="Sort by a column; with a dash before it the largest first.",
        ))  # fmt: skip
    if output:
        options += [
            click.option("-o", "--output", metavar="FORMAT", default="table", show_default=True,
                         shell_complete=words(*(each.value for each in Format)),
                         help=f"table, wide, json, yaml{forms}"),
            click.option("--no-headers", is_flag=True, help="Leave the header line out."),
        ]  # fmt: skip
    if cluster:
        options += [
            click.option("-n", "--namespace", metavar="NAME", default="",
                         shell_complete=complete_namespaces,
                         help="Namespace. [default: the kubeconfig's]"),
            click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces."),
            click.option("--kubeconfig", metavar="FILE", default="", help="Kubeconfig to use."),
            click.option("--context", "context_", metavar="NAME", default="",
                         help="Context of the kubeconfig."),
        ]  # fmt: skip
    options += [
        click.option("--no-color", is_flag=True, help="Plain text. Also: NO_COLOR."),
        click.option("-q", "--quiet", is_flag=True, help="Only data and errors."),
        click.option("-v", "--verbose", count=True, help="Say more; -vv shows tracebacks."),
    ]
    return options


def seconds_of(text: str, flag: str) -> float:
    """Return the seconds of a flag's duration; CliError."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise fail(Code.BAD_VALUE, f"{flag}: {error}") from error


def check_extra(extra: str, what: str, *packages: str) -> None:
    """Refuse to go on without these packages of an extra, which `what` needs; CliError."""
    import importlib.util

    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise fail(
                Code.NOT_INSTALLED, f"{what} needs the Python package {package}",
                help=(f"pip install 'fairlead[{extra}]'",),
            )  # fmt: skip


def check_choice(given: str, known: Collection[str], flag: str) -> None:
    """Refuse a value of a flag that is not known, with the nearest one that is; CliError."""
    if given not in known:
        from fairlead.input.suggest import nearest

        near = nearest(given, known)
        raise fail(
            Code.BAD_VALUE, f"{flag}: '{given}' must be one of {', '.join(known)}",
            help=(f"{flag} {near}",) if near else (),
        )  # fmt: skip


def _collect(options: dict[str, Any], *, columns: bool) -> Common:
    """Take the common flags out of `options`."""
    given: str = options.pop("output", "table")
    known = {format_.value: format_ for format_ in Format}
    if "." in given or "/" in given:
        raise fail(
            Code.BAD_VALUE, f"-o: '{given}' must be one of {', '.join(known)}",
            help=("-o is the form of this command's output; what a job writes: fairlead logs JOB",),
        )  # fmt: skip
    names: tuple[str, ...] = ()
    is_csv = columns and given == "csv"
    if columns and given not in (*known, "csv"):
        names, given = tuple(given.split(",")), Format.WIDE.value
    elif is_csv:
        given = Format.WIDE.value
    check_choice(given, known, "-o")
    no_color = options.pop("no_color") or bool(os.environ.get("NO_COLOR"))
    return Common(
        format=known[given],
        namespace=options.pop("namespace", ""),
        all_namespaces=options.pop("all_namespaces", False),
        kubeconfig=options.pop("kubeconfig", ""),
        context=options.pop("context_", ""),
        headers=not options.pop("no_headers", False),
        color=not no_color and terminal.is_terminal() and os.environ.get("TERM") != "dumb",
        quiet=options.pop("quiet"),
        verbosity=options.pop("verbose"),
        columns=names,
        sort=options.pop("sort", "") if columns else "",
        is_csv=is_csv,
    )
