"""A job that is written here: a script or a manifest, what would become of it, and its submission.

The preview is a dry run of `fairlead submit`: all that is wrong at once, else what it asks for,
where and when it would start, and the objects that would be stored.
"""

from __future__ import annotations

import os
from pathlib import Path

from markupsafe import Markup

from fairlead.api.resources import JOBS
from fairlead.api.reviews import ResourceAttributes
from fairlead.cli.job_request.environment import LOCAL_ENVIRONMENT
from fairlead.cli.job_request.jobspec import Origin
from fairlead.web.pages.site import AskedPath, Site
from fairlead.web.render import Page
from fairlead.web.sources.drafts import FIELDS, MANIFEST, SCRIPT, DraftAnswer, JobDraft

_FIELD_MAX = 200
_NAMESPACES_MAX = 200


def draft_of(site: Site, given: AskedPath) -> JobDraft:
    """Return what a form says, or the address of an empty one."""
    text = next((value for name, value in given.query if name == "text"), "")
    text = text.replace("\r\n", "\n")  # as browsers send lines
    form = MANIFEST if given.text("form") == MANIFEST else SCRIPT
    values = ((each.flag, given.text(each.flag.value, _FIELD_MAX)) for each in FIELDS)
    givens = {flag: value for flag, value in values if value and form == SCRIPT}
    return JobDraft(text, form, given.text("namespace") or site.namespace, givens)


async def answered(site: Site, draft: JobDraft, *, stores: bool) -> DraftAnswer:
    """Return what would become of a draft, or what has become of it."""
    right = ResourceAttributes("create", JOBS.plural, JOBS.group, namespace=draft.namespace)
    if why_not := await site.questions.why_not(right):
        return DraftAnswer(problem=why_not)
    return await site.questions.draft(draft, _origin(site), stores=stores)


def _origin(site: Site) -> Origin:
    """Return from where it is submitted: the person's own machine, or a page of many users, of
    which nothing goes into a job.
    """
    if site.viewer:
        return Origin("/", site.user, {})
    known = {name: os.environ[name] for name in LOCAL_ENVIRONMENT if name in os.environ}
    return Origin(str(Path.home()), site.user, known, os.uname().nodename)


def draft_page(site: Site, draft: JobDraft, csrf: str, answer: DraftAnswer | None = None) -> Page:
    """Return the form, with what would become of a draft once that was asked."""
    is_refused = answer is not None and bool(answer.problem)
    hidden = {"form": draft.form, "namespace": draft.namespace}
    hidden |= {flag.value: value for flag, value in draft.givens.items()}
    spaces = {job.metadata.namespace for job in site.cluster.jobs.items()} | {site.namespace}
    values = {
        "draft": draft, "answer": answer, "csrf": csrf, "hidden": hidden,
        # As it is, not as terminals may show it: what is confirmed is what was written.
        "text": Markup.escape(draft.text),
        "fields": [(*each, draft.givens.get(each.flag, "")) for each in FIELDS],
        "namespaces": sorted(spaces)[:_NAMESPACES_MAX], "script": SCRIPT, "manifest": MANIFEST,
    }  # fmt: skip
    command = site.command(*draft.words, namespace=draft.namespace)
    status = 409 if is_refused else 200
    return Page("submit.html", "Submit a job", values, command, "jobs", status=status)
