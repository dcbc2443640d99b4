"""The verbs over HTTP: from path, query and body to a call of the service, and back.

One method per verb. What a client may say and how it is answered is decided here; what it means to
the stored objects is the service's. Nothing is accepted and then ignored: what the service has no
notion of is refused with the code that makes clients fall back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web

from fairlead.api.kubernetes.core import Pod
from fairlead.api.status import (
    ApiError,
    BadRequest,
    MethodNotAllowed,
    NotFound,
    StatusDetails,
)
from fairlead.embedded.http.answering.negotiate import (
    LIST_FORMS,
    OBJECT_FORMS,
    PLAIN,
    REVIEW_FORMS,
    Accepted,
    Form,
    negotiate,
)
from fairlead.embedded.http.answering.render import (
    IncludeObject,
    collection,
    list_pieces,
    rendering,
    whole,
)
from fairlead.embedded.http.answering.respond import (
    begin_json,
    json_answer,
    success_answer,
    value_answer,
    write_pieces,
)
from fairlead.embedded.http.answering.watching import Watching, WatchQuery
from fairlead.embedded.http.metrics import GROUP as METRICS_GROUP
from fairlead.embedded.http.metrics import MetricsSource, answer_metrics
from fairlead.embedded.http.only_created import REVIEWS_BY_PATH, UNSERVED_BY_PATH, Review
from fairlead.embedded.http.query_options import delete_options, list_options, write_options
from fairlead.embedded.http.request import (
    JSON_TYPE,
    BodyLimits,
    PathNotFound,
    Query,
    ResourcePath,
    as_object,
    decode_body,
    decode_config,
    decode_json,
    duplicate_fields,
    keys_given_twice,
    media_type,
    read_body,
    unsupported,
)
from fairlead.embedded.http.streams.podlogs import PodLogs
from fairlead.embedded.http.streams.stream_answers import PodStreams
from fairlead.embedded.patch import apply_json_patch, apply_merge_patch
from fairlead.embedded.registry import Registry
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.store import Record
from fairlead.embedded.verbs import errors
from fairlead.embedded.verbs.options import WatchOptions, WriteOptions
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.client import PatchType
from fairlead.runtime.clock import Clock

APPLY_TYPE = "application/apply-patch+yaml"
_NO_PROXY = (
    "{name} is not served by the embedded cluster: its members listen on this machine; connect to "
    "their port, or forward it"
)
#: Sub-resources of pods that are streams both ways.
STREAMS = ("exec", "attach", "portforward")


@dataclass(frozen=True, slots=True)
class ResourceCall:
    """One request to one kind: everything that the verbs need."""

    request: web.BaseRequest
    path: ResourcePath
    info: ResourceInfo
    query: Query
    #: For the headers of the answer.
    warnings: list[str] = field(default_factory=list[str])

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return (self.path.namespace, self.path.name)

    def accepted(self, forms: tuple[Form, ...]) -> Accepted:
        """Return the form that the client wants."""
        header = self.request.headers.get("Accept", "")
        return PLAIN if header == "application/json" else negotiate(header, forms)

    def include(self) -> IncludeObject:
        """Return what table rows are to carry."""
        return self.query.choice("includeObject", IncludeObject) or IncludeObject.METADATA

    def write_options(self) -> WriteOptions:
        """Return the options of a write."""
        return write_options(self.request, self.query, self.warnings)


class Resources:
    """Answers every request below /api/<version> and /apis/<group>/<version>."""

    def __init__(
        self,
        service: ApiService,
        *,
        watching: Watching,
        logs: PodLogs,
        streams: PodStreams,
        clock: Clock,
        limits: BodyLimits,
        metrics: MetricsSource | None = None,
    ) -> None:
        self._metrics = metrics
        self._service = service
        self._registry: Registry = service.registry
        self._watching = watching
        self._logs = logs
        self._streams = streams
        self._clock = clock
        self._limits = limits

    async def answer(
        self, request: web.BaseRequest, path: ResourcePath, query: Query
    ) -> web.StreamResponse:
        """Answer one request; ApiError for all that goes wrong."""
        info = self._registry.find(path.group, path.version, path.plural)
        if info is None:
            if path.group == METRICS_GROUP and self._metrics is not None:
                found = answer_metrics(self._metrics, request.method, path, query)
                return value_answer(found)
            unserved = UNSERVED_BY_PATH.get((path.group, path.version, path.plural))
            if unserved is not None:
                creates = media_type(request) == APPLY_TYPE
                raise unserved.refuse("POST" if creates else request.method, path.name)
            review = REVIEWS_BY_PATH.get((path.group, path.version, path.plural))
            if review is None or path.name:
                raise self._not_there(path)
            return await self._review(request, review)
        if path.namespace and not info.namespaced:
            raise self._not_there(path)
        if path.name and info.namespaced and not path.namespace:
            raise self._not_there(path)
        call = ResourceCall(request, path, info, query, [*info.warnings])
        try:
            if path.subresource:
                return await self._subresource(call)
            if path.name:
                return await self._object(call)
            return await self._collection(call)
        except ApiError as error:
            error.warnings = (*info.warnings, *error.warnings)
            raise

    def _not_there(self, path: ResourcePath) -> NotFound:
        """A Status where the group and version are known, the plain text elsewhere; as upstream."""
        if any((i.group, i.version) == (path.group, path.version) for i in self._registry.all()):
            return errors.unknown_resource()
        return PathNotFound("404 page not found")

    async def _collection(self, call: ResourceCall) -> web.StreamResponse:
        match call.request.method:
            case "GET" if call.query.flag("watch"):
                self._check_verb(call, "watch")
                return await self._watch(call)
            case "GET":
                self._check_verb(call, "list")
                return await self._list(call)
            case "POST":
                self._check_verb(call, "create")
                return await self._create(call)
            case "DELETE":
                self._check_verb(call, "deletecollection")
                return await self._delete_collection(call)
            case method:
                raise errors.method_not_allowed(call.info, method)

    async def _object(self, call: ResourceCall) -> web.StreamResponse:
        match call.request.method:
            case "GET":
                return self._get(call)
            case "PUT":
                self._check_verb(call, "update")
                return await self._replace(call)
            case "PATCH":
                self._check_verb(call, "patch")
                return await self._patch(call)
            case "DELETE":
                self._check_verb(call, "delete")
                return await self._delete(call)
            case method:
                raise errors.method_not_allowed(call.info, method)

    async def _subresource(self, call: ResourceCall) -> web.StreamResponse:
        sub, method = call.path.subresource, call.request.method
        if sub not in call.info.subresources:
            if sub == "proxy" and call.info.plural in ("pods", "services", "nodes"):
                raise NotFound(_NO_PROXY.format(name=f"{call.info.name}/{sub}"))
            raise self._not_there(call.path)
        match (sub, method):
            case ("log", "GET"):
                record = self._service.get(call.info, *call.key)
                return await self._logs.answer(call.request, record.typed(Pod), call.query)
            case ("exec" | "attach" | "portforward", "GET" | "POST"):
                pod = self._service.get(call.info, *call.key).typed(Pod)
                return await self._streams.answer(call.request, pod, call.query, sub)
            case ("binding", "POST"):
                body = as_object(await self._body(call))
                await self._service.bind(call.key, body, call.write_options())
                return success_answer(201, warnings=call.warnings)
            case ("eviction", "POST"):
                return await self._evict(call)
            case ("scale", "GET"):
                scale = self._service.get_scale(call.info, call.key)
                return value_answer(scale, warnings=call.warnings)
            case ("scale", "PUT" | "PATCH"):
                return await self._put_scale(call)
            case ("status" | "resize", "GET"):
                return self._get(call)
            case ("status" | "finalize" | "resize", "PUT"):
                return await self._replace(call)
            case ("status" | "resize", "PATCH"):
                return await self._patch(call)
            case _:
                raise errors.method_not_allowed(call.info, f"{method} of {sub}")

    def _check_verb(self, call: ResourceCall, verb: str) -> None:
        if verb not in call.info.verbs:
            raise errors.method_not_allowed(call.info, verb)

    # Reads -----------------------------------------------------------------------------------

    def _get(self, call: ResourceCall) -> web.Response:
        accepted = call.accepted(OBJECT_FORMS)
        asked = call.query.text("resourceVersion")
        if asked and not (asked.isascii() and asked.isdigit()):
            raise BadRequest(f"query parameter resourceVersion: '{asked[:40]}' is not a number")
        return self._one(call, self._service.get(call.info, *call.key), accepted)

    def _one(
        self, call: ResourceCall, record: Record, accepted: Accepted, status: int = 200
    ) -> web.Response:
        if accepted is PLAIN:
            return json_answer(whole(call.info, record), status, warnings=call.warnings)
        render = rendering(call.info, accepted, call.include(), self._clock)
        return json_answer(render.one(record), status, warnings=call.warnings)

    async def _list(self, call: ResourceCall) -> web.StreamResponse:
        accepted = call.accepted(LIST_FORMS)
        render = rendering(call.info, accepted, call.include(), self._clock)
        query = call.query
        if query.is_given("sendInitialEvents"):
            why = "sendInitialEvents is forbidden for list"
            problem = errors.FieldProblem("sendInitialEvents", errors.ProblemType.FORBIDDEN, why)
            raise errors.invalid_options("ListOptions", problem)
        page = self._service.list(call.info, call.path.namespace, list_options(query))
        pieces = list_pieces(render, page)
        first = next(pieces)
        second = next(pieces, None)
        if second is None:
            return json_answer(first, warnings=call.warnings)
        response = await begin_json(call.request, warnings=call.warnings)
        await response.write(first)
        await response.write(second)
        await write_pieces(response, pieces)
        return response

    async def _watch(self, call: ResourceCall) -> web.StreamResponse:
        query = call.query
        options = WatchOptions(
            label_selector=query.text("labelSelector"),
            field_selector=query.text("fieldSelector"),
            resource_version=query.text("resourceVersion"),
            resource_version_match=query.text("resourceVersionMatch"),
            timeout_seconds=query.integer("timeoutSeconds"),
            allow_bookmarks=query.flag("allowWatchBookmarks"),
            send_initial_events=(
                query.flag("sendInitialEvents") if query.is_given("sendInitialEvents") else None
            ),
        )
        accepted = call.accepted(OBJECT_FORMS)
        watch = WatchQuery(call.info, call.path.namespace, options, accepted, call.include())
        return await self._watching.answer(call.request, watch)

    # Writes ----------------------------------------------------------------------------------

    async def _body(self, call: ResourceCall) -> Any:
        body = await read_body(call.request, self._limits)
        return decode_body(body, media_type(call.request), self._limits)

    async def _object_body(self, call: ResourceCall) -> dict[str, Any]:
        """The body as an object of the kind that the path names."""
        raw = await read_body(call.request, self._limits)
        content_type = media_type(call.request)
        body = as_object(decode_body(raw, content_type, self._limits))
        mode = call.query.text("fieldValidation")
        if mode in ("Strict", "Warn") and content_type in ("", JSON_TYPE):
            texts = [f'duplicate field "{path}"' for path in duplicate_fields(raw)]
            if texts and mode == "Strict":
                raise BadRequest(
                    f'{call.info.kind} in version "{call.info.version}" cannot be handled as a '
                    f"{call.info.kind}: strict decoding error: {', '.join(texts)}"
                )
            call.warnings.extend(texts)
        _check_kind(call.info, body)
        return dict(body)

    def _written(self, call: ResourceCall, record: Record, status: int = 200) -> web.Response:
        return self._one(call, record, call.accepted(OBJECT_FORMS), status)

    async def _create(self, call: ResourceCall) -> web.Response:
        if call.info.namespaced and not call.path.namespace:
            raise errors.method_not_allowed(call.info, "create without a namespace in the path")
        call.accepted(OBJECT_FORMS)  # refuse before writing, not after
        options = call.write_options()
        body = await self._object_body(call)
        record = await self._service.create(call.info, call.path.namespace, body, options)
        return self._written(call, record, 201)

    async def _replace(self, call: ResourceCall) -> web.Response:
        call.accepted(OBJECT_FORMS)
        options = call.write_options()
        body = await self._object_body(call)
        status = 200
        if call.info.create_on_update_allowed and not call.path.subresource:
            existing = self._service.store.latest(call.info.name, call.key)
            status = 200 if existing is not None else 201
        record = await self._service.replace(
            call.info, call.key, body, options, subresource=call.path.subresource
        )
        return self._written(call, record, status)

    async def _patch_body(self, call: ResourceCall) -> tuple[PatchType, Any]:
        """The patch and its type; 415 for types that we do not have, so that clients fall back."""
        content_type = media_type(call.request)
        accepted = [
            kind for kind in PatchType if call.info.is_builtin or kind is not PatchType.STRATEGIC
        ]
        patch_type = next((kind for kind in accepted if kind.value == content_type), None)
        if patch_type is None:
            raise unsupported(content_type, (*(kind.value for kind in accepted), APPLY_TYPE))
        if call.query.is_given("force"):
            why = "may not be specified for non-apply patch"
            problem = errors.FieldProblem("force", errors.ProblemType.FORBIDDEN, why)
            raise errors.invalid_options("PatchOptions", problem)
        body = await read_body(call.request, self._limits)
        return patch_type, decode_json(body, self._limits)

    async def _patch(self, call: ResourceCall) -> web.Response:
        call.accepted(OBJECT_FORMS)
        if media_type(call.request) == APPLY_TYPE:
            return await self._apply(call)
        options = call.write_options()
        patch_type, patch = await self._patch_body(call)
        record = await self._service.patch(
            call.info,
            call.key,
            patch,
            options,
            patch_type=patch_type,
            subresource=call.path.subresource,
        )
        return self._written(call, record)

    async def _apply(self, call: ResourceCall) -> web.Response:
        """Server-side apply: 201 for what it creates."""
        options = replace(call.write_options(), force=call.query.flag("force"))
        if not options.field_manager:
            problem = errors.FieldProblem(
                "fieldManager", errors.ProblemType.REQUIRED, "is required for apply patch"
            )
            raise errors.invalid_options("PatchOptions", problem)
        raw = await read_body(call.request, self._limits)
        config = as_object(decode_config(raw, self._limits))
        texts = [] if options.field_validation == "Ignore" else keys_given_twice(raw)
        if texts and options.field_validation == "Strict":
            raise BadRequest(f"error strict decoding YAML: {', '.join(texts)}")
        call.warnings.extend(texts)
        record, is_new = await self._service.apply(
            call.info, call.key, dict(config), options, subresource=call.path.subresource
        )
        return self._written(call, record, 201 if is_new else 200)

    async def _put_scale(self, call: ResourceCall) -> web.Response:
        options = call.write_options()
        if call.request.method == "PUT":
            body: Any = await self._body(call)
        else:
            patch_type, patch = await self._patch_body(call)
            scale = self._service.scale_to_change(call.info, call.key)
            apply = apply_json_patch if patch_type is PatchType.JSON else apply_merge_patch
            body = apply(scale, patch)
        scale = await self._service.put_scale(call.info, call.key, as_object(body), options)
        return value_answer(scale, warnings=call.warnings)

    # Deletes ---------------------------------------------------------------------------------

    async def _delete_body(self, call: ResourceCall) -> Mapping[str, Any]:
        body = await read_body(call.request, self._limits)
        if not body:
            return {}
        options = as_object(decode_body(body, media_type(call.request), self._limits))
        if options.get("kind", "DeleteOptions") != "DeleteOptions":
            raise BadRequest(f"the body of a delete is DeleteOptions, got {options['kind']!r}")
        return options

    async def _delete(self, call: ResourceCall) -> web.Response:
        options = delete_options(call.query, await self._delete_body(call))
        call.accepted(OBJECT_FORMS)  # refuse before writing, not after
        options = replace(options, warn=call.warnings.append)
        result = await self._service.delete(call.info, call.key, options)
        record = result.record
        if not result.removed or call.info.plural == "pods":
            return self._written(call, record)
        details = {"name": record.name, "kind": call.info.plural, "uid": record.uid}
        if call.info.group:
            details["group"] = call.info.group
        return success_answer(200, details, warnings=call.warnings)

    async def _delete_collection(self, call: ResourceCall) -> web.Response:
        options = delete_options(call.query, await self._delete_body(call))
        selection = list_options(call.query)
        records = await self._service.delete_collection(
            call.info, call.path.namespace, selection, options
        )
        body = collection(call.info, records, str(self._service.store.version))
        return json_answer(body, warnings=call.warnings)

    async def _evict(self, call: ResourceCall) -> web.Response:
        body = as_object(await self._body(call))
        if body.get("kind", "Eviction") != "Eviction":
            raise BadRequest(f"the body of an eviction is an Eviction, got {body['kind']!r}")
        given = body.get("deleteOptions") or {}
        options = replace(delete_options(call.query, as_object(given)), warn=call.warnings.append)
        await self._service.evict(call.key, options)
        return success_answer(201, warnings=call.warnings)

    async def _review(self, request: web.BaseRequest, review: Review) -> web.Response:
        if request.method != "POST":
            raise MethodNotAllowed(
                f"{review.plural} can only be created",
                details=StatusDetails(group=review.group, kind=review.plural),
            )
        negotiate(request.headers.get("Accept", ""), REVIEW_FORMS)
        body = await read_body(request, self._limits)
        value = as_object(decode_body(body, media_type(request), self._limits))
        return value_answer(review.answer(value), 201)


def _check_kind(info: ResourceInfo, body: Mapping[str, Any]) -> None:
    """BadRequest when the body is of another kind, or a custom resource of no kind at all.

    Built-in kinds may leave out what the path says (apimachinery `pkg/runtime/serializer/json`
    takes the default of the type that it decodes into; a custom resource has no such type).
    """
    given = (body.get("apiVersion"), body.get("kind"))
    wanted = (info.api_version, info.kind)
    if given == wanted:
        return
    if info.is_builtin and all(g in (None, "", w) for g, w in zip(given, wanted, strict=True)):
        return
    version, kind = ("nothing" if value is None else repr(str(value)[:80]) for value in given)
    raise BadRequest(
        f"the body is of apiVersion {version} and kind {kind}, but "
        f"this path takes {info.api_version!r} and {info.kind!r}"
    )
