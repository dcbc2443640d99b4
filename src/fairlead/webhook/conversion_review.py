"""ConversionReview (apiextensions.k8s.io/v1): objects of an API server in another version.

All of a review's objects are converted, or none: an answer with fewer is a failure for the server.
Source: `staging/src/k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1/types_conversion.go`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.api.meta import Wire
from fairlead.api.schema.conversion import UnknownVersion, converted
from fairlead.webhook.review import BadReview, WebhookReview, decode_request

API_VERSION = "apiextensions.k8s.io/v1"
KIND = "ConversionReview"


class ConversionRequest(Wire, frozen=True):
    """Objects that are to be converted, in order."""

    uid: str
    desired_api_version: str = msgspec.field(name="desiredAPIVersion", default="")
    objects: tuple[msgspec.Raw, ...] | None = None


_REVIEWS = msgspec.json.Decoder(WebhookReview[ConversionRequest])
_OBJECTS = msgspec.json.Decoder(dict[str, Any])


def answer(body: bytes) -> tuple[bytes, str]:
    """Return the answer to a review, and why it failed: "" when it did not. BadReview."""
    asked = decode_request(_REVIEWS, body, API_VERSION, KIND)
    done: list[msgspec.Raw] = []
    for index, each in enumerate(asked.objects or ()):
        try:
            done.append(_converted(each, asked.desired_api_version))
        except UnknownVersion as error:
            why = f"objects[{index}].{error}"
            result = {"status": "Failure", "message": why}
            return _encode({"uid": asked.uid, "result": result}), why
    result = {"status": "Success"}
    return _encode({"uid": asked.uid, "result": result, "convertedObjects": done}), ""


def _converted(text: msgspec.Raw, api_version: str) -> msgspec.Raw:
    """Return one object in another version; each is decoded by itself, so few are held at once."""
    try:
        found = _OBJECTS.decode(text)
    except RecursionError as error:
        raise BadReview("nested too deeply") from error
    except ValueError as error:
        raise UnknownVersion(f"kind: {error}") from error
    return msgspec.Raw(msgspec.json.encode(converted(found, api_version)))


def _encode(response: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})
