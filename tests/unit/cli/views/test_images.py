"""`fairlead images`: what nodes report, what jobs and sets want, and what that costs."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec

from fairlead.api.cluster.image_set import ImageSet
from fairlead.api.kubernetes.core import Node
from fairlead.cli.views.images import csv_text, facts, lines_of, rows, truncated
from fairlead.decide.images.outlook import size_text

TORCH = "docker.io/pytorch/pytorch:latest"


def node(name: str, *images: tuple[list[str] | None, int]) -> Node:
    found = [{"names": names, "sizeBytes": size} for names, size in images]
    return msgspec.convert({"metadata": {"name": name}, "status": {"images": found}}, Node)


def job(image: str, count: int = 1, *, policy: str = "", state: str = "Running") -> dict[str, Any]:
    container = {"name": "main", "image": image, **({"imagePullPolicy": policy} if policy else {})}
    template = {"spec": {"containers": [container]}}
    return {"spec": {"roles": [{"name": "w", "count": count, "template": template}]},
            "status": {"state": state}}  # fmt: skip


def test_an_image_is_counted_once_however_its_users_write_it() -> None:
    nodes = [
        node("a", ([f"{TORCH}", "docker.io/pytorch/pytorch@sha256:1"], 7_000)),
        node("b", ([f"{TORCH}", "docker.io/pytorch/pytorch@sha256:1"], 7_000)),
    ]
    sets = [ImageSet(spec=msgspec.convert({"images": [TORCH]}, type(ImageSet().spec)))]
    (line,) = lines_of(nodes, [job("pytorch/pytorch", 8), job(TORCH, 2)], sets)
    assert (line.image, line.nodes, line.jobs, line.members) == (TORCH, 2, 2, 10)
    assert line.always_members == 10  # the default of the tag latest
    assert "the tag moves" in rows([line])[0][-1]


def test_a_tag_that_nodes_have_in_two_versions_has_moved() -> None:
    nodes = [
        node(name, (["r.example/i:1", f"r.example/i@sha256:{digest}"], 5))
        for name, digest in (("a", "1"), ("b", "2"), ("c", "2"))
    ]
    (line,) = lines_of(nodes, [job("r.example/i:1")], [])
    assert rows([line])[0][-1] == "the tag has moved: nodes have 2 versions"
    assert facts(line)["versions"] == ["sha256:1", "sha256:2"]


def test_what_has_ended_uses_nothing_and_what_nobody_uses_comes_last() -> None:
    nodes = [node("a", (["r.example/old:1"], 9_000), (None, 4), (["r.example/new:1"], 1))]
    lines = lines_of(nodes, [job("r.example/old:1", state="Failed"), job("r.example/new:1")], [])
    assert [line.image for line in lines] == ["r.example/new:1", "r.example/old:1"]
    assert [line.is_used for line in lines] == [True, False]


def test_an_image_that_is_nowhere_is_shown_with_what_waits_for_it() -> None:
    (line,) = lines_of([], [job("r.example/new@sha256:1", 4, policy="Always")], [])
    assert rows([line]) == [
        ("r.example/new@sha256:1", "-", "0", "1", "4", "-",
         "Always: 4 starts ask the registry; on no node"),
    ]  # fmt: skip


def test_csv_has_a_column_for_each_fact_and_no_formula() -> None:
    (line,) = lines_of([node("a", (["=x/i:1"], 5))], [job("=x/i:1")], [])
    (row,) = csv.DictReader(io.StringIO(csv_text([line])))
    assert set(row) == set(facts(line))
    assert (row["nodes"], row["isMovingTag"], row["members"]) == ("1", "false", "1")
    assert not row["image"].startswith("=")


def test_sizes_have_three_digits_and_a_unit() -> None:
    assert [size_text(n) for n in (0, 7, 17_200_000_000, 5 * 10**15)] == [
        "-", "7 B", "17.2 GB", "5 PB",
    ]  # fmt: skip


def test_a_node_that_reports_fifty_images_may_have_more() -> None:
    many = [([f"r.example/i:{i}"], 1) for i in range(50)]
    assert truncated([node("a", *many), node("b", *many[:49])]) == 1
