"""Which representation a client asked for with its Accept header.

Objects and lists can be sent as they are, as a Table, or as metadata only; discovery aggregated or
plain. The clauses are tried by falling quality, in the order written, and the first that we can
serve wins; protobuf alone is refused, and clients that also take JSON get JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fairlead.api.status import NotAcceptable

ACCEPT_LENGTH_MAX = 4096
_CLAUSES_MAX = 32
_JSON_RANGES = ("application/json", "application/*", "*/*")
_META_VERSIONS = ("v1", "v1beta1")
_DISCOVERY_VERSIONS = ("v2", "v2beta1")


class Form(Enum):
    """The shape of the answer; the value is what stands after `as=`."""

    PLAIN = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"
    DISCOVERY = "APIGroupDiscoveryList"


@dataclass(frozen=True, slots=True)
class Accepted:
    """A form, and the version of the meta or discovery API that it is wanted in."""

    form: Form = Form.PLAIN
    version: str = "v1"


PLAIN = Accepted()
#: The forms that an object, alone or in an event of a watch, a list ... can be sent in.
OBJECT_FORMS = (Form.PLAIN, Form.TABLE, Form.METADATA)
LIST_FORMS = (Form.PLAIN, Form.TABLE, Form.METADATA_LIST)
DISCOVERY_FORMS = (Form.PLAIN, Form.DISCOVERY)
REVIEW_FORMS = (Form.PLAIN,)


@dataclass(frozen=True, slots=True)
class _Clause:
    media: str
    quality: float
    parameters: dict[str, str]


def _clauses(header: str) -> list[_Clause]:
    clauses: list[_Clause] = []
    for text in header.split(",")[:_CLAUSES_MAX]:
        media, *rest = (part.strip() for part in text.split(";"))
        parameters: dict[str, str] = {}
        for part in rest:
            key, _, value = part.partition("=")
            parameters[key.strip().lower()] = value.strip().strip('"')
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            quality = 0.0
        if quality > 0:
            clauses.append(_Clause(media.lower(), quality, parameters))
    return sorted(clauses, key=lambda clause: -clause.quality)


def _serve(clause: _Clause, forms: tuple[Form, ...]) -> Accepted | None:
    if clause.media not in _JSON_RANGES:
        return None
    wanted = clause.parameters.get("as", "")
    form = next((form for form in forms if form.value == wanted), None)
    if form is None:
        return None
    if form is Form.PLAIN:
        return PLAIN
    version, group = clause.parameters.get("v", ""), clause.parameters.get("g", "")
    if form is Form.DISCOVERY:
        known = group == "apidiscovery.k8s.io" and version in _DISCOVERY_VERSIONS
    else:
        known = group == "meta.k8s.io" and version in _META_VERSIONS
    return Accepted(form, version) if known else None


def negotiate(header: str, forms: tuple[Form, ...]) -> Accepted:
    """Return the best of these forms for the Accept header; NotAcceptable when there is none."""
    if header in ("", "*/*", "application/json"):
        return PLAIN
    if len(header) <= ACCEPT_LENGTH_MAX:
        for clause in _clauses(header):
            accepted = _serve(clause, forms)
            if accepted is not None:
                return accepted
    raise NotAcceptable(
        "only the following media types are accepted: application/json, "
        "application/json;stream=watch, application/json;as=Table;g=meta.k8s.io;v=v1, "
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    )
