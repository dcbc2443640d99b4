"""What a notice says: plain facts of the job, and the forms in which they are sent (pure).

Free text, which may be anything, goes to URLs alone, where the author of the job receives it. Mail
may go to other people, so it has names and words of closed sets only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.notify import NoticeEvent, NoticeForm, NoticeRecord, Notify
from fairlead.api.meta import find_condition
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.words import duration, plural

MESSAGE_MAX = 300
_SLACK_HOSTS = ("hooks.slack.com", "hooks.slack-gov.com")
#: Of incoming webhooks, and of the workflows that have followed them.
_TEAMS_HOSTS = (".webhook.office.com", ".logic.azure.com", ".api.powerplatform.com")
#: What starts a mention or a link in Slack's text; docs.slack.dev, "Formatting message text".
_SLACK_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


@dataclass(frozen=True, slots=True)
class Letter:
    """One notice. `id` is the same in all tries, so that a receiver can drop a repeated one."""

    id: str
    event: NoticeEvent
    at: str
    namespace: str
    name: str
    uid: str
    number: int
    attempt: int
    state: str
    reason: str
    message: str
    members: int
    run_seconds: int | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A letter on its way: to a target whose URL, and whose key, were read from the Secret."""

    target: Notify
    letter: Letter
    url: str = field(default="", repr=False)
    signing_key: str = field(default="", repr=False)


def letter_of(job: Job, record: NoticeRecord, now: float) -> Letter:
    """Return the letter of a notice, with the facts of the job as they are now."""
    status, metadata = job.status, job.metadata
    attempts = {each.number: each for each in status.attempts}
    attempt = attempts.get(record.attempt)
    condition = find_condition(status.conditions, names.FAILED)
    reason, message = "", ""
    is_end = record.event in (NoticeEvent.END, NoticeEvent.FAIL)
    if record.event is NoticeEvent.IDLE:
        reason, message = "Idle", "" if status.idle is None else status.idle.message
    elif attempt is not None and (not is_end or attempt.cause is not None):
        reason, message = attempt.reason, attempt.message
    elif is_end and condition is not None and condition.status == "True":
        reason, message = condition.reason, condition.message
    seconds: int | None = None
    if status.started_at and record.event is not NoticeEvent.START:
        ended = parse_time(status.finished_at) if status.finished_at else now
        seconds = max(0, int(ended - parse_time(status.started_at)))
    return Letter(
        f"{metadata.uid}-{record.target}-{record.event.value.lower()}-{record.attempt}",
        record.event, format_time(now), metadata.namespace, metadata.name, metadata.uid,
        status.number, record.attempt, status.state, reason, _one_line(message),
        job.member_count, seconds,
    )  # fmt: skip


def headline(letter: Letter) -> str:
    """Return the notice in one sentence, of names and closed words."""
    job = f"Job {letter.namespace}/{letter.name}"
    match letter.event:
        case NoticeEvent.START:
            return f"{job} has started with {plural(letter.members, 'member')}"
        case NoticeEvent.PREEMPT:
            return f"{job} was preempted in attempt {letter.attempt}"
        case NoticeEvent.IDLE:
            return f"{job} uses almost nothing of what it holds"
        case NoticeEvent.FAIL:
            return f"{job} has failed: {letter.reason}{_after(letter)}"
        case NoticeEvent.END:
            return f"{job} has ended: {letter.state}{_after(letter)}"
        case _:
            assert_never(letter.event)


@dataclass(frozen=True, slots=True)
class Post:
    """What is posted to a URL: made for its host, and signed where there is a key."""

    id: str
    url: str = field(repr=False)
    body_for: Callable[[str], bytes] = field(repr=False)
    signing_key: str = field(default="", repr=False)


def post_of(delivery: Delivery) -> Post:
    """Return what is posted for a delivery that has a URL."""
    letter, target = delivery.letter, delivery.target
    return Post(
        letter.id, delivery.url, lambda host: body_of(letter, form_of(target.form, host)),
        delivery.signing_key,
    )  # fmt: skip


def form_of(form: NoticeForm | None, host: str) -> NoticeForm:
    """Return the form of what is posted to a host: `form`, or that of its kind."""
    if form is not None:
        return form
    host = host.lower().rstrip(".")
    if host in _SLACK_HOSTS:
        return NoticeForm.SLACK
    return NoticeForm.TEAMS if host.endswith(_TEAMS_HOSTS) else NoticeForm.JSON


def body_of(letter: Letter, form: NoticeForm) -> bytes:
    """Return what is posted, as JSON."""
    if form is NoticeForm.JSON:
        return json_body(letter)
    return text_body(headline(letter), letter.message, form)


def text_body(title: str, text: str, form: NoticeForm) -> bytes:
    """Return a title and a line of text as a chat takes it; markup in them is inert."""
    match form:
        case NoticeForm.JSON:
            return msgspec.json.encode({"title": title, "text": text})
        case NoticeForm.SLACK:
            lines = f"{title}\n{text}".strip()
            return msgspec.json.encode({"text": lines.translate(_SLACK_ESCAPES)})
        case NoticeForm.TEAMS:
            return msgspec.json.encode(_teams(title, text))
        case _:
            assert_never(form)


def json_body(letter: Letter) -> bytes:
    """Return the letter as JSON, as receivers that verify its signature get it."""
    job: dict[str, Any] = {
        "namespace": letter.namespace, "name": letter.name, "uid": letter.uid,
        "number": letter.number, "attempt": letter.attempt, "state": letter.state,
        "reason": letter.reason, "message": letter.message, "members": letter.members,
        "runSeconds": letter.run_seconds,
    }  # fmt: skip
    body = {
        "id": letter.id, "type": f"job.{letter.event.value.lower()}", "timestamp": letter.at,
        "text": headline(letter), "job": job,
    }  # fmt: skip
    return msgspec.json.encode(body)


def mail_text(letter: Letter) -> str:
    """Return the body of a mail: no text that the author of the job has written."""
    lines = [
        f"{headline(letter)}.", "",
        f"Job:      {letter.name} (number {letter.number})",
        f"Namespace: {letter.namespace}",
        f"State:    {letter.state}",
        f"Attempt:  {letter.attempt}",
        f"At:       {letter.at}", "",
        f"fairlead why {letter.name} --namespace {letter.namespace}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def environment(letter: Letter) -> dict[str, str]:
    """Return the variables of a command; the letter itself is on its standard input."""
    return {
        "FAIRLEAD_NOTICE_ID": letter.id,
        "FAIRLEAD_NOTICE_EVENT": letter.event.value.lower(),
        "FAIRLEAD_NOTICE_TEXT": headline(letter),
        "FAIRLEAD_JOB": letter.name,
        "FAIRLEAD_NAMESPACE": letter.namespace,
        "FAIRLEAD_JOB_STATE": letter.state,
    }


def _after(letter: Letter) -> str:
    return "" if letter.run_seconds is None else f", after {duration(letter.run_seconds)}"


def _teams(title: str, text: str) -> dict[str, Any]:
    """Return an adaptive card of runs of text, in which no markdown is read.

    learn.microsoft.com, "Create incoming webhooks"; adaptivecards.io, RichTextBlock and TextRun.
    """
    runs = [{"type": "TextRun", "text": title, "weight": "Bolder"}]
    blocks = [{"type": "RichTextBlock", "inlines": runs}]
    if text:
        line = [{"type": "TextRun", "text": text}]
        blocks.append({"type": "RichTextBlock", "inlines": line})
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard",
        "version": "1.2", "body": blocks,
    }  # fmt: skip
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [attachment]}


def _one_line(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)[:MESSAGE_MAX].strip()
