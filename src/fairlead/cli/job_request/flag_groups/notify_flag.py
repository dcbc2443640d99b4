"""The values of `--notify`: its events and targets (pure)."""

from __future__ import annotations

import shlex

from msgspec.structs import replace

from fairlead.api.jobs.notify import (
    ARGUMENTS_MAX,
    DEFAULT_URL_KEY,
    MAIL_ADDRESS,
    NOTIFY_MAX,
    NOTIFY_SECRET,
    SECRET_KEY,
    NoticeEvent,
    NoticeForm,
    Notify,
)
from fairlead.api.validation.notify_rules import parse_url
from fairlead.cli.job_request.flag_groups.after_flag import Complain
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValue, FlagValues
from fairlead.input.suggest import nearest

_EVENTS = {each.value.lower(): each for each in NoticeEvent}
_FORMS = {"slack": NoticeForm.SLACK, "teams": NoticeForm.TEAMS, "json": NoticeForm.JSON}
_TARGETS = "a URL, a mail address, secret:KEY or command:LINE"


def parse_notify(givens: FlagValues, complain: Complain) -> tuple[Notify, ...]:
    """Return the targets, in the order given; one that is named twice gets the events of both."""
    found: dict[Notify, tuple[NoticeEvent, ...]] = {}
    values = givens.get(Flag.NOTIFY, ())
    if values and Flag.ARRAY in givens:
        complain(values[0], "--notify is for one job, and --array makes many",
                 help_="submit a job with --after any:ARRAY, and --notify")  # fmt: skip
        return ()
    for given in values:
        words, _, text = given.value.partition(":")
        events = _events(given, words, complain)
        target = _target(given, text, complain)
        if events and target is not None:
            found[target] = tuple(dict.fromkeys((*found.get(target, ()), *events)))
    if len(found) > NOTIFY_MAX:
        complain(values[-1], f"{len(found)} targets; a job may have {NOTIFY_MAX}")
    return tuple(replace(target, on=events) for target, events in found.items())


def _events(given: FlagValue, words: str, complain: Complain) -> tuple[NoticeEvent, ...]:
    events: list[NoticeEvent] = []
    for word in words.split(","):
        event = _EVENTS.get(word.strip().lower())
        if event is None:
            near = nearest(word, _EVENTS) or "end"
            complain(given, f"'{word}' must be start, end, fail, preempt or idle",
                     help_=f"--notify {near}:ada@example.com")  # fmt: skip
            return ()
        events.append(event)
    return tuple(events)


def _target(given: FlagValue, text: str, complain: Complain) -> Notify | None:
    """Return the target without its events; None for one that is wrong."""
    form, plus, rest = text.partition("+")
    is_form = bool(plus) and form in _FORMS and not MAIL_ADDRESS.fullmatch(text)
    chosen, text = (_FORMS[form], rest) if is_form else (None, text)
    kind, colon, rest = text.partition(":")
    if not text:
        return Notify((), url_key=DEFAULT_URL_KEY, form=chosen)
    if colon and kind == "secret":
        if not SECRET_KEY.fullmatch(rest):
            why = f"must be the key of a URL in the Secret {NOTIFY_SECRET}"
            complain(given, f"'{rest}' {why}", help_=f"--notify end:secret:{DEFAULT_URL_KEY}")
            return None
        return Notify((), url_key=rest, form=chosen)
    if colon and kind in ("https", "http"):
        if isinstance(problem := parse_url(text), str):
            complain(given, f"the URL {problem}")
            return None
        return Notify((), url=text, form=chosen)
    if chosen is not None:
        complain(given, f"'{form}+' is for a URL or secret:KEY")
        return None
    if colon and kind == "command":
        return _command(given, rest, complain)
    address = rest if colon and kind in ("mail", "mailto") else text
    if not MAIL_ADDRESS.fullmatch(address):
        complain(given, f"'{text}' must be {_TARGETS}", help_="--notify end:ada@example.com")
        return None
    return Notify((), mail=address)


def _command(given: FlagValue, line: str, complain: Complain) -> Notify | None:
    try:
        words = shlex.split(line)
    except ValueError as error:
        complain(given, f"'{line}' is not a command line: {error}")
        return None
    if not words or len(words) > ARGUMENTS_MAX:
        why = f"must be a program and at most {ARGUMENTS_MAX - 1} arguments"
        complain(given, f"'{line}' {why}", help_="--notify end:command:/usr/local/bin/notify")
        return None
    return Notify((), command=tuple(words))
