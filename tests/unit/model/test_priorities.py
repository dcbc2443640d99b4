"""PriorityClasses: what a job without one has, and who may preempt."""

from __future__ import annotations

import random

from msgspec.structs import replace

from fairlead.api.jobs.job import JobSpec
from fairlead.api.kubernetes.core import PriorityClass
from fairlead.model.asks.priorities import PriorityTable
from fairlead.testing.builders import make_job, make_priority_class

NAMES = ("a", "b", "c")


def answers(table: PriorityTable) -> list[object]:
    """Return what the table says of jobs of each class, and of one without a class."""
    specs: list[JobSpec] = [
        make_job("j", spec={"priority_class_name": name}).spec for name in ("", *NAMES)
    ]
    return [(table.resolve(spec, "default"), table.may_preempt(spec)) for spec in specs]


def test_only_the_latest_version_of_each_class_counts() -> None:
    rng, table = random.Random(1), PriorityTable()
    known: dict[str, PriorityClass] = {}
    defaults = set[int]()
    for _ in range(300):
        name = rng.choice(NAMES)
        if rng.random() < 0.2:
            table.remove(name)
            known.pop(name, None)
        else:
            found = make_priority_class(name, rng.randrange(3), is_default=rng.random() < 0.5)
            known[name] = replace(found, preemption_policy=rng.choice(["", "Never"]))
            table.put(known[name])
        assert answers(table) == answers(PriorityTable(known.values()))
        defaults.add(sum(each.global_default for each in known.values()))
    assert defaults == {0, 1, 2, 3}
