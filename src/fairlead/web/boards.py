"""Links to the boards of Grafana, where its address is set."""

from __future__ import annotations

from typing import NamedTuple

from fairlead.doctor.monitoring.boards import all_boards


class BoardLink(NamedTuple):
    """A board: its title, without the name of the product, and where it is."""

    title: str
    href: str


def board_links(grafana: str) -> list[BoardLink]:
    """Return the boards of a Grafana; none for ""."""
    if not grafana:
        return []
    base = grafana.rstrip("/")
    return [
        BoardLink(each.title.rpartition("/")[2].strip(), f"{base}/d/{each.uid}")
        for each in all_boards()
    ]
