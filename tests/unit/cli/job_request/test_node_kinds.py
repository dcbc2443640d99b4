"""Names of kinds of nodes become labels that nodes have."""

from __future__ import annotations

import pytest

from fairlead.cli.job_request.flag_groups.flags import FlagValue
from fairlead.cli.job_request.node_kinds import (
    ConstraintError,
    KnownNodes,
    NamedNodes,
    What,
    features_of,
    kinds_of,
    parse_constraint,
    resolve,
)

PRODUCT = "nvidia.com/gpu.product"
GIVEN = FlagValue("", "--constraint")


def found(what: What, *names: str, labels: list[dict[str, str]]) -> list[str]:
    result = resolve(NamedNodes(what, names, GIVEN), KnownNodes(labels, {}))
    if result.problem is not None:
        return [result.problem.message, *result.problem.help]
    return [f"{r.key} {r.operator} {','.join(r.values)}" for r in result.requirements]


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("a100", "NVIDIA-A100-SXM4-80GB"),
        ("rtx2080ti", "NVIDIA-GeForce-RTX-2080-Ti"),
        ("nvidia_h100_80gb_hbm3", "NVIDIA-H100-80GB-HBM3"),
        ("v100", "Tesla-V100-SXM2-32GB"),
        ("mi300x", "AMD_Instinct_MI300X_OAM"),
    ],
)
def test_a_type_of_gpu_is_whole_words_of_a_label_about_gpus(name: str, product: str) -> None:
    labels = [{PRODUCT: product}, {PRODUCT: "NVIDIA-L40S"}, {"team": name}]
    assert found(What.GPU_TYPE, name, labels=labels) == [f"{PRODUCT} In {product}"]


def test_a_type_is_no_part_of_a_word() -> None:
    message, help_ = found(What.GPU_TYPE, "l40", labels=[{PRODUCT: "NVIDIA-L40S"}])
    assert message == "--constraint: no node has GPUs of the type 'l40'"
    assert help_ == "there are: NVIDIA-L40S"


def test_all_products_of_a_type_will_do() -> None:
    labels = [{PRODUCT: "NVIDIA-A100-SXM4-80GB"}, {PRODUCT: "NVIDIA-A100-PCIE-40GB"}]
    assert found(What.GPU_TYPE, "A100", labels=labels) == [
        f"{PRODUCT} In NVIDIA-A100-PCIE-40GB,NVIDIA-A100-SXM4-80GB"
    ]


def test_a_feature_is_a_value_or_the_name_of_a_label_that_is_true() -> None:
    labels = [{"example.org/ib": "true", "zone": "west"}, {"example.org/ib": "false"}]
    assert found(What.FEATURE, "ib", labels=labels) == ["example.org/ib In true"]
    assert found(What.FEATURE, "west", labels=labels) == ["zone In west"]
    assert found(What.FEATURE, "wset", labels=labels)[1] == "did you mean west?"


def test_a_feature_with_a_value_is_a_label_with_it_or_the_one_that_an_import_names() -> None:
    labels = [{"example.org/gpu": "P100"}, {"feature.fairlead.dev/cpu-zen3": "true"}]
    assert found(What.FEATURE, "gpu=P100", labels=labels) == ["example.org/gpu In P100"]
    assert found(What.FEATURE, "cpu=zen3", labels=labels) == [
        "feature.fairlead.dev/cpu-zen3 In true"
    ]
    assert "no node has" in found(What.FEATURE, "gpu=V100", labels=labels)[0]


def test_either_of_two_features_needs_one_label() -> None:
    labels = [{"arch": "zen3", "zone": "west"}, {"arch": "zen4"}]
    assert found(What.FEATURE, "zen3", "zen4", labels=labels) == ["arch In zen3,zen4"]
    assert "labels that differ" in found(What.FEATURE, "zen4", "west", labels=labels)[0]


def test_the_label_of_most_nodes_is_taken() -> None:
    labels = [{"a": "fast", "b": "fast"}, {"b": "fast"}]
    assert found(What.FEATURE, "fast", labels=labels) == ["b In fast"]


def test_where_nodes_cannot_be_listed_a_place_is_noted_and_a_type_is_refused() -> None:
    known = KnownNodes(None, {})
    assert resolve(NamedNodes(What.PARTITION, ("gpu",), GIVEN), known).note
    assert resolve(NamedNodes(What.GPU_TYPE, ("a100",), GIVEN), known).problem is not None


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("a100", (("a100",),)),
        ("a100&ib", (("a100",), ("ib",))),
        ("a100,ib", (("a100",), ("ib",))),
        ("a100|h100", (("a100", "h100"),)),
        ("gpu=P100", (("gpu=P100",),)),
        ("(a100|h100)&ib", (("a100", "h100"), ("ib",))),
    ],
)
def test_constraints_are_groups_of_features(text: str, groups: tuple[tuple[str, ...]]) -> None:
    assert parse_constraint(text) == groups


@pytest.mark.parametrize("text", ["[r1|r2]", "ib*4", "(a&b)|c", "((a))", "a b", "", "(a"])
def test_constraints_without_an_equal_are_refused(text: str) -> None:
    with pytest.raises(ConstraintError):
        list(features_of(FlagValue(text, "--constraint")))


def test_a_number_of_gpus_without_a_type_names_no_kind() -> None:
    assert list(kinds_of(FlagValue("8", "--gpus"), None)) == []
