"""What the webhook answers to reviews of objects that are to be converted, right ones and wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.schema.conversion import ALPHA, BETA
from fairlead.decide.admission.pod_gates import GateRules
from fairlead.webhook.answers import AdmissionAnswers, HttpAnswer, RequestOutcome, path_of
from fairlead.webhook.configuration import Path

ANSWERS = AdmissionAnswers(GateRules(own_namespace="fairlead-system"), converts=True)
V1 = "apiextensions.k8s.io/v1"


def job(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": ALPHA, "kind": "Job", "metadata": {"name": name}, "spec": spec}


def review(*objects: Any, to: Any = BETA, **more: Any) -> bytes:
    request = {"uid": "u", "desiredAPIVersion": to, "objects": list(objects)}
    return msgspec.json.encode(
        {"apiVersion": V1, "kind": "ConversionReview", "request": request, **more}
    )


def ask(body: bytes) -> HttpAnswer:
    return ANSWERS.answer(Path.CONVERT, body)


def response(answer: HttpAnswer) -> dict[str, Any]:
    assert answer.status == 200
    found = msgspec.json.decode(answer.body)
    assert (found["apiVersion"], found["kind"]) == (V1, "ConversionReview")
    assert found["response"]["uid"] == "u"
    return found["response"]


def test_objects_are_converted_in_their_order_and_back() -> None:
    jobs = [job("a", team="red"), job("b", after=[{"job": "a"}]), job("c")]
    answer = ask(review(*jobs))
    assert answer.outcome is RequestOutcome.CONVERTED
    there = response(answer)
    assert there["result"] == {"status": "Success"}
    assert [each["apiVersion"] for each in there["convertedObjects"]] == [BETA] * 3
    assert there["convertedObjects"][0]["spec"] == {"teamName": "red"}
    back = response(ask(review(*there["convertedObjects"], to=ALPHA)))
    assert back["convertedObjects"] == jobs


@pytest.mark.parametrize("objects", [[], None], ids=["empty", "null"])
def test_a_review_without_objects_is_answered(objects: Any) -> None:
    request = {"uid": "u", "desiredAPIVersion": BETA, "objects": objects}
    answer = response(ask(review(request=request)))
    assert answer == {"uid": "u", "result": {"status": "Success"}, "convertedObjects": []}


@pytest.mark.parametrize(
    ("objects", "to", "said"),
    [
        ([job("a"), {"kind": "Pod", "apiVersion": "v1"}], BETA, "objects[1].kind: got 'Pod'"),
        ([job("a"), job("b"), {}], BETA, "objects[2].kind: got nothing"),
        ([job("a")], "fairlead.dev/v2", "objects[0].apiVersion: got 'fairlead.dev/v2'"),
        ([job("a")], "", "objects[0].apiVersion: got ''"),
        ([job("a"), "text"], BETA, "objects[1].kind: Expected `object`, got `str`"),
        ([{**job("a"), "apiVersion": "batch/v1"}], BETA, "objects[0].apiVersion: got 'batch/v1'"),
    ],
    ids=["kind", "empty", "version", "none", "text", "group"],
)
def test_one_wrong_object_fails_all_and_is_named(objects: list[Any], to: str, said: str) -> None:
    answer = ask(review(*objects, to=to))
    assert answer.outcome is RequestOutcome.REFUSED
    found = response(answer)
    assert set(found) == {"uid", "result"}
    assert found["result"]["status"] == "Failure"
    assert found["result"]["message"].startswith(said)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no ConversionReview"),
        (b"[]", "no ConversionReview"),
        (review(apiVersion="apiextensions.k8s.io/v1beta1"), "got apiextensions.k8s.io/v1beta1"),
        (review(kind="AdmissionReview"), "accepted: apiextensions.k8s.io/v1 ConversionReview"),
        (review(request=None), "the review has no request"),
        (review(request={"objects": []}), "missing required field `uid`"),
        (review(to=5), "Expected `str`"),
        (b'{"request":{"uid":"u","objects":[' + b'{"a":' * 50_000, "nested too deeply"),
    ],
    ids=["empty", "list", "version", "kind", "none", "uid", "wanted", "deep"],
)
def test_what_is_no_review_is_refused_with_what_is_accepted(body: bytes, said: str) -> None:
    answer = ask(body)
    assert (answer.outcome, answer.status) == (RequestOutcome.MALFORMED, 400)
    assert said in answer.body.decode()


def test_an_object_that_is_nested_deeply_is_converted_or_refused_and_nothing_else() -> None:
    deep: Any = {"job": "a"}
    for _ in range(400):
        deep = [deep]
    [found] = response(ask(review(job("a", after=deep))))["convertedObjects"]
    assert found["spec"]["after"] == deep


@settings(max_examples=50)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_are_a_fault(body: bytes) -> None:
    assert ask(body).status == 400


def test_where_it_is_not_asked_for_there_is_no_such_path() -> None:
    answers = AdmissionAnswers(GateRules(own_namespace="fairlead-system"))
    assert path_of("/convert") is Path.CONVERT
    for path in (Path.CONVERT, Path.OTHER):
        answer = answers.answer(path, review(job("a")))
        assert answer.status == 404
        assert "/convert" not in answer.body.decode()
    assert "/convert" in ANSWERS.answer(Path.OTHER, b"").body.decode()
