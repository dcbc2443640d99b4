"""Removing an installation while other clients still write."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from fairlead.api import names
from fairlead.api.resources import JOBS, PODS, SECRETS
from fairlead.api.status import Conflict, NotFound
from fairlead.input.errors import CliError
from fairlead.install import installer, remover
from fairlead.install.manifests import NAME, PART_OF, Install, all_objects, path_of
from fairlead.install.remover import UninstallOptions
from fairlead.kube.blocking import BlockingClient
from fairlead.kube.http1 import HttpResponse
from fairlead.webhook.configuration import SERVICE as WEBHOOK


class Written:
    """An API with one job, which somebody else writes first, so many times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.version = 1
        self.finalizers: list[str] | None = ["other", names.JOB_FINALIZER]

    def list(self, *_: Any) -> list[dict[str, Any]]:
        metadata = {
            "name": "train", "namespace": "default", "uid": "u", "finalizers": self.finalizers,
            "resourceVersion": str(self.version),
        }  # fmt: skip
        return [{"metadata": metadata, "spec": {}}]

    def request(self, verb: str, path: str, *, body: dict[str, Any], content_type: str) -> None:
        assert (verb, content_type) == ("PATCH", remover.MERGE)
        assert path.endswith("/namespaces/default/jobs/train")
        if self.times:
            self.times -= 1
            self.version += 1
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict("the object has been modified")
        self.finalizers = body["metadata"]["finalizers"]


def test_a_job_that_somebody_else_writes_is_freed_a_moment_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remover, "RETRY_SECONDS", 0.0)
    said: list[str] = []
    api = Written(3)
    remover._free(cast("BlockingClient", api), said.append)
    assert api.finalizers == ["other"]
    assert said == ["Job default/train: finalizer removed"]


def test_a_job_that_is_written_all_the_time_ends_in_an_error_that_says_to_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remover, "RETRY_SECONDS", 0.0)
    with pytest.raises(CliError, match="default/train is written by another client"):
        remover._free(cast("BlockingClient", Written(1000)), print)


@dataclass
class Cluster:
    """An installation without definitions, and controllers that end a moment after they were told.

    While one runs it adds our finalizer to every job, again if need be.
    """

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Looks at the pods of the controllers that still show one, once these are deleted.
    looks_left: int | None = None
    #: Objects that another client replaces whenever they have been read, and that it deletes.
    replaced: set[str] = field(default_factory=set)
    vanishing: set[str] = field(default_factory=set)
    #: Looks at each definition that still find it, once it is deleted; and what was asked of them.
    looks_of_kinds: int = 0
    asked_of_kinds: list[str] = field(default_factory=list)

    def put(self, path: str, spec: Any = None, **metadata: Any) -> str:
        _, _, rest = path.rpartition("/namespaces/")
        namespace, *_, name = rest.split("/")
        meta = {"name": name, "uid": path, "resourceVersion": "1"}
        meta |= {"namespace": namespace} if namespace else {}
        self.objects[path] = {"metadata": {**meta, **metadata}, "spec": spec or {}}
        return path

    def install(self, manifest: dict[str, Any]) -> str:
        path = self.put(path_of(manifest), labels=dict([PART_OF]))
        self.objects[path] |= {key: manifest[key] for key in ("apiVersion", "kind")}
        return path

    def request(
        self, verb: str, path: str, *, query: Any = None, body: Any = None, content_type: str = ""
    ) -> HttpResponse:
        if query is not None:
            return HttpResponse(200, "OK", {}, b'{"items": []}')
        found = self.objects.get(path)
        if path in self.vanishing and verb == "PATCH":
            del self.objects[path]
            raise NotFound("gone")
        if found is None:
            raise NotFound(path)
        metadata, answer = found["metadata"], msgspec.json.encode(found)
        if found.get("kind") == "CustomResourceDefinition":
            self._ask_of_kind(verb, found)
        if verb == "GET" and path in self.replaced:
            metadata["uid"] += "+"
        if verb == "DELETE":
            if body.get("preconditions", {}).get("uid", metadata["uid"]) != metadata["uid"]:
                raise Conflict("the object is another one")
            metadata["deletionTimestamp"] = "now"
            if found.get("kind") == "Deployment":
                self.looks_left = 2
        if verb == "PATCH":
            metadata["finalizers"] = body["metadata"].get("finalizers") or []
            found["spec"] |= body.get("spec", {})
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            del self.objects[path]
        return HttpResponse(200, "OK", {}, answer)

    def _ask_of_kind(self, verb: str, found: dict[str, Any]) -> None:
        """A definition goes some looks after it was deleted, as the API server takes its time."""
        metadata = found["metadata"]
        self.asked_of_kinds.append(verb)
        if verb == "DELETE":
            metadata["finalizers"] = ["looks"] * self.looks_of_kinds
        elif verb == "GET" and "deletionTimestamp" in metadata:
            metadata["finalizers"] = metadata["finalizers"][1:]

    def list(
        self, resource: Any, *, namespace: str = "", label_selector: str = "",
        field_selector: str = "",
    ) -> list[dict[str, Any]]:  # fmt: skip
        found = [each for path, each in self.objects.items() if f"/{resource.plural}/" in path]
        if label_selector:
            left, self.looks_left = self.looks_left, max((self.looks_left or 0) - 1, 0)
            for path, each in self.objects.items():
                if left and f"/{JOBS.plural}/" in path:
                    each["metadata"]["finalizers"] = [names.JOB_FINALIZER]
            return [{"metadata": {"namespace": namespace, "name": "controller"}}] if left else []
        return [msgspec.json.decode(msgspec.json.encode(each)) for each in found]


def test_nothing_of_ours_stays_and_all_that_is_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(remover, "RETRY_SECONDS", 0.0)
    cluster, space, said = Cluster(), "fairlead-system", list[str]()
    manifests = {each["kind"]: each for each, _ in all_objects(Install(space))}
    cluster.install(manifests["Deployment"])
    service = cluster.install(manifests["Service"])
    cluster.replaced.add(service)
    cluster.put(f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases/{NAME}")
    of_cert_manager = cluster.put(SECRETS.path(space, WEBHOOK))
    cluster.put(JOBS.path("team", "train"))
    cluster.put(JOBS.path("team", "group"), spec={"adopts": {"name": "web"}})
    gated = {"schedulingGates": [{"name": names.GANG_GATE}, {"name": "other"}]}
    cluster.vanishing.add(cluster.put(PODS.path("team", "web-0"), spec=dict(gated)))
    waiting = cluster.put(PODS.path("team", "web-1"), spec=dict(gated))
    options = UninstallOptions(space, jobs_seconds_max=0.0)
    remover.uninstall(cast("BlockingClient", cluster), options, say=said.append)
    assert set(cluster.objects) == {service, of_cert_manager, waiting}
    assert cluster.objects[waiting]["spec"]["schedulingGates"] == [{"name": "other"}]


def with_definitions(cluster: Cluster) -> list[dict[str, Any]]:
    """Install all definitions, and return them."""
    kinds = [
        each for each, _ in all_objects(Install("fairlead-system"))
        if each["kind"] == "CustomResourceDefinition"
    ]  # fmt: skip
    for each in kinds:
        cluster.install(each)
    assert len(kinds) > 3
    return kinds


def test_definitions_are_deleted_at_once_and_waited_for_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installer, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(remover, "SAY_SECONDS", 0.0)
    cluster, said = Cluster(looks_of_kinds=3), list[str]()
    kinds = with_definitions(cluster)
    options = UninstallOptions("fairlead-system")
    remover.uninstall(cast("BlockingClient", cluster), options, say=said.append)
    assert cluster.objects == {}
    asked = cluster.asked_of_kinds
    assert asked.count("DELETE") == len(kinds)
    last = len(asked) - asked[::-1].index("DELETE")
    assert asked[last:] == ["GET"] * (3 * len(kinds)), "looks come after the last deletion"
    waits = [line for line in said if line.startswith("waits for the API server: ")]
    assert all(any(each["metadata"]["name"] in line for line in waits) for each in kinds)


def test_definitions_that_the_api_server_has_forgotten_are_changed_until_they_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installer, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(remover, "NUDGE_SECONDS", 0.0)
    monkeypatch.setattr(remover, "KIND_SECONDS_MAX", 5.0)
    cluster = Cluster(looks_of_kinds=1_000_000)
    kinds = with_definitions(cluster)
    options = UninstallOptions("fairlead-system")
    remover.uninstall(cast("BlockingClient", cluster), options, say=lambda _: None)
    assert cluster.objects == {}
    assert cluster.asked_of_kinds.count("PATCH") == len(kinds)


def test_an_object_that_only_another_manager_has_written_is_unchanged() -> None:
    api = SimpleNamespace(version=1)

    def request(verb: str, _path: str, **_: Any) -> HttpResponse:
        api.version += verb == "PATCH"
        metadata = {"name": "x", "resourceVersion": str(api.version), "managedFields": api.version}
        return HttpResponse(200, "OK", {}, msgspec.json.encode({"metadata": metadata}))

    api.request = request
    manifest = next(each for each, _ in all_objects(Install("fairlead-system")))
    assert installer.apply(cast("BlockingClient", api), manifest) is installer.Done.UNCHANGED


class LaterVersion(Cluster):
    """Its jobs are stored in v1beta1, as a later version of Fairlead has them, and converted."""

    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/jobs.fairlead.dev"
    discovery, jobs = "/apis/fairlead.dev/v1alpha1", "/apis/fairlead.dev/v1alpha1/jobs"

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        kinds = {each["metadata"]["name"]: each for each in with_definitions(self)}
        spec = kinds["jobs.fairlead.dev"]["spec"]
        found = self.objects[self.definition]
        found["spec"] = {
            "group": spec["group"], "names": spec["names"],
            "versions": [{"name": "v1alpha1", "storage": False, "served": True},
                         {"name": "v1beta1", "storage": True, "served": True}],
            "conversion": {"strategy": "Webhook", "webhook": {}},
        }  # fmt: skip
        found["status"] = {"storedVersions": ["v1beta1"]}

    def request(
        self, verb: str, path: str, *, query: Any = None, body: Any = None, content_type: str = ""
    ) -> HttpResponse:
        found = self.objects[self.definition]
        answer: Any = found
        if path == self.discovery:
            stored = [each["name"] for each in found["spec"]["versions"] if each["storage"]]
            answer = {"resources": [{"name": "jobs", "storageVersionHash": stored[0]}]}
        elif path == self.jobs:
            metadata = {"namespace": "team", "name": "train", "resourceVersion": "1"}
            answer = {"metadata": {}, "items": [{"metadata": metadata, "spec": {}}]}
        elif verb == "PUT":
            self.told.append(f"PUT {path} under {found['spec']['conversion']['strategy']}")
        elif verb == "PATCH" and path.startswith(self.definition):
            self.told.append(f"PATCH {', '.join(sorted(body.keys() - {'metadata'}))}")
            found["spec"] |= body.get("spec", {})
            found["status"] |= body.get("status", {})
        else:
            return super().request(verb, path, query=query, body=body, content_type=content_type)
        return HttpResponse(200, "OK", {}, msgspec.json.encode(answer))


def test_what_a_later_version_stored_is_rewritten_while_it_is_still_converted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installer, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(remover, "RETRY_SECONDS", 0.0)
    cluster, said = LaterVersion(), list[str]()
    options = UninstallOptions("fairlead-system", is_keeping_kinds=True)
    remover.uninstall(cast("BlockingClient", cluster), options, say=said.append)
    job = "/apis/fairlead.dev/v1alpha1/namespaces/team/jobs/train"
    assert cluster.told == [
        "PATCH spec", f"PUT {job} under Webhook", "PATCH status", "PATCH spec"
    ]  # fmt: skip
    found = cluster.objects[cluster.definition]
    assert found["status"]["storedVersions"] == ["v1alpha1"]
    assert [each["name"] for each in found["spec"]["versions"]] == ["v1alpha1"]
    assert said[0].endswith("jobs.fairlead.dev: 1 object stored in v1alpha1")
