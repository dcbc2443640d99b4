"""Lists of hosts in Slurm's form."""

from __future__ import annotations

import pytest

from fairlead.member.hostlist import expand_hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11,20]", ["n08", "n09", "n10", "n11", "n20"]),
        ("rack[1-2]-n[0-1]", ["rack1-n0", "rack1-n1", "rack2-n0", "rack2-n1"]),
        ("n[1-2].example.org,login", ["n1.example.org", "n2.example.org", "login"]),
    ],
)
def test_brackets_are_expanded_in_order(text: str, hosts: list[str]) -> None:
    assert list(expand_hosts(text)) == hosts


@pytest.mark.parametrize(
    "text", ["", "a,,b", "n[1-", "n]1[", "n[a-b]", "n[3-1]", "n[0-99999999]", "n[[1]]", "a b"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host|brackets|range|list"):
        expand_hosts(text)
