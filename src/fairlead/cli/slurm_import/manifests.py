"""Teams, priority classes, node pools and settings that do what a site's Slurm did (pure)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from fairlead.api.cluster.team import NODE_NAMES_MAX, WEIGHT_MAX
from fairlead.api.names import API_VERSION, POOL
from fairlead.api.resources import PRIORITY_CLASSES
from fairlead.api.values.bounds import INT32_MAX
from fairlead.api.values.times import format_time
from fairlead.cli.formats.instants import parse_instant
from fairlead.cli.slurm_import.accounts import SlurmAccount, SlurmQos
from fairlead.cli.slurm_import.conf import Findings
from fairlead.cli.slurm_import.fleet import (
    SlurmFleet,
    SlurmPool,
    distinct,
    slurm_seconds,
    whole,
)
from fairlead.cli.slurm_import.options import SiteOptions
from fairlead.member.hostlist import expand_hosts

INVENTORY = "/etc/fairlead/inventory"
NODES_PER_COMMAND = 50
#: Pods that a kubelet takes by default.
_PODS = 110
#: Options of accounts that are carried over, and those that say nothing about jobs.
_ACCOUNT_OPTIONS = frozenset((
    "fairshare", "qos", "grpjobs", "grpsubmitjobs", "grpsubmit", "maxjobs", "maxsubmitjobs",
    "maxsubmit", "maxwalldurationperjob", "maxwall", "grptres", "grptresmins", "description",
    "organization",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlurmSite:
    """All that was read of a site."""

    fleet: SlurmFleet
    options: SiteOptions
    accounts: Mapping[str, SlurmAccount] = field(default_factory=dict[str, SlurmAccount])
    qos: Sequence[SlurmQos] = ()
    reservations: Sequence[tuple[str, dict[str, str]]] = ()


@dataclass(frozen=True, slots=True)
class ImportedSite:
    """Objects to apply, settings of the controllers, and commands that label the nodes."""

    objects: tuple[dict[str, Any], ...]
    settings: dict[str, Any]
    labels: tuple[str, ...]


def imported(site: SlurmSite, found: Findings) -> ImportedSite:
    """Return what does the same here; what has no counterpart goes to `found` as notes."""
    classes = distinct(each.name for each in site.qos)
    teams = distinct(each.name for each in site.accounts.values() if each.users)
    objects = [
        *(_priority_class(each, classes[each.name], site, found) for each in site.qos),
        *_teams(site, teams, found),
        *(_pool(pool, site.options) for pool in site.fleet.pools),
    ]
    settings = _settings(site, found)
    if classes:
        settings.setdefault("slurm", {})["qos"] = {each.name: classes[each.name]
                                                   for each in site.qos}  # fmt: skip
    return ImportedSite(tuple(objects), settings, tuple(_label_commands(site.fleet)))


def _label_commands(fleet: SlurmFleet) -> Iterator[str]:
    """Yield the commands that give the nodes that are there their labels."""
    for pool in fleet.pools:
        labels = {POOL: pool.name, **pool.labels}
        words = " ".join(f"{key}={value}" for key, value in sorted(labels.items()))
        if pool.shape.is_bought:
            continue
        for at in range(0, len(pool.nodes), NODES_PER_COMMAND):
            hosts = " ".join(pool.nodes[at : at + NODES_PER_COMMAND])
            yield f"kubectl label --overwrite node {hosts} {words}"


def _pool(pool: SlurmPool, options: SiteOptions) -> dict[str, Any]:
    """Return the NodePool: its provider is to be looked at, so it is in dry run."""
    shape, count = pool.shape, len(pool.nodes)
    resources = {"cpu": str(shape.cpus), "memory": f"{shape.memory_mib}Mi", "pods": str(_PODS),
                 **{name: str(amount) for name, amount in shape.devices}}  # fmt: skip
    spec: dict[str, Any] = {
        "mode": "DryRun",
        "provider": {"type": "Static", "reference": f"{INVENTORY}/{pool.name}.json"},
        "template": {"resources": resources, "labels": dict(pool.labels)},
        "min": count,
        "max": count,
        "scaleDown": {"enabled": False},
    }
    if shape.is_bought:
        spec |= {
            "min": 0,
            "provider": {"type": "Exec", "reference": options.resume_program or "/usr/bin/false"},
            "scaleDown": {"idleSeconds": options.idle_seconds} if options.idle_seconds else {},
        }
    return {"apiVersion": API_VERSION, "kind": "NodePool", "metadata": {"name": pool.name},
            "spec": spec}  # fmt: skip


def _priority_class(qos: SlurmQos, name: str, site: SlurmSite, found: Findings) -> dict[str, Any]:
    if qos.others:
        found.note(qos.where, f"QOS {qos.name}: limits are of Teams: {', '.join(qos.others)}")
    body = {
        "apiVersion": PRIORITY_CLASSES.api_version, "kind": PRIORITY_CLASSES.kind,
        "metadata": {"name": name}, "value": min(qos.priority, 10**9),
        "description": f"The quality of service {qos.name} of Slurm.",
    }  # fmt: skip
    return body if site.options.preempts else {**body, "preemptionPolicy": "Never"}


def _settings(site: SlurmSite, found: Findings) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if site.options.is_strict:
        settings["placement"] = {"starvationSeconds": 0, "backfills": False}
    if site.fleet.partition_labels:
        settings["slurm"] = {"partitions": {k: dict(v) for k, v in
                                            site.fleet.partition_labels.items()}}  # fmt: skip
    limits = [each.max_seconds for each in site.fleet.partitions]
    if limits and None not in limits:
        most = max(limit for limit in limits if limit is not None)
        settings["jobMaxima"] = {"timeLimitSeconds": most}
        for each in site.fleet.partitions:
            if each.max_seconds != most:
                found.note(each.where, f"partition '{each.name}' has a shorter MaxTime; the limit "
                           "is that of all jobs, or of a Team's")  # fmt: skip
    elif any(limits):
        where = next(each.where for each in site.fleet.partitions if each.max_seconds)
        found.note(where, "MaxTime is of all jobs, or of a Team's (jobMaxima): other partitions "
                   "have none, so it is left out")  # fmt: skip
    default = next((p for p in site.fleet.partitions if p.is_default), None)
    if default is not None and default.default_seconds:
        settings["jobDefaults"] = {"timeLimitSeconds": default.default_seconds}
    for each in site.fleet.partitions:
        if each.default_seconds and each is not default:
            found.note(each.where, f"partition '{each.name}': DefaultTime is of all jobs, or of a "
                       "Team's")  # fmt: skip
    return settings


def _teams(site: SlurmSite, teams: Mapping[str, str], found: Findings) -> Iterator[dict[str, Any]]:
    weights = _weights(site.accounts, teams)
    reservations = _reservations(site, teams, found)
    for name, account in site.accounts.items():
        others = sorted(set(account.options) - _ACCOUNT_OPTIONS)
        if others:
            found.note(account.where, f"account {name}: without a counterpart: {', '.join(others)}")
        if name not in teams:
            found.note(account.where, f"account {name} has no users: Teams have no levels")
            continue
        spec: dict[str, Any] = {
            "namespaces": [teams[name]],
            "members": {"users": sorted(account.users)},
            "weight": weights[name],
            **_limits(account, site.options, found),
        }
        if account.coordinators:
            spec["admins"] = {"users": sorted(account.coordinators)}
        if reservations.get(name):
            spec["reservations"] = reservations[name]
        yield {"apiVersion": API_VERSION, "kind": "Team", "metadata": {"name": teams[name]},
               "spec": spec}  # fmt: skip


def _weights(accounts: Mapping[str, SlurmAccount], teams: Mapping[str, str]) -> dict[str, int]:
    """Return each team's weight: its users' part of the shares of the tree, the largest 1,000.

    Of a tree without levels the shares are as they are written.
    """

    def shares(options: Mapping[str, str]) -> int:
        return max(1, whole(options.get("fairshare", "1")) or 1)

    direct = {name: sum(map(shares, account.users.values())) for name, account in accounts.items()}
    siblings = dict(direct)
    for account in accounts.values():
        siblings[account.parent] = siblings.get(account.parent, 0) + shares(account.options)
    whole_parts: dict[str, Fraction] = {}
    parts: dict[str, Fraction] = {}
    for name, account in accounts.items():  # parents come before their children
        own = Fraction(shares(account.options), siblings[account.parent])
        whole_parts[name] = own * whole_parts.get(account.parent, Fraction(1))
        parts[name] = whole_parts[name] * Fraction(direct[name], siblings[name] or 1)
    as_written = {name: shares(account.options) for name, account in accounts.items()}
    is_flat = all(account.parent == "root" for account in accounts.values())
    if is_flat and max(as_written.values(), default=1) <= WEIGHT_MAX:
        return as_written
    most = max((parts[name] for name in teams), default=Fraction(1))
    return {name: max(1, round(WEIGHT_MAX * parts[name] / most)) for name in teams}


def _limits(account: SlurmAccount, options: SiteOptions, found: Findings) -> dict[str, Any]:
    def number(*keys: str) -> int | None:
        text = next((account.options[key] for key in keys if key in account.options), "-1")
        if text == "-1":
            return None
        value = whole(text, most=INT32_MAX)
        if value is None:
            found.wrong(account.where, f"{keys[0]}: '{text}' is no whole number")
        return value

    def gpus(key: str) -> int | None:
        amount: int | None = None
        for part in filter(None, account.options.get(key, "").split(",")):
            name, _, text = part.partition("=")
            if name.lower() == "gres/gpu" and amount is None and text != "-1":
                amount = whole(text, most=INT32_MAX)
                if amount is None:
                    found.wrong(account.where, f"{key}: '{part}' is no number of GPUs")
            elif text != "-1":
                found.note(account.where, f"account {account.name}: {key}: {part}: limits are of "
                           "jobs and GPUs; shares of nodes are in spec.shares")  # fmt: skip
        return amount

    spec: dict[str, Any] = {}
    own = {"running": number("grpjobs"), "submitted": number("grpsubmitjobs", "grpsubmit"),
           "gpus": gpus("grptres")}  # fmt: skip
    each = {"running": number("maxjobs"), "submitted": number("maxsubmitjobs", "maxsubmit")}
    minutes = gpus("grptresmins")
    for field_, values in (("limits", own), ("userLimits", each)):
        if given := {key: value for key, value in values.items() if value is not None}:
            spec[field_] = given
    if minutes is not None:
        half = {"halfLifeDays": options.half_life_days} if options.half_life_days else {}
        spec["budget"] = {"gpuHours": minutes // 60, **half}
    wall = account.options.get("maxwalldurationperjob", account.options.get("maxwall", ""))
    seconds = slurm_seconds(wall)
    if seconds is None:
        found.wrong(account.where, f"MaxWallDurationPerJob: '{wall}' is no time")
    elif seconds:
        spec["jobMaxima"] = {"timeLimitSeconds": seconds}
    return spec


def _reservations(
    site: SlurmSite, teams: Mapping[str, str], found: Findings
) -> dict[str, list[dict[str, Any]]]:
    """Return the reservations of each account, by its name."""
    out: dict[str, list[dict[str, Any]]] = {}
    names = distinct(values["reservationname"] for _, values in site.reservations)
    for where, values in site.reservations:
        name = values["reservationname"]
        accounts = [each for each in values.get("accounts", "").split(",") if each in teams]
        if not accounts:
            found.note(where, f"reservation {name} has no account that is a Team: without owners "
                       "it is maintenance (docs/howto/drain.md)")  # fmt: skip
            continue
        if values.get("users", "(null)") != "(null)":
            found.note(where, f"reservation {name}: it is of the Team, not of users")
        try:
            hosts = expand_hosts(values.get("nodes", ""))
            times = [format_time(parse_instant(values.get(key, ""), time.time()))
                     for key in ("starttime", "endtime")]  # fmt: skip
        except (ValueError, OverflowError) as error:
            found.wrong(where, f"reservation {name}: {error}")
            continue
        if len(hosts) > NODE_NAMES_MAX:
            found.wrong(where, f"reservation {name} has more than {NODE_NAMES_MAX:,} nodes",
                        "name a pool or a selector in spec.reservations")  # fmt: skip
            continue
        body = {"name": names[name], "startTime": times[0], "endTime": times[1],
                "nodeNames": list(hosts)}  # fmt: skip
        for account in accounts:
            out.setdefault(account, []).append(body)
    return out
