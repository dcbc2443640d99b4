"""`why` forecasts with the settings that the controllers of the cluster have."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fairlead.api.kubernetes.core import ConfigMap
from fairlead.api.meta import ObjectMeta
from fairlead.api.names import OWN_NAMESPACE
from fairlead.api.status import Forbidden, NotFound
from fairlead.app.configuration.controller_settings import ControllerSettings, PlacementSettings
from fairlead.app.queries.messages import SETTINGS_FILE, SETTINGS_NAME, ClusterStatus, NodeCounts
from fairlead.cli.cluster.cluster_settings import read_settings
from fairlead.cli.cluster.installation import BINDING_PATH, own_namespace
from fairlead.decide.answers.explain import explain
from fairlead.decide.answers.explanation import Forecast
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.input.sections import plain
from fairlead.install.manifests import Install, manifests
from fairlead.install.values import Values, WebhookValues
from fairlead.kube.http1 import HttpResponse
from fairlead.testing.builders import EPOCH, make_job, make_nodes, make_placement

STRICT = ControllerSettings(placement=PlacementSettings(starvation_seconds=0))


def _api(answer: object, installed: Sequence[dict[str, Any]] = ()) -> Any:
    """Return a server with these objects of an installation, and this answer for its settings."""
    namespace = next(
        (each["metadata"]["namespace"] for each in installed if each["kind"] == "Deployment"),
        OWN_NAMESPACE,
    )

    def get(_resource: object, name: str, *, namespace: str) -> ConfigMap:
        if namespace != installed_in or name != SETTINGS_NAME:
            raise NotFound(f"no {namespace}/{name}")
        if isinstance(answer, Exception):
            raise answer
        return ConfigMap(ObjectMeta(name), {SETTINGS_FILE: str(answer)})

    def request(method: str, path: str) -> HttpResponse:
        kind, name = path.split("/")[-2:]
        for each in installed:
            if (f"{each['kind'].lower()}s", each["metadata"]["name"]) == (kind, name):
                return HttpResponse(200, "OK", {}, msgspec.json.encode(each))
        raise Forbidden(f"may not {method} {path}")

    installed_in = namespace
    return SimpleNamespace(get=get, request=request)


def _status(**more: Any) -> ClusterStatus:
    return ClusterStatus("1", 1, 0.0, "/", NodeCounts(), {}, 0, (), **more)


def test_a_cluster_of_up_says_its_settings_in_its_status() -> None:
    assert read_settings(_api(NotFound("none")), _status(settings=plain(STRICT))) == STRICT
    assert read_settings(_api(NotFound("none")), _status()) == ControllerSettings()


def test_on_a_kubernetes_cluster_they_are_what_the_installation_wrote() -> None:
    (made,) = (each for each in manifests(Install()) if each["kind"] == "ConfigMap")
    assert (made["metadata"]["namespace"], made["metadata"]["name"]) == (
        OWN_NAMESPACE, SETTINGS_NAME,
    )  # fmt: skip
    assert read_settings(_api(made["data"][SETTINGS_FILE]), None) == ControllerSettings()
    assert read_settings(_api("placement: {starvationSeconds: 0}"), None) == STRICT


def test_they_are_found_in_whatever_namespace_fairlead_was_installed_in() -> None:
    objects = manifests(Install("ml-platform"))
    api = _api("placement: {starvationSeconds: 0}", objects)
    assert own_namespace(api) == "ml-platform"
    assert read_settings(api, None) == STRICT


def test_every_user_may_read_what_names_the_namespace() -> None:
    kind, name = BINDING_PATH.split("/")[-2:]
    objects = manifests(Install("ml-platform", Values(webhook=WebhookValues(enabled=False))))
    (role,) = (
        each["metadata"]["name"] for each in objects if each["kind"] == "ClusterRole"
        and {"apiGroups": ["rbac.authorization.k8s.io"], "resources": [kind], "verbs": ["get"],
             "resourceNames": [name]} in each["rules"]
    )  # fmt: skip
    (everyone,) = (
        each["subjects"] for each in objects if each["kind"] == "ClusterRoleBinding"
        and each["roleRef"]["name"] == role
    )  # fmt: skip
    assert [each["name"] for each in everyone] == ["system:authenticated"]


@pytest.mark.parametrize(
    "answer", [Forbidden("no"), NotFound("none"), "[", "x: 1", "placement: {starvationSeconds: x}"]
)
def test_settings_that_cannot_be_read_are_none(answer: object) -> None:
    assert read_settings(_api(answer), None) is None


def test_a_forecast_depends_on_them() -> None:
    """Long jobs pass a large one that waits, unless room is kept for it from the start."""
    running = [
        make_job(f"running-{i}", time_limit_seconds=60 + 600 * i,
                 placement=make_placement([f"node-000{i}"]))
        for i in range(2)
    ]  # fmt: skip
    large = make_job("large", count=2, time_limit_seconds=600)
    small = make_job("small", gpus=1, time_limit_seconds=3600, created=EPOCH + 1)
    starts: list[float] = []
    for settings in (ControllerSettings(), STRICT):
        state = PlacementState.of(make_nodes(2), [*running, large, small])
        found = explain(state, small.metadata.key, EPOCH + 5, settings.placement_policy())
        assert found is not None
        assert isinstance(found.forecast, Forecast)
        starts.append(found.forecast.may_start_by)
    assert starts[0] + 600 <= starts[1]
