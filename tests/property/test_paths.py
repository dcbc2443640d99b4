"""Whatever a request names, it names one place: no value leaves its part of the path."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.resources import JOBS, PODS, Resource
from fairlead.api.status import BadRequest
from fairlead.kube.decoding import Decoders
from fairlead.kube.protocol import path_of, steps
from fairlead.runtime.client import Request, RequestVerb

#: What tells parts of an address apart, and what Kubernetes names are made of.
TEXTS = st.text(max_size=20) | st.text("/?#%.&;=:@\\ \r\n\0a1-", min_size=1, max_size=12)
PARTS = TEXTS.filter(bool)


@given(group=TEXTS, version=PARTS, plural=PARTS, namespace=PARTS, name=PARTS, sub=TEXTS)
def test_no_value_of_any_field_leaves_its_part_of_the_path(
    group: str, version: str, plural: str, namespace: str, name: str, sub: str
) -> None:
    resource: Resource[dict[str, Any]] = Resource(group, version, plural, "Thing", dict)
    try:
        path = path_of(resource, namespace, name, sub)
    except BadRequest:
        return
    root = ["apis", group, version] if group else ["api", version]
    wanted = [*root, "namespaces", namespace, plural, name, *([sub] if sub else [])]
    assert [unquote(part) for part in path.split("/")] == ["", *wanted]
    assert not any(part in (".", "..") for part in path.split("/"))
    assert path.isascii()
    assert path.isprintable()
    assert not {"?", "#", " "} & set(path)


@pytest.mark.parametrize("verb", [RequestVerb.GET, RequestVerb.DELETE, RequestVerb.PATCH])
def test_a_request_for_one_object_without_a_name_is_not_one_for_all_of_them(
    verb: RequestVerb,
) -> None:
    asked: Request[Any] = Request(verb, PODS, namespace="default", body={})
    with pytest.raises(BadRequest, match="needs a name"):
        next(steps(asked, Decoders(PODS), 100))
    named: Request[Any] = Request(verb, JOBS, namespace="default", name="train", body={})
    assert next(steps(named, Decoders(JOBS), 100)).path.endswith("/default/jobs/train")
