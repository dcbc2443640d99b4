"""What is said to a webhook and what its answer means: AdmissionReview v1, both ways.

`request_body` writes the question. `read_answer` proves that the answer is one (`BadAnswer`
otherwise, which counts as a failed call), `denial` turns a refusal into the error that the client
gets. Source: apiserver `pkg/admission/plugin/webhook/request/admissionreview.go`, `errors`. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.api.meta import Wire
from fairlead.api.status import (
    ApiError,
    InternalError,
    Status,
    StatusCause,
    StatusDetails,
    error_from_status,
)
from fairlead.embedded.patch import apply_json_patch
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.webhooks.match import Attributes, Invocation

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
_REFUSED_CODE_MIN = 400

Obj = dict[str, Any]


class BadAnswer(Exception):
    """What came back is no answer to the question; the message says why."""


@dataclass(frozen=True, slots=True)
class ReviewUser:
    """In whose name requests are made."""

    name: str
    groups: tuple[str, ...]


class _Response(Wire, frozen=True):
    uid: str = ""
    allowed: bool = False
    status: Status | None = None
    patch: str | None = None
    patch_type: str | None = None
    warnings: tuple[str, ...] = ()


class _Review(Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    response: _Response | None = None


_DECODER = msgspec.json.Decoder(_Review)


@dataclass(frozen=True, slots=True)
class ReviewAnswer:
    """What a webhook says. `patch` has no operations when it changes nothing."""

    is_allowed: bool
    status: Status
    patch: Sequence[Any]
    warnings: tuple[str, ...]


def request_body(
    uid: str, invocation: Invocation, attributes: Attributes, user: ReviewUser
) -> bytes:
    """Return the review to send. Objects go out in the version that the webhook asked for."""
    asked, info, kind = attributes.asked, invocation.info, attributes.kind
    sent_kind = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    request: Obj = {
        "uid": uid,
        "kind": sent_kind if asked.subresource else _kind(info),
        "resource": _resource(info),
        "requestKind": sent_kind,
        "requestResource": _resource(asked.info),
        "operation": asked.operation.value,
        "userInfo": {"username": user.name, "groups": list(user.groups)},
        "object": in_version(attributes.object, attributes, info),
        "oldObject": in_version(attributes.old_object, attributes, info),
        "dryRun": attributes.is_dry_run,
        "options": attributes.options,
    }
    for field, value in (
        ("name", attributes.name), ("namespace", attributes.namespace),
        ("subResource", asked.subresource), ("requestSubResource", asked.subresource),
    ):  # fmt: skip
        if value:
            request[field] = value
    review = {"kind": KIND, "apiVersion": API_VERSION, "request": request}
    return msgspec.json.encode(review)


def _kind(info: ResourceInfo) -> Obj:
    return {"group": info.group, "version": info.version, "kind": info.kind}


def _resource(info: ResourceInfo) -> Obj:
    return {"group": info.group, "version": info.version, "resource": info.plural}


def converted(obj: Obj, given: ResourceInfo, wanted: ResourceInfo) -> Obj:
    """Return a whole object of one version of its kind in another one."""
    return {**wanted.served(given.stored(obj)), "apiVersion": wanted.api_version}


def in_version(obj: Obj | None, attributes: Attributes, info: ResourceInfo) -> Obj | None:
    """Return an object of a request in the version of its kind that a webhook is to get.

    What is of another kind, as a Scale is, stays the same object.
    """
    asked = attributes.asked
    if obj is None or info is asked.info or obj.get("apiVersion") != asked.info.api_version:
        return obj
    return converted(obj, asked.info, info)


def read_answer(uid: str, body: bytes, *, is_mutating: bool) -> ReviewAnswer:
    """Return what the answer to the review `uid` says; BadAnswer when it is none."""
    try:
        review = _DECODER.decode(body)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"the body is no AdmissionReview: {error}") from None
    response = review.response
    if response is None:
        raise BadAnswer("webhook response was absent")
    if response.uid != uid:
        raise BadAnswer(f'expected response.uid="{uid}", got "{response.uid}"')
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        raise BadAnswer(
            f"expected webhook response of {API_VERSION}, Kind={KIND}, got "
            f"{review.api_version or '/'}, Kind={review.kind}"
        )
    patch = _read_patch(response) if is_mutating else _no_patch(response)
    return ReviewAnswer(response.allowed, response.status or Status(), patch, response.warnings)


def _no_patch(response: _Response) -> Sequence[Any]:
    if response.patch:
        raise BadAnswer("validating webhook may not return response.patch")
    if response.patch_type is not None:
        raise BadAnswer("validating webhook may not return response.patchType")
    return ()


def _read_patch(response: _Response) -> Sequence[Any]:
    if not response.patch:
        if response.patch_type is not None:
            raise BadAnswer("webhook returned response.patchType but not response.patch")
        return ()
    if response.patch_type is None:
        raise BadAnswer("webhook returned response.patch but not response.patchType")
    if response.patch_type != "JSONPatch":
        raise BadAnswer(f'unsupported patch type "{response.patch_type}"')
    try:
        patch = msgspec.json.decode(base64.b64decode(response.patch, validate=True))
    except ValueError as error:
        raise BadAnswer(f"received undecodable patch in webhook response: {error}") from None
    if not isinstance(patch, list):
        raise BadAnswer("received undecodable patch in webhook response: it is no list")
    return patch


def patched(name: str, obj: Obj | None, patch: Sequence[Any]) -> Obj:
    """Return the object with the webhook's patch applied; InternalError when it does not apply."""
    if obj is None:
        raise internal(
            f'admission webhook "{name}" attempted to modify the object, which is not supported '
            "for this operation"
        )
    try:
        out = apply_json_patch(obj, patch)
    except ApiError as error:
        raise internal(f'the patch of admission webhook "{name}": {error.message}') from error
    if not isinstance(out, dict):
        raise internal(f'the patch of admission webhook "{name}" leaves no object')
    return out


def denial(name: str, status: Status) -> ApiError:
    """Return the error of a request that a webhook refused: its code, 400 at least, its reason."""
    text = f'admission webhook "{name}" denied the request'
    why = status.message or status.reason
    message = f"{text}: {why}" if why else f"{text} without explanation"
    code = max(status.code, _REFUSED_CODE_MIN)
    return error_from_status(
        msgspec.structs.replace(status, message=message, code=code, status="Failure")
    )


def call_failed(name: str, why: str) -> ApiError:
    """Return the 500 of a call that failed, where that refuses the request."""
    return internal(f'failed calling webhook "{name}": {why}')


def internal(why: str) -> InternalError:
    """Return a 500 as upstream words it, with the cause."""
    details = StatusDetails(causes=(StatusCause(message=why),))
    return InternalError(f"Internal error occurred: {why}", details=details)
