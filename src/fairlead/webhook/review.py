"""AdmissionReview (admission.k8s.io/v1): what the API server asks, and the form of the answer.

Only the fields that an answer depends on are decoded. Of a pod these are its labels, owners, node
and gates: a pod with a megabyte of environment costs hardly more than an empty one.
Source: `staging/src/k8s.io/api/admission/v1/types.go`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from fairlead.api.meta import Wire
from fairlead.api.status import StatusDetails
from fairlead.decide.admission.pod_gates import Operation, PodGateShape
from fairlead.decide.admission.teams import RequestSender

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

T = TypeVar("T")
R = TypeVar("R")


class BadReview(Exception):
    """The body is no review that can be answered; the message says why."""


class AskedResource(Wire, frozen=True):
    """The resource that the webhook's rules selected."""

    group: str = ""
    version: str = ""
    resource: str = ""


class RequestUser(Wire, frozen=True):
    """Who sends the request, as the API server authenticated it."""

    username: str = ""
    groups: tuple[str, ...] | None = None


class AdmissionRequest(Wire, Generic[T], frozen=True):
    """One request that is to be admitted."""

    uid: str
    resource: AskedResource = AskedResource()
    sub_resource: str = ""
    operation: str = ""
    namespace: str = ""
    name: str = ""
    dry_run: bool | None = None
    user_info: RequestUser = RequestUser()
    object: T | None = None
    old_object: T | None = None

    @property
    def user(self) -> RequestSender:
        """The user as admission judges it."""
        return RequestSender(self.user_info.username, self.user_info.groups or ())


class WebhookReview(Wire, Generic[R], frozen=True):
    """What an API server sends to a webhook: a request in an envelope with its kind."""

    api_version: str = ""
    kind: str = ""
    request: R | None = None


_PODS = msgspec.json.Decoder(WebhookReview[AdmissionRequest[PodGateShape]])
_OBJECTS = msgspec.json.Decoder(WebhookReview[AdmissionRequest[dict[str, Any]]])


def decode_request(
    decoder: msgspec.json.Decoder[WebhookReview[R]], body: bytes, api_version: str, kind: str
) -> R:
    """Return the request of a review that is to be of this version and kind; BadReview."""
    try:
        review = decoder.decode(body)
    except ValueError as error:
        raise BadReview(f"no {kind}: {error}") from error
    except RecursionError as error:
        raise BadReview("nested too deeply") from error
    if (review.api_version, review.kind) != (api_version, kind):
        got = f"{review.api_version or 'no apiVersion'} {review.kind or 'and no kind'}"
        raise BadReview(f"got {got}, accepted: {api_version} {kind}")
    if review.request is None:
        raise BadReview("the review has no request")
    return review.request


def decode_pod(body: bytes) -> AdmissionRequest[PodGateShape]:
    """Return the request about a pod; BadReview."""
    return _decode(_PODS, body, "pods")


def decode_object(body: bytes, plural: str) -> AdmissionRequest[dict[str, Any]]:
    """Return the request about an object of a kind, as plain JSON; BadReview."""
    return _decode(_OBJECTS, body, plural)


def _decode(
    decoder: msgspec.json.Decoder[WebhookReview[AdmissionRequest[T]]], body: bytes, plural: str
) -> AdmissionRequest[T]:
    asked = decode_request(decoder, body, API_VERSION, KIND)
    if asked.resource.resource != plural or asked.sub_resource:
        got = "/".join(filter(None, (asked.resource.resource, asked.sub_resource)))
        raise BadReview(f"asked about {got or 'nothing'}, this path answers about {plural}")
    return asked


def allow(uid: str, patch: Sequence[Operation] = (), warnings: Sequence[str] = ()) -> bytes:
    """Return the answer that lets the request pass, changed by the patch."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    if warnings:
        response["warnings"] = list(warnings)
    return _encode(response)


def refuse(uid: str, message: str, details: StatusDetails) -> bytes:
    """Return the answer that refuses an invalid object, with the field of each mistake."""
    status = {
        "status": "Failure", "code": 422, "reason": "Invalid", "message": message,
        "details": msgspec.to_builtins(details),
    }  # fmt: skip
    return _encode({"uid": uid, "allowed": False, "status": status})


def forbid(uid: str, message: str) -> bytes:
    """Return the answer that refuses what its author has no right to."""
    status = {"status": "Failure", "code": 403, "reason": "Forbidden", "message": message}
    return _encode({"uid": uid, "allowed": False, "status": status})


def _encode(response: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})
