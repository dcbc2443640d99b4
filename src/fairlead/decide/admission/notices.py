"""Which targets of notices a cluster refuses: when a job is made, and again before one is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from fairlead.api.causes import cause
from fairlead.api.jobs.job_defaults import NoticeTerms
from fairlead.api.jobs.notify import Notify
from fairlead.api.meta import Wire
from fairlead.api.status import StatusCause


class _Spec(Wire, frozen=True):
    notify: tuple[Notify, ...] = ()


def refused_target(target: Notify, terms: NoticeTerms) -> str | None:
    """Return why a target is not served; None where it is."""
    if not terms.is_enabled:
        return "this cluster sends no notices (setting notices.enabled)"
    if target.command and not terms.has_commands:
        return (
            "commands run on a cluster of one owner alone, that of fairlead up: here one would run "
            "in the controllers, with their rights; use a URL or mail"
        )
    if target.mail:
        if not terms.mail_domains:
            return "this cluster sends no mail (settings notices.smtpHost, notices.mailDomains)"
        domain = target.mail.rpartition("@")[2].lower()
        if domain not in terms.mail_domains:
            accepted = ", ".join(terms.mail_domains[:8])
            return f"mail is sent to addresses of these domains alone: {accepted}"
    return None


def notice_causes(
    new: Mapping[str, Any], old: Mapping[str, Any] | None, terms: NoticeTerms
) -> Iterator[StatusCause]:
    """Yield the targets of a new job that the cluster does not serve."""
    spec: Any = new.get("spec") or {}
    if old is not None or not spec.get("notify"):
        return
    try:
        targets = msgspec.convert(spec, _Spec).notify
    except msgspec.ValidationError:
        return  # what is wrong with it, the other rules say
    for i, target in enumerate(targets):
        if (why := refused_target(target, terms)) is not None:
            yield cause("Forbidden", f"spec.notify[{i}]", f"Forbidden: {why}")
