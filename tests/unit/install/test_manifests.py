"""Names that stand in the chart's templates and in the code are the same."""

from __future__ import annotations

import re

from fairlead.app.messages import ACCOUNT
from fairlead.install.manifests import HISTORY, NAME, Install, all_objects, label_of, manifests
from fairlead.webhook.configuration import PORT, SERVICE

SPACE = "fairlead-system"


def test_the_code_finds_the_objects_of_the_templates_by_their_names() -> None:
    made = {label_of(manifest) for manifest, _ in all_objects(Install())}
    assert {
        f"ServiceAccount {SPACE}/{NAME}", f"ServiceAccount {SPACE}/{ACCOUNT}",
        f"PersistentVolumeClaim {SPACE}/{HISTORY}", f"Service {SPACE}/{SERVICE}",
    } <= made  # fmt: skip


def test_the_webhook_is_served_where_its_service_sends_requests() -> None:
    pod = manifests(Install())[-1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports["webhook"] == PORT
    assert container["args"][-1] == f"0.0.0.0:{PORT}"


def test_every_object_has_its_template_once() -> None:
    labels = [label_of(manifest) for manifest, _ in all_objects(Install())]
    assert len(labels) == len(set(labels)) > 20
    assert not [label for label in labels if re.search("[{}]", label)]
