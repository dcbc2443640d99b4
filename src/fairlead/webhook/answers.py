"""What the webhook answers to a request, from its path and body alone (no waiting, no I/O).

An answer depends on the body, and for jobs on the PriorityClasses that a mirror holds: never on a
request to the API or on our controllers. So it takes as long as it takes to decode the body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, assert_never

from fairlead.api.jobs.job_defaults import JobTerms
from fairlead.api.names import DEFAULTS, GANG_GATE, SUBMITTED_BY
from fairlead.api.resources import JOB_ARRAYS, JOBS, Resource
from fairlead.api.status import StatusCause
from fairlead.decide.admission.arrays import WORK_KINDS
from fairlead.decide.admission.cluster_kinds import judge_cluster_object
from fairlead.decide.admission.jobs import AdmissionContext, refusal_of
from fairlead.decide.admission.limits import member_of, submitter_to_set
from fairlead.decide.admission.pod_gates import (
    GateDecision,
    GateRules,
    OptIn,
    PodGateShape,
    judge_pod,
    map_operations,
    opt_in_of,
)
from fairlead.decide.admission.pod_teams import is_left_alone, judge_team
from fairlead.model.asks.priorities import PriorityTable
from fairlead.model.asks.teams import TeamTable
from fairlead.model.holdings.submitted import SubmittedTable
from fairlead.runtime.logs import SILENT, Logger
from fairlead.webhook import conversion_review, review
from fairlead.webhook.configuration import CLUSTER_KINDS, Path

JSON = "application/json"
TEXT = "text/plain"
#: Causes of a refusal that its log line names.
LOGGED_FIELDS_MAX = 10


class RequestOutcome(Enum):
    """How a request ended."""

    GATED = "gated"
    LEFT_ALONE = "left-alone"
    DEFAULTED = "defaulted"
    CONVERTED = "converted"
    ALLOWED = "allowed"
    REFUSED = "refused"
    MALFORMED = "malformed"
    TOO_LARGE = "too-large"
    OVERLOADED = "overloaded"
    TIMED_OUT = "timed-out"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP answer. Anything but 200 is a failed call, to which the failure policy applies."""

    outcome: RequestOutcome
    body: bytes
    status: int = 200

    @property
    def content_type(self) -> str:
        """JSON for what is meant for the API server, text for what only a person would read."""
        return JSON if self.status == 200 else TEXT


def failed(outcome: RequestOutcome, status: int, message: str) -> HttpAnswer:
    """Return the answer to what cannot be answered."""
    return HttpAnswer(outcome, f"{message}\n".encode(), status)


def path_of(text: str) -> Path:
    """Return which of our paths this is."""
    return _PATHS.get(text, Path.OTHER)


_PATHS = {path.value: path for path in Path if path is not Path.OTHER}


class AdmissionAnswers:
    """Answers requests about objects that are about to be stored.

    `classes` returns the PriorityClasses, None while they are not known: priorities are then left
    to the controllers; `teams` the same of the teams, `submitted` of the jobs that have not ended.
    `node_team` returns whose a node is; "" where that is not known. `terms` are what the settings
    of the cluster say of its jobs; None: nothing. Without `converts` there is no such path.
    """

    def __init__(
        self,
        rules: GateRules,
        *,
        classes: Callable[[], PriorityTable | None] = lambda: None,
        teams: Callable[[], TeamTable | None] = lambda: None,
        submitted: Callable[[], SubmittedTable | None] = lambda: None,
        node_team: Callable[[str], str] = lambda _: "",
        terms: JobTerms | None = None,
        converts: bool = False,
        log: Logger = SILENT,
    ) -> None:
        self._rules = rules
        self._converts = converts
        self._classes = classes
        self._teams = teams
        self._submitted = submitted
        self._node_team = node_team
        self._terms = terms or JobTerms()
        self._log = log

    def answer(self, path: Path, body: bytes) -> HttpAnswer:
        """Return the answer; never fails for what is in a body."""
        try:
            return self._method(path)(body)
        except review.BadReview as error:
            self._log.warning("Review not understood", path=path.value, error=str(error))
            return failed(RequestOutcome.MALFORMED, 400, str(error))

    def _method(self, path: Path) -> Callable[[bytes], HttpAnswer]:
        match path:
            case Path.PODS:
                return partial(self._pod, OptIn.NONE)
            case Path.PODS_OF_NAMESPACES:
                return partial(self._pod, OptIn.NAMESPACE)
            case Path.POD_TEAMS:
                return self._pod_team
            case Path.JOBS:
                return partial(self._work, JOBS)
            case Path.JOBS_OF_ADMINISTRATORS:
                return partial(self._work, JOBS, is_administrator=True)
            case Path.ARRAYS:
                return partial(self._work, JOB_ARRAYS)
            case Path.ARRAYS_OF_ADMINISTRATORS:
                return partial(self._work, JOB_ARRAYS, is_administrator=True)
            case Path.TEAMS | Path.NODE_POOLS | Path.FLEETS:
                return partial(self._cluster_object, CLUSTER_KINDS[path])
            case Path.JOB_DEFAULTS:
                return partial(self._defaults, JOBS)
            case Path.ARRAY_DEFAULTS:
                return partial(self._defaults, JOB_ARRAYS)
            case Path.CONVERT if self._converts:
                return self._convert
            case Path.OTHER | Path.CONVERT:
                return self._unknown
            case _:
                assert_never(path)

    def _pod(self, inherits: OptIn, body: bytes) -> HttpAnswer:
        """Gate a pod; `inherits` is how one opts in that says nothing itself."""
        asked = review.decode_pod(body)
        pod = asked.object or PodGateShape()
        own = opt_in_of(pod, {})
        opt_in = inherits if own is OptIn.NONE else own
        if asked.operation != "CREATE":  # the gates of a pod that exists can only be taken away
            return HttpAnswer(RequestOutcome.LEFT_ALONE, review.allow(asked.uid))
        space = asked.namespace or pod.metadata.namespace
        judged = judge_pod(pod, space, opt_in, self._rules)
        self._log.debug(
            "Judged pod", namespace=space, pod=pod.shown_name, ruling=judged.ruling.value,
            dry_run=bool(asked.dry_run),
        )  # fmt: skip
        is_gated = judged.ruling is GateDecision.GATED
        outcome = RequestOutcome.GATED if is_gated else RequestOutcome.LEFT_ALONE
        return HttpAnswer(outcome, review.allow(asked.uid, judged.patch, judged.warnings))

    def _pod_team(self, body: bytes) -> HttpAnswer:
        asked = review.decode_pod(body)
        pod, teams = asked.object or PodGateShape(), self._teams()
        space, old = asked.namespace or pod.metadata.namespace, asked.old_object
        is_new = asked.operation == "CREATE"
        waits = asked.operation == "UPDATE" and old is not None and not old.spec.node_name
        if not (is_new or waits) or teams is None:
            return HttpAnswer(RequestOutcome.LEFT_ALONE, review.allow(asked.uid))
        if is_left_alone(asked.user, space, teams, self._rules):
            return HttpAnswer(RequestOutcome.LEFT_ALONE, review.allow(asked.uid))
        own, node = pod.spec.tolerations or (), pod.spec.node_name or ""
        judged = judge_team(
            own, pod.metadata.labels or {}, teams,
            priority=pod.spec.priority or 0, namespace=space,
            is_gated=any(gate.name == GANG_GATE for gate in pod.spec.scheduling_gates or ()),
            before=None if is_new or old is None else old.spec.tolerations or (),
            node_team=self._node_team(node) if is_new and node else "",
        )  # fmt: skip
        if judged.refusal:
            self._log.info(
                "Refused pod", namespace=space, pod=pod.shown_name, why=judged.refusal,
                operation=asked.operation, dry_run=bool(asked.dry_run),
            )  # fmt: skip
            message = f'pods "{pod.shown_name}" is forbidden: {judged.refusal}'
            return HttpAnswer(RequestOutcome.REFUSED, review.forbid(asked.uid, message))
        patch = () if node else judged.patch(own)
        outcome = RequestOutcome.DEFAULTED if patch else RequestOutcome.LEFT_ALONE
        return HttpAnswer(outcome, review.allow(asked.uid, patch))

    def _defaults(self, resource: Resource[Any], body: bytes) -> HttpAnswer:
        asked = review.decode_object(body, resource.plural)
        if asked.operation not in ("CREATE", "UPDATE") or asked.object is None:
            return HttpAnswer(RequestOutcome.LEFT_ALONE, review.allow(asked.uid))
        old = asked.old_object if asked.operation == "UPDATE" else None
        own = self._rules.own_namespace
        fill, _ = WORK_KINDS[resource.name]
        context = AdmissionContext(
            self._classes(), self._teams(), member_of(asked.user, own),
            namespace=asked.namespace, terms=self._terms,
        )  # fmt: skip
        filled = fill(asked.object, old, context)
        if filled.causes:
            return self._validated(asked, filled.causes, resource.kind)
        user = submitter_to_set(asked.object, old, asked.user, own)
        notes = {SUBMITTED_BY: user, DEFAULTS: filled.note}
        patch = (
            *(
                {"op": "add", "path": f"/spec/{field}", "value": value}
                for field, value in filled.fields.items()
            ),
            *map_operations(
                "/metadata/annotations",
                asked.object.get("metadata", {}).get("annotations"),
                {key: value for key, value in notes.items() if value is not None},
            ),
        )
        outcome = RequestOutcome.DEFAULTED if patch else RequestOutcome.LEFT_ALONE
        return HttpAnswer(outcome, review.allow(asked.uid, patch))

    def _work(
        self, resource: Resource[Any], body: bytes, *, is_administrator: bool = False
    ) -> HttpAnswer:
        asked = review.decode_object(body, resource.plural)
        if asked.operation not in ("CREATE", "UPDATE") or asked.object is None:
            return HttpAnswer(RequestOutcome.ALLOWED, review.allow(asked.uid))
        old = asked.old_object if asked.operation == "UPDATE" else None
        teams, submitted = self._teams(), self._submitted()
        count = None if teams is None or submitted is None else partial(submitted.count, teams)
        _, judge = WORK_KINDS[resource.name]
        context = AdmissionContext(
            self._classes(), teams,
            replace(asked.user, is_administrator=True) if is_administrator else asked.user,
            namespace=asked.namespace, own_namespace=self._rules.own_namespace, count=count,
            terms=self._terms,
        )  # fmt: skip
        return self._validated(asked, judge(asked.object, old, context), resource.kind)

    def _cluster_object(self, resource: Resource[Any], body: bytes) -> HttpAnswer:
        asked = review.decode_object(body, resource.plural)
        if asked.operation not in ("CREATE", "UPDATE") or asked.object is None:
            return HttpAnswer(RequestOutcome.ALLOWED, review.allow(asked.uid))
        old = asked.old_object if asked.operation == "UPDATE" else None
        causes = judge_cluster_object(resource.name, asked.object, old)
        return self._validated(asked, causes, resource.kind)

    def _validated(
        self,
        asked: review.AdmissionRequest[dict[str, Any]],
        causes: Sequence[StatusCause],
        kind: str,
    ) -> HttpAnswer:
        if not causes:
            return HttpAnswer(RequestOutcome.ALLOWED, review.allow(asked.uid))
        message, details = refusal_of(asked.name, causes, kind)
        self._log.info(
            f"Refused {kind.lower()}", namespace=asked.namespace, job=asked.name,
            operation=asked.operation, dry_run=bool(asked.dry_run),
            fields=[cause.field for cause in causes[:LOGGED_FIELDS_MAX]], mistakes=len(causes),
        )  # fmt: skip
        return HttpAnswer(RequestOutcome.REFUSED, review.refuse(asked.uid, message, details))

    def _convert(self, body: bytes) -> HttpAnswer:
        answer, why = conversion_review.answer(body)
        if not why:
            return HttpAnswer(RequestOutcome.CONVERTED, answer)
        self._log.warning("Objects not converted", why=why)
        return HttpAnswer(RequestOutcome.REFUSED, answer)

    def _unknown(self, _body: bytes) -> HttpAnswer:
        known = (text for text, path in _PATHS.items() if self._converts or path != Path.CONVERT)
        paths = ", ".join(known)
        return failed(RequestOutcome.MALFORMED, 404, f"no such path; accepted: {paths}")
