"""Which jobs the options of squeue and scancel choose."""

from __future__ import annotations

from fairlead.cli.connection.identity import submitter_name
from fairlead.cli.connection.transport import Api
from fairlead.cli.slurm_tools.fields import BY_LETTER, partition_of
from fairlead.cli.slurm_tools.options import GivenOptions
from fairlead.cli.slurm_tools.records import QueueRecord


def users_of(api: Api, given: GivenOptions) -> frozenset[str]:
    """Return the users that are asked for; none: all."""
    named = set(given.listed("user", "users"))
    return frozenset(named | ({submitter_name(api)} if given.has("me") else set()))


def matches(record: QueueRecord, given: GivenOptions, users: frozenset[str]) -> bool:
    """Return True where a job is all that is asked, ids and states apart."""
    names = given.names("name", "jobname")
    tests = (
        (users, record.user in users),
        (names, record.name in names),
        (given.listed("partition"), _is_in(partition_of(record), given.listed("partition"))),
        (given.listed("account"), BY_LETTER["a"].value(record) in given.listed("account")),
        (given.listed("qos"), BY_LETTER["q"].value(record) in given.listed("qos")),
        (given.listed("reservation"), record.job.spec.reservation in given.listed("reservation")),
        (given.listed("nodelist"), bool(set(record.nodes) & set(given.listed("nodelist")))),
    )
    return all(holds for asked, holds in tests if asked)


def _is_in(partition: str, wanted: list[str]) -> bool:
    return bool(set(partition.split(",")) & set(wanted))
