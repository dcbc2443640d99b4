"""From where the members of a role reach their volumes: all alike, or each its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from fairlead.api.kubernetes.core import NodeSelector
from fairlead.model.asks.requests import Reach, Request


class Tie(Struct, frozen=True, cache_hash=True):
    """Members, by their index, that reach their own volumes from some nodes only."""

    reach: Reach
    members: tuple[int, ...]


class RoleReach(Struct, frozen=True, cache_hash=True):
    """`shared` holds for all members of a role; ties come on top, of each member one at most.

    `devices` is what a member asks for by claims, of the rows of devices, `quota` what the claims
    that are made for it use of ResourceQuotas. Of claims whose volume is yet to be made, or whose
    devices are yet to be had, `domains` has the node label of which all that share it are in one
    domain, that of the first to be bound.
    """

    shared: Reach = ()
    ties: tuple[Tie, ...] = ()
    devices: Request = ()
    quota: Request = ()
    domains: tuple[tuple[str, str], ...] = ()


def role_reach(shared: Iterable[NodeSelector], own: Sequence[Reach]) -> RoleReach:
    """Return what members reach, given what each reaches of its own; () where they have none.

    Members that are tied alike are one tie; where all are, that is shared.
    """
    selectors = dict.fromkeys(shared)
    tied: dict[Reach, list[int]] = {}
    for i, reach in enumerate(own):
        tied.setdefault(reach, []).append(i)
    if len(tied) == 1:
        selectors.update(dict.fromkeys(*tied))
        tied.clear()
    ties = [Tie(reach, tuple(tied[reach])) for reach in sorted(tied, key=repr) if reach]
    return RoleReach(tuple(sorted(selectors, key=repr)), tuple(ties))


def within(ties: Iterable[Tie], members: Sequence[int]) -> tuple[Tie, ...]:
    """Return ties of some of the members, which then have their places in `members` as indices."""
    places = {member: place for place, member in enumerate(members)}
    found = (Tie(t.reach, tuple(places[m] for m in t.members if m in places)) for t in ties)
    return tuple(tie for tie in found if tie.members)
