"""Tables as CSV, for programs and spreadsheets (pure)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence


def as_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV.

    A text that a spreadsheet would take for a formula begins with an apostrophe (OWASP, "CSV
    Injection"): names of users are other people's.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_unformulated(each) for each in row] for row in rows)
    return out.getvalue()


def _unformulated(cell: object) -> object:
    is_formula = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{cell}" if is_formula else cell
