"""Status objects: what goes over the wire comes back as the same exception."""

from __future__ import annotations

import json

import msgspec
import pytest

from fairlead.api import status
from fairlead.api.status import (
    ApiError,
    Conflict,
    Expired,
    Invalid,
    Status,
    StatusCause,
    StatusDetails,
    error_from_status,
)

ERRORS = [
    cls
    for cls in vars(status).values()
    if isinstance(cls, type) and issubclass(cls, ApiError) and cls is not ApiError
]


@pytest.mark.parametrize("cls", ERRORS)
def test_every_error_survives_the_wire(cls: type[ApiError]) -> None:
    cause = StatusCause(reason="FieldValueInvalid", message="no", field="spec.x")
    details = StatusDetails(name="n", causes=(cause,), retry_after_seconds=3)
    wire = cls("message", details=details).status.encode()
    error = error_from_status(msgspec.json.decode(wire, type=Status))
    assert type(error) is cls
    assert error.message == "message"
    assert error.retry_after_seconds == 3
    assert error.status.details == details


def test_the_wire_form_says_that_it_is_a_failure() -> None:
    body = json.loads(Invalid("no").status.encode())
    assert body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "no",
        "reason": "Invalid",
        "code": 422,
    }
    assert json.loads(Status(status="Success").encode())["status"] == "Success"


@pytest.mark.parametrize(
    ("answer", "cls", "retryable"),
    [
        (Status(code=409), Conflict, False),
        (Status(code=410, reason="Gone"), Expired, False),
        (Status(code=502, message="bad gateway"), status.InternalError, True),
        (Status(code=500, reason="ServerTimeout"), status.InternalError, True),
        (Status(code=418), ApiError, False),
    ],
)
def test_answers_without_a_known_reason_go_by_their_code(
    answer: Status, cls: type[ApiError], *, retryable: bool
) -> None:
    error = error_from_status(answer)
    assert type(error) is cls
    assert error.retryable is retryable
    assert error.status.code == answer.code
