"""What of a run the report counts."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tests.conformance.report import render

RUN = """<testsuites><testsuite>
<testcase classname="tests.conformance.test_objects" name="test_p01_uids[embedded]"/>
<testcase classname="tests.conformance.test_objects" name="test_p01_uids[kubernetes]"/>
<testcase classname="tests.kubernetes.test_devices" name="test_p01_others"><failure/></testcase>
</testsuite></testsuites>"""


def test_tests_of_other_folders_in_the_same_run_do_not_count() -> None:
    assert "| 1 | a new uid for each incarnation | 1 passed | 1 passed | - | same |" in render(
        ET.fromstring(RUN)
    )
