"""Which of several clusters a job goes to."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.status import Forbidden
from fairlead.cli.connection.common import Common, Format
from fairlead.cli.submitting.clusters import AUTO, CLUSTERS_MAX, in_soonest
from fairlead.cli.submitting.fit import JobFit, JobStart, StartKind
from fairlead.input.errors import CliError, Code, fail

NOW = 1_000.0


@dataclass
class Work:
    """What a cluster has checked."""

    fit: JobFit
    common: Common


class Clusters:
    """Clusters by context, each with its answer; and what the person was told."""

    def __init__(self, root: Path, answers: dict[str, JobStart | Exception], current: str) -> None:
        self.answers, self.told = answers, list[str]()
        path = root / "config"
        named = [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in answers]
        path.write_text(json.dumps({"current-context": current, "contexts": named}))
        self.common = Common(
            format=Format.TABLE, namespace="", all_namespaces=False, kubeconfig=str(path),
            context="", headers=True, color=False, quiet=False, verbosity=0,
            tell=self.told.append,
        )  # fmt: skip

    def check(self, common: Common) -> Work:
        common.note(f"plan of {common.context}")
        answer = self.answers[common.context]
        if isinstance(answer, Exception):
            raise answer
        return Work(JobFit(f"words of {common.context}", answer), common)

    def chosen(self, clusters: str = AUTO) -> str:
        return in_soonest(self.common, clusters, self.check).common.context


def at(seconds: float) -> JobStart:
    return JobStart(StartKind.BY_INSTANT, NOW + seconds)


READY, UNKNOWN = JobStart(StartKind.NOW, NOW), JobStart(StartKind.UNKNOWN)


@pytest.mark.parametrize(
    ("answers", "chosen"),
    [
        ({"a": at(60), "b": READY}, "b"),
        ({"a": at(60), "b": at(30)}, "b"),
        ({"a": UNKNOWN, "b": JobStart(StartKind.WITH_NODES)}, "b"),
        ({"a": JobStart(StartKind.WITH_NODES), "b": at(1e6)}, "b"),
        ({"a": JobStart(StartKind.NOT_CHECKED), "b": UNKNOWN}, "b"),
        ({"a": READY, "b": READY, "c": READY}, "b"),  # the current one
        ({"a": Forbidden("no"), "b": fail(Code.UNREACHABLE, "gone"), "c": UNKNOWN}, "c"),
    ],
)
def test_the_one_where_it_starts_soonest_has_it(
    tmp_path: Path, answers: dict[str, JobStart | Exception], chosen: str
) -> None:
    assert Clusters(tmp_path, answers, "b").chosen() == chosen


def test_the_best_is_chosen_whatever_the_order(tmp_path: Path) -> None:
    rng = random.Random(5)
    for _ in range(50):
        kinds = [rng.choice(list(StartKind)) for _ in range(5)]
        starts = [JobStart(kind, float(rng.randrange(4))) for kind in kinds]
        world = Clusters(tmp_path, dict(zip("abcde", starts, strict=True)), "c")
        order = "".join(rng.sample("abcde", 5))
        found = world.chosen(",".join(order))
        least = min(starts)
        assert found == next(name for name in order if world.answers[name] == least)


def test_all_are_said_and_the_notes_of_the_chosen_one_alone(tmp_path: Path) -> None:
    refused = fail(Code.EXCEEDS_CLUSTER, "too large")
    world = Clusters(tmp_path, {"a": at(60), "b": READY, "c": refused}, "a")
    work = in_soonest(world.common, AUTO, world.check)
    work.common.note("stored")
    assert world.told == [
        "Clusters a: words of a", "         b: words of b (chosen)", "         c: too large",
        "plan of b", "stored",
    ]  # fmt: skip
    assert work.common.where() == f" --kubeconfig {world.common.kubeconfig} --context b"


def test_only_those_that_are_named_are_asked_each_once(tmp_path: Path) -> None:
    world = Clusters(tmp_path, {"a": READY, "b": at(1), "c": at(2)}, "a")
    assert world.chosen("c,b,c") == "b"
    assert not any("a:" in text for text in world.told)


def test_where_none_takes_it_each_says_why(tmp_path: Path) -> None:
    world = Clusters(tmp_path, {"a": Forbidden("no right"), "b": fail(Code.UNREACHABLE, "x")}, "a")
    with pytest.raises(CliError) as refused:
        world.chosen()
    [problem] = refused.value.problems
    assert problem.code is Code.NO_CLUSTER_TAKES_IT
    assert problem.message == "none of 2 clusters takes it"
    assert problem.detail == ("a: no right", "b: x")
    assert not world.told


@pytest.mark.parametrize(
    ("clusters", "context", "said"),
    [
        ("a,x", "", "--cluster: 'x' must be one of a, b"),
        ("", "", "--cluster: '' must be one of a, b"),
        (AUTO, "a", "--cluster and --context do not go together"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    tmp_path: Path, clusters: str, context: str, said: str
) -> None:
    world = Clusters(tmp_path, {"a": READY, "b": READY}, "a")
    with pytest.raises(CliError) as refused:
        in_soonest(replace(world.common, context=context), clusters, world.check)
    assert refused.value.problems[0].message == said


def test_not_any_number_of_clusters_is_asked(tmp_path: Path) -> None:
    many: dict[str, Any] = {f"c{number}": READY for number in range(CLUSTERS_MAX + 1)}
    with pytest.raises(CliError, match="1 to 32 clusters, not 33"):
        Clusters(tmp_path, many, "c0").chosen()
    with pytest.raises(CliError, match="not 0"):
        Clusters(tmp_path, {}, "").chosen()
