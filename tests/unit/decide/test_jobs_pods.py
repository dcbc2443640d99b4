"""What a pod says of itself: labels are read within bounds, or not at all."""

from __future__ import annotations

import pytest

from fairlead.api import names
from fairlead.api.meta import label_number
from fairlead.decide.jobs.pods import read_member
from fairlead.testing.builders import make_pod


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 63, "-1", "²", "٣", "", "1e3"])
def test_a_label_that_is_no_number_of_ours_reads_as_none(text: str) -> None:
    assert label_number(text) is None
    member = read_member(make_pod("p", labels={names.INDEX: text, names.ATTEMPT: text}))
    assert (member.index, member.attempt) == (-1, 0)
