"""What would let a waiting job start, and where what it claims is, in words (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.api.jobs.job import Job
from fairlead.api.values.quantity import ATTACHED, CLAIMED
from fairlead.cli.views.words import amount_words
from fairlead.decide.answers.explanation import (
    VOLUMES_MAX,
    ClaimedPlace,
    ClaimHolder,
    Explanation,
    Suggestion,
    VolumePlace,
)
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.verdict import Verdict
from fairlead.decide.words import duration, fold_names, plural, resource_word

_FLAGS = {"count": "--nodes", "nvidia.com/gpu": "--gpus", "cpu": "--cpus", "memory": "--memory"}

_TO_COME = "no volume yet (it gets one where its first member runs)"


def volume_texts(places: Sequence[VolumePlace]) -> list[str]:
    """Return the claims of the job, their volumes, and which nodes reach these."""
    texts = [
        f"claim {each.claim}: {f'volume {each.volume}' if each.volume else _TO_COME}, "
        f"on nodes with {each.reach}"
        for each in places
    ]
    if len(texts) == VOLUMES_MAX:
        texts.append(f"these are the first {VOLUMES_MAX}; there may be more")
    return texts


def claimed_text(place: ClaimedPlace) -> str:
    """Return where devices of a kind, or volumes of a driver, can be had, and where now."""
    words = resource_word(place.resource)
    if not place.nodes:
        return f"{words}: on no node that it may use"
    text = f"{words}: on {plural(place.nodes, 'node')}, one more is free on "
    held = "".join(f"; {_holder_text(each)}" for each in place.holders)
    if not place.free_nodes:
        return f"{text}none{_listed(place.taken_on, place.nodes)}{held}"
    count = "all" if place.free_nodes == place.nodes else place.free_nodes
    return f"{text}{count}{_listed(place.free_on, place.free_nodes)}{held}"


def _holder_text(holder: ClaimHolder) -> str:
    """Return which claim has devices, how many, and which pods may use them."""
    users = fold_names(holder.pods) if holder.pods else "no pod"
    return f"ResourceClaim {'/'.join(holder.key)} has {holder.devices:,} (for {users})"


def _listed(names: Sequence[str], count: int) -> str:
    """Return the first of the nodes, in parentheses; "" where they are not shown."""
    more = f" and {count - len(names):,} more" if count > len(names) else ""
    return f" ({fold_names(names)}{more})" if names else ""


def change_lines(job: Job, explanation: Explanation) -> list[str]:
    """Return what would change it: what was tried and would start now, else where to look."""
    if explanation.suggestions:
        flags = [suggestion_flag(job, s) for s in explanation.suggestions]
        width = max(len(flag) for flag in flags)
        return ["", "  would change it", *(f"    {flag:<{width}}  {s.message}"
                for flag, s in zip(flags, explanation.suggestions, strict=True))]  # fmt: skip
    verdict = explanation.verdict
    help_ = _claims_next(verdict) or _NEXT.get(verdict.reason)
    if help_ is None:
        return []
    return ["", "  would change it", f"    {help_.format(name=job.metadata.name)}"]


def _claims_next(verdict: Verdict) -> str | None:
    """Return what helps where devices that claims ask for, or volumes of a driver, are short."""
    resource = str(verdict.facts.get("resource", ""))
    kind = next((each for each in (CLAIMED, ATTACHED) if resource.startswith(each)), None)
    return None if kind is None else _NEXT_OF_CLAIMS[kind, verdict.outcome is Outcome.IMPOSSIBLE]


#: By kind of row, and whether no node that is there would do, empty.
_NEXT_OF_CLAIMS = {
    (CLAIMED, False): "let pods that have such devices end, or add nodes with them: fairlead nodes",
    (CLAIMED, True): "ask for fewer devices, or for others; kubectl get resourceslices lists them",
    (ATTACHED, False): "let pods with such volumes end, or add nodes that attach more",
    (ATTACHED, True): "fewer volumes per member, or nodes that attach more: kubectl get csinodes",
}
_NEXT = {
    Reason.HELD: "fairlead release {name}",
    Reason.DEPENDENCY_CYCLE: "fairlead cancel {name}, or kubectl edit fj {name}",
    Reason.DEPENDENCY_FAILED: "fairlead cancel {name}, and submit it again after another job",
    Reason.NODES_UNAVAILABLE: "fairlead nodes shows which nodes are out, and why; fairlead node "
    "resume NODE ends a person's cordon",
    Reason.MAINTENANCE: "a time limit (--time) by which it ends before the maintenance begins",
    Reason.RESERVED_FOR_OTHERS: "a time limit (--time) by which it ends before the reservation "
    "begins",
    Reason.RESERVATION_ENDED: "submit it again with another reservation, or none: fairlead "
    "reservations",
    Reason.NO_SUCH_RESERVATION: "submit it again with another reservation, or none: fairlead "
    "reservations",
    Reason.CLAIM_MISSING: "create the claim; kubectl get pvc lists those there are",
    Reason.CLAIM_DELETED: "create the claim again once kubectl get pvc does not list it any more",
    Reason.CLAIM_LOST: "restore the volume; kubectl get pvc,pv shows what is left",
    Reason.CLAIM_UNBOUND: "kubectl describe pvc says what its volume waits for",
    Reason.NO_VOLUME: "create or free a volume; kubectl get pv lists them",
    Reason.CLAIM_FOR_ONE_POD: "volumeClaimTemplates, or a claim that is ReadWriteMany",
    Reason.CLAIM_IN_USE: "let the other one end: fairlead cancel, or kubectl delete pod",
    Reason.DEVICE_CLAIM_MISSING: "create it; kubectl get resourceclaimtemplates,resourceclaims "
    "lists those there are",
    Reason.DEVICE_CLASS_MISSING: "create the class, or name another one; kubectl get deviceclasses "
    "lists those there are",
    Reason.DEVICE_CLAIM_SHARED: "start one pod that uses the claim, and the job follows it; let a "
    "job that comes first end; or a ResourceClaimTemplate, by which each member has a claim",
    Reason.DEVICE_CLAIM_UNSUPPORTED: "submit it again with a claim without that part: kubectl "
    "explain resourceclaim.spec.devices",
    Reason.VOLUMES_IN_THE_WAY: "let a job that holds these nodes end, or add nodes there",
    Reason.VOLUMES_OUT_OF_REACH: "add nodes there, or let the job name another claim",
    Reason.TOO_FEW_IN_REACH: "add nodes there, or ask for fewer members",
    Reason.NO_MATCHING_NODE: "fairlead nodes -o wide shows what there is",
    Reason.NO_NODE_SHAPE_FITS: "ask for less per member; see fairlead nodes -o wide",
    Reason.NO_SUCH_TOPOLOGY: "name a level or a node label: kubectl get nodes --show-labels",
    Reason.EXCEEDS_CLUSTER: "ask for fewer members, or add nodes",
}


def suggestion_flag(job: Job, suggestion: Suggestion) -> str:
    """Return the flag of `fairlead submit` for a suggestion; for several roles the role's name."""
    if isinstance(suggestion.after, str):
        return f"--{suggestion.change} {suggestion.after}"
    if suggestion.change == "time":
        return f"--time {duration(suggestion.after)}"
    flag = _FLAGS.get(suggestion.change)
    if flag is None or len(job.spec.roles) != 1:
        return f"role {suggestion.role}"
    if suggestion.change in ("count", "nvidia.com/gpu"):
        is_least = suggestion.change == "count" and job.is_elastic
        return f"{flag} {suggestion.after}" + (f"-{job.spec.roles[0].count}" if is_least else "")
    return f"{flag} {amount_words(suggestion.change, suggestion.after).split()[0]}"
