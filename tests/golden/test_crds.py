"""The checked-in CRDs are those that the types give."""

from __future__ import annotations

from tools import generate_crds

from fairlead.api.schema import crd


def test_the_checked_in_crds_are_up_to_date() -> None:
    files = generate_crds.files()
    found = {path.name: path.read_text("utf-8") for path in generate_crds.DIRECTORY.glob("*.yaml")}
    assert found == files, f"run `{crd.COMMAND}` and look at the difference"
