"""What was decided on a read model reaches the whole object, and nothing of that gets lost."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.api.kubernetes.core import Container, EnvVar, PodSpec, Volume
from fairlead.api.meta import to_wire
from fairlead.api.overlay import overlay

RAW: dict[str, Any] = {
    "securityContext": {"runAsUser": 1000},
    "restartPolicy": "Always",
    "volumes": [
        {"name": "home", "nfs": {"server": "files", "path": "/home"}},
        {"name": "keys", "secret": {"secretName": "keys", "items": [{"key": "a", "path": "b"}]}},
    ],
    "containers": [
        {
            "name": "side",
            "image": "side:1",
            "ports": [{"containerPort": 80}],
        },
        {
            "name": "main",
            "image": "train:1",
            "lifecycle": {"preStop": {"exec": {"command": ["sync"]}}},
            "livenessProbe": {"tcpSocket": {"port": 1}},
            "env": [
                {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu"}}},
            ],
            "volumeMounts": [
                {"name": "home", "mountPath": "/home", "mountPropagation": "None"},
                {"name": "home", "mountPath": "/h", "recursiveReadOnly": "Enabled"},
            ],
        },
    ],
}


def _model(raw: dict[str, Any]) -> PodSpec:
    return msgspec.convert(raw, PodSpec)


def _overlaid(decided: PodSpec, raw: dict[str, Any]) -> dict[str, Any]:
    before = copy.deepcopy(raw)
    out = overlay(to_wire(decided), to_wire(_model(raw)), raw)
    assert raw == before
    assert _model(out) == decided, "what was decided does not come out"
    return out


def test_what_was_not_touched_is_the_users_to_the_letter() -> None:
    assert _overlaid(_model(RAW), RAW) is RAW


def test_changes_of_containers_keep_what_the_read_model_does_not_know() -> None:
    spec = _model(RAW)
    side, main = spec.containers
    ours = (EnvVar("RANK", "3"), EnvVar("WORLD_SIZE", "4"))
    changed = replace(main, env=(*ours, *main.env[1:]))
    decided = replace(
        spec,
        containers=(side, changed),
        volumes=(*spec.volumes, Volume("peers")),
        node_name="n7",
        restart_policy="Never",
    )
    out = _overlaid(decided, RAW)
    assert (out["nodeName"], out["restartPolicy"]) == ("n7", "Never")
    assert out["securityContext"] == {"runAsUser": 1000}
    assert out["volumes"] == [*RAW["volumes"], {"name": "peers"}]
    raw_main = RAW["containers"][1]
    assert out["containers"][0] is RAW["containers"][0]
    assert (
        out["containers"][1]
        == {
            **raw_main,
            "env": [
                {"name": "RANK", "value": "3"},  # and no valueFrom: two sources would be refused
                {"name": "WORLD_SIZE", "value": "4"},
                *raw_main["env"][1:],
            ],
        }
    )


def test_a_volume_that_replaces_the_users_of_that_name_has_one_source() -> None:
    spec = _model(RAW)
    ours = msgspec.convert({"name": "home", "emptyDir": {}}, Volume)
    out = _overlaid(replace(spec, volumes=(spec.volumes[1], ours)), RAW)
    assert out["volumes"] == [RAW["volumes"][1], {"name": "home", "emptyDir": {}}]


def test_equal_mounts_and_variables_of_one_name_keep_their_order() -> None:
    spec = _model(RAW)
    side, main = spec.containers
    new = replace(main, volume_mounts=main.volume_mounts[1:], env=(EnvVar("A", "1"), *main.env))
    out = _overlaid(replace(spec, containers=(new, side)), RAW)["containers"][0]
    assert out["volumeMounts"] == RAW["containers"][1]["volumeMounts"][1:]
    assert out["env"][1:] == RAW["containers"][1]["env"]


def test_variables_that_are_equal_as_far_as_is_known_are_each_what_the_user_wrote() -> None:
    env = [
        {"name": "KEY", "valueFrom": {"ofALaterVersion": {"key": key}}} for key in ("a", "b", "c")
    ]
    raw = {"containers": [{"name": "main", "env": env}]}
    (main,) = _model(raw).containers
    assert main.env[0] == main.env[1], "the read model knows nothing of what differs"
    new = replace(main, env=(EnvVar("A", "1"), *main.env, EnvVar("B", "2")))
    out = _overlaid(replace(_model(raw), containers=(new,)), raw)["containers"][0]
    assert out["env"][1:-1] == env


def test_a_field_at_its_default_that_was_written_down_stays() -> None:
    raw = {"containers": [{"name": "c", "image": "", "args": []}], "hostname": ""}
    spec = _model(raw)
    out = _overlaid(replace(spec, node_name="n"), raw)
    assert out == {**raw, "nodeName": "n"}


# The law: decoding the outcome gives what was decided, and unknown fields survive at any depth.

unknown = st.dictionaries(st.sampled_from(["x1", "x2"]), st.integers() | st.text(max_size=3))
words = st.sampled_from(["a", "b", "c"])


def _with_unknown(known: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda a, b: {**a, **b}, known, unknown)


variables = _with_unknown(
    st.fixed_dictionaries(
        {"name": words},
        optional={
            "value": st.sampled_from(["", "1"]),
            "valueFrom": _with_unknown(st.just({})),
        },
    )
)
containers = st.lists(
    _with_unknown(
        st.fixed_dictionaries(
            {"name": words},
            optional={
                "image": words,
                "env": st.lists(variables, max_size=4),
                "resources": _with_unknown(st.just({})),
            },
        )
    ),
    unique_by=lambda c: c["name"],
    max_size=3,
)
volumes = st.lists(
    _with_unknown(
        st.fixed_dictionaries({"name": words}, optional={"emptyDir": _with_unknown(st.just({}))})
    ),
    max_size=3,
)
specs = _with_unknown(
    st.fixed_dictionaries(
        {"containers": containers},
        optional={
            "initContainers": containers,
            "volumes": volumes,
            "hostname": words,
            "restartPolicy": st.sampled_from(["Always", "Never"]),
            "affinity": _with_unknown(st.just({})),
        },
    )
)


def _changed_container(container: Container, data: st.DataObject) -> Container:
    env = [v for v in container.env if data.draw(st.booleans())]
    for name in data.draw(st.lists(words, max_size=2)):
        env.insert(data.draw(st.integers(0, len(env))), EnvVar(name, "ours"))
    return replace(container, env=tuple(env))


@settings(max_examples=300, deadline=None)
@given(raw=specs, data=st.data())
def test_decoding_the_outcome_gives_what_was_decided_and_unknown_fields_survive(
    raw: dict[str, Any], data: st.DataObject
) -> None:
    spec = _model(raw)
    decided = replace(
        spec,
        containers=tuple(_changed_container(c, data) for c in spec.containers),
        volumes=(*[v for v in spec.volumes if data.draw(st.booleans())], Volume("ours")),
        node_name="n",
        restart_policy="Never",
    )
    out = _overlaid(decided, raw)
    for key in ("x1", "x2"):
        assert out.get(key) == raw.get(key)
        for whole, before in zip(out["containers"], raw["containers"], strict=True):
            assert whole.get(key) == before.get(key)
            theirs = [v for v in before.get("env", ()) if key in v]
            for variable in whole.get("env", ()):
                assert key not in variable or variable in theirs
    kept = [v for v in out["volumes"] if v["name"] != "ours"]
    assert len(kept) == len(decided.volumes) - 1
    # A second overlay from the first outcome, as pods of one role are made, gives the same.
    other = replace(decided, node_name="m")
    assert overlay(to_wire(other), to_wire(decided), out) == _overlaid(other, raw)
