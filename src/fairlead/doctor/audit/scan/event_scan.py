"""Cuts a line of an audit log into the spans that the analysis needs, compiled by numba.

Accepted are the events that kube-apiserver writes, with keys in any order, each key once, and
fields of their usual types. Everything else gives -1, and the line goes to the typed decoder.
"""

from __future__ import annotations

import numpy as np

from fairlead.doctor.audit.scan.json_scan import (
    U,
    byte_at,
    inner,
    number_at,
    plain_end,
    put,
    signed,
    value_end,
    word,
    word_at,
)

#: Places in the spans: the first index of each text, its end is in the next place.
ID, URI, VERB, USER, AGENT, ADDRESS, NODE, POD, WAIT = range(0, 18, 2)
RECEIVED, ENDED, STAGE, CODE, SEEN = range(18, 23)
SPANS = 23
#: Behind them, what is kept from line to line: the two words of the latest minute, and its seconds.
DAY, MINUTE, BEGUN = range(SPANS, SPANS + 3)
SPANS_KEPT = SPANS + 3
COMPLETE, STARTED, ACCEPTED = 1, 2, 3

_PREFIX = b'{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"'
_PREFIX_WORDS = np.frombuffer(_PREFIX[:64], np.uint64)
_PREFIX_END = len(_PREFIX)
_PREFIX_LAST = word(_PREFIX[-13:-5])
_PREFIX_REST = word(_PREFIX[-8:])
_COMMA, _COLON, _QUOTE, _OPEN, _CLOSE = 44, 58, 34, 123, 125
_TWO, _SIX, _SEVEN = U(0xFFFF), U((1 << 48) - 1), U((1 << 56) - 1)

_ID_KEY = word(b'auditID"')
_STAGE_KEY, _VERB_KEY, _USER_KEY = word(b'stage":'), word(b'verb":'), word(b'user":')
_URI_KEY, _URI_KEY_END = word(b"requestU"), word(b'estURI":')
_AGENT_KEY, _AGENT_KEY_END = word(b"userAgen"), word(b'rAgent":')
_SOURCES_KEY, _SOURCES_KEY_END = word(b"sourceIP"), word(b'rceIPs":')
_STATUS_KEY, _STATUS_KEY_END = word(b"response"), word(b'Status":')
_RECEIVED_KEY, _RECEIVED_KEY_MIDDLE = word(b"requestR"), word(b"eceivedT")
_RECEIVED_KEY_END = word(b"imestamp")
_ENDED_KEY, _ENDED_KEY_END = word(b"stageTim"), word(b'estamp":')
_NOTES_KEY, _NOTES_KEY_END = word(b"annotati"), word(b'ations":')
_KEY_END = word(b'":')
_COMPLETE_WORDS = (word(b'"Respons'), word(b"eComplet"), word(b'e"'))
_STARTED_WORD, _STARTED_END = word(b"eStarted"), 17
_ACCEPTED_WORDS = (word(b'"Request'), word(b"Received"))
_NAME_KEY, _EXTRA_KEY, _CODE_KEY = word(b"username"), word(b'extra":'), word(b'code":')
_EXTRA_WORDS = (word(b"authenti"), word(b"cation.k"), word(b"ubernete"))
_NODE_WORDS = (word(b"s.io/nod"), word(b'e-name":'))
_POD_WORDS = (word(b"s.io/pod"), word(b'-name":'))
_WAIT_WORDS = np.frombuffer(b'apiserver.latency.k8s.io/apf-queue-wait"', np.uint64)
_WAIT_KEY_END = 41


@inner
def _text_end(at: int) -> int:
    """Return the index of the closing quote of a string without escapes at `at`; -1."""
    if byte_at(at) != _QUOTE:
        return -1
    end = plain_end(at + 1)
    return end if byte_at(end) == _QUOTE else -1


@inner
def _uri_end(at: int) -> int:
    """Return the same, where the escapes that Go uses for `&`, `<` and `>` may occur."""
    if byte_at(at) != _QUOTE:
        return -1
    end = plain_end(at + 1)
    while byte_at(end) == 92:
        kind, high, low = byte_at(end + 1), byte_at(end + 4), byte_at(end + 5)
        if kind != 117 or byte_at(end + 2) != 48 or byte_at(end + 3) != 48:
            return -1
        if not ((high == 50 and low == 54) or (high == 51 and (low == 99 or low == 101))):
            return -1
        end = plain_end(end + 6)
    return end if byte_at(end) == _QUOTE else -1


@inner
def _keep(at: int, spans: int, place: int) -> int:
    """Keep the text at `at` unless there is one; return the index behind it; -1."""
    end = _uri_end(at) if place == URI else _text_end(at)
    if end < 0 or number_at(spans + 8 * place):
        return -1
    put(spans + 8 * place, at + 1)
    put(spans + 8 * place + 8, end)
    return end + 1


@inner
def _texts(at: int, spans: int, place: int) -> int:
    """Keep the first text of a list, of addresses the last; return the index behind it; -1."""
    if byte_at(at) != 91 or number_at(spans + 8 * place):
        return -1
    if byte_at(at + 1) == 93:
        return at + 2
    while True:
        end = _text_end(at + 1)
        if end < 0:
            return -1
        if place == ADDRESS or not number_at(spans + 8 * place):
            put(spans + 8 * place, at + 2)
            put(spans + 8 * place + 8, end)
        at = end + 1
        if byte_at(at) == 93:
            return at + 1
        if byte_at(at) != _COMMA:
            return -1


@inner
def _once(spans: int, bit: int) -> bool:
    """Note a key; False when it was there already."""
    if number_at(spans + 8 * SEEN) & (1 << bit):
        return False
    put(spans + 8 * SEEN, number_at(spans + 8 * SEEN) | 1 << bit)
    return True


@inner
def _other(at: int) -> int:
    """Return the index behind a key without escapes and its value; -1."""
    end = plain_end(at)
    if byte_at(end) != _QUOTE or byte_at(end + 1) != _COLON:
        return -1
    return value_end(end + 2)


@inner
def _extra_key(at: int, spans: int) -> int:
    """Return the index behind a key of `user.extra` and its value; -1."""
    is_known = (
        word_at(at) == _EXTRA_WORDS[0] and word_at(at + 8) == _EXTRA_WORDS[1]
        and word_at(at + 16) == _EXTRA_WORDS[2]
    )  # fmt: skip
    if is_known and word_at(at + 24) == _NODE_WORDS[0] and word_at(at + 32) == _NODE_WORDS[1]:
        return _texts(at + 40, spans, NODE) if _once(spans, 8) else -1
    if (
        is_known
        and word_at(at + 24) == _POD_WORDS[0]
        and word_at(at + 32) & _SEVEN == _POD_WORDS[1]
    ):
        return _texts(at + 39, spans, POD) if _once(spans, 9) else -1
    return _other(at)


@inner
def _status_key(at: int, spans: int) -> int:
    """Return the index behind a key of `responseStatus` and its value; -1."""
    if word_at(at) & _SIX != _CODE_KEY:
        return _other(at)
    at += 6
    first, code = at, 0
    while 48 <= byte_at(at) <= 57:
        code = code * 10 + byte_at(at) - 48
        at += 1
    if at == first or at > first + 9 or (byte_at(first) == 48 and at > first + 1):
        return -1
    put(spans + 8 * CODE, code)
    return at if _once(spans, 11) else -1


@inner
def _note_key(at: int, spans: int) -> int:
    """Return the index behind a key of `annotations` and its value; -1."""
    for number in range(5):
        if word_at(at + 8 * number) != _WAIT_WORDS[number]:
            return _other(at)
    if byte_at(at + 40) != _COLON:
        return -1
    return _keep(at + _WAIT_KEY_END, spans, WAIT)


_EXTRA, _STATUS, _NOTES = 1, 2, 3


@inner
def _nested_end(at: int, spans: int, kind: int) -> int:
    """Return the index behind an object of an event at `at`; -1."""
    if byte_at(at) != _OPEN:
        return -1
    if byte_at(at + 1) == _CLOSE:
        return at + 2
    while True:
        if byte_at(at + 1) != _QUOTE:
            return -1
        if kind == _EXTRA:
            at = _extra_key(at + 2, spans)
        elif kind == _STATUS:
            at = _status_key(at + 2, spans)
        else:
            at = _note_key(at + 2, spans)
        if at < 0 or byte_at(at) != _COMMA:
            return at + 1 if at >= 0 and byte_at(at) == _CLOSE else -1


@inner
def _user_key(at: int, spans: int) -> int:
    """Return the index behind a key of `user` and its value; -1."""
    if word_at(at) == _NAME_KEY and word_at(at + 8) & _TWO == _KEY_END:
        return _keep(at + 10, spans, USER)
    if word_at(at) & _SEVEN == _EXTRA_KEY:
        return _nested_end(at + 7, spans, _EXTRA) if _once(spans, 10) else -1
    return _other(at)


@inner
def _user_end(at: int, spans: int) -> int:
    """Return the index behind the object `user` at `at`; -1."""
    if byte_at(at) != _OPEN:
        return -1
    if byte_at(at + 1) == _CLOSE:
        return at + 2
    while True:
        if byte_at(at + 1) != _QUOTE:
            return -1
        at = _user_key(at + 2, spans)
        if at < 0 or byte_at(at) != _COMMA:
            return at + 1 if at >= 0 and byte_at(at) == _CLOSE else -1


@inner
def _stage_end(at: int, spans: int) -> int:
    """Note the stage; return the index behind it; -1 for one that is rare."""
    first, second = word_at(at), word_at(at + 8)
    if number_at(spans + 8 * STAGE):
        return -1
    if first == _COMPLETE_WORDS[0] and second == _COMPLETE_WORDS[1]:
        put(spans + 8 * STAGE, COMPLETE)
        return at + 18 if word_at(at + 16) & _TWO == _COMPLETE_WORDS[2] else -1
    if first == _COMPLETE_WORDS[0] and second == _STARTED_WORD:
        put(spans + 8 * STAGE, STARTED)
        return at + _STARTED_END if byte_at(at + 16) == _QUOTE else -1
    if first == _ACCEPTED_WORDS[0] and second == _ACCEPTED_WORDS[1]:
        put(spans + 8 * STAGE, ACCEPTED)
        return at + 17 if byte_at(at + 16) == _QUOTE else -1
    return -1


@inner
def _day(year: int, month: int, day: int) -> int:
    """Return the day since 1970; 0 for a date that does not exist (Hinnant's algorithm)."""
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    length = 30 + (month + month // 8) % 2
    if month == 2:
        length = 29 if is_leap else 28
    if year < 1 or month < 1 or month > 12 or day < 1 or day > length:
        return 0
    if month <= 2:
        year -= 1
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@inner
def _digits(at: int, count: int) -> int:
    """Return the number of so many digits; a negative number when one is none."""
    value = 0
    for index in range(at, at + count):
        digit = byte_at(index) - 48
        if digit < 0 or digit > 9:
            return -1_000_000
        value = value * 10 + digit
    return value


@inner
def _minute(at: int) -> int:
    """Return the seconds since 1970 of the minute in the time at `at`; -1 for a wrong form."""
    if byte_at(at + 5) != 45 or byte_at(at + 8) != 45 or (
        byte_at(at + 11) != 84 or byte_at(at + 14) != 58
    ):  # fmt: skip
        return -1
    year = _digits(at + 1, 2) * 100 + _digits(at + 3, 2)
    month, day = _digits(at + 6, 2), _digits(at + 9, 2)
    hour, minute = _digits(at + 12, 2), _digits(at + 15, 2)
    if year < 0 or month < 0 or day < 0 or hour < 0 or minute < 0:
        return -1
    return _day(year, month, day) * 86_400 + hour * 3600 + minute * 60


@inner
def _time_end(at: int, spans: int, place: int) -> int:
    """Note a time as microseconds since 1970; return the index behind it; -1.

    The form is kube-apiserver's, `"2026-11-21T10:00:00.000000Z"`. The time is kept plus 1.
    """
    if (
        byte_at(at) != _QUOTE or byte_at(at + 17) != 58 or byte_at(at + 20) != 46
        or byte_at(at + 27) != 90 or byte_at(at + 28) != _QUOTE or number_at(spans + 8 * place)
    ):  # fmt: skip
        return -1
    day, minute = signed(word_at(at + 1)), signed(word_at(at + 9))
    if not day or day != number_at(spans + 8 * DAY) or minute != number_at(spans + 8 * MINUTE):
        begun = _minute(at)
        if begun < 0:
            return -1
        put(spans + 8 * DAY, day)
        put(spans + 8 * MINUTE, minute)
        put(spans + 8 * BEGUN, begun)
    second, fraction = _digits(at + 18, 2), _digits(at + 21, 6)
    if second < 0 or fraction < 0:
        return -1
    seconds = number_at(spans + 8 * BEGUN) + second
    put(spans + 8 * place, seconds * 1_000_000 + fraction + 1)
    return at + 29


@inner
def _event_key(at: int, spans: int) -> int:
    """Return the index behind a key of an event and its value; -1."""
    key = word_at(at)
    if key == _ID_KEY:
        return _keep(at + 9, spans, ID) if byte_at(at + 8) == _COLON else -1
    if key & _SEVEN == _STAGE_KEY:
        return _stage_end(at + 7, spans)
    if key == _URI_KEY and word_at(at + 4) == _URI_KEY_END:
        return _keep(at + 12, spans, URI)
    if key & _SIX == _VERB_KEY:
        return _keep(at + 6, spans, VERB)
    if key & _SIX == _USER_KEY:
        return _user_end(at + 6, spans) if _once(spans, 0) else -1
    if key == _SOURCES_KEY and word_at(at + 3) == _SOURCES_KEY_END:
        return _texts(at + 11, spans, ADDRESS) if _once(spans, 1) else -1
    if key == _AGENT_KEY and word_at(at + 3) == _AGENT_KEY_END:
        return _keep(at + 11, spans, AGENT)
    if key == _STATUS_KEY and word_at(at + 8) == _STATUS_KEY_END:
        return _nested_end(at + 16, spans, _STATUS) if _once(spans, 2) else -1
    if (
        key == _RECEIVED_KEY and word_at(at + 8) == _RECEIVED_KEY_MIDDLE
        and word_at(at + 16) == _RECEIVED_KEY_END and word_at(at + 24) & _TWO == _KEY_END
    ):  # fmt: skip
        return _time_end(at + 26, spans, RECEIVED)
    if key == _ENDED_KEY and word_at(at + 8) == _ENDED_KEY_END:
        return _time_end(at + 16, spans, ENDED)
    if key == _NOTES_KEY and word_at(at + 5) == _NOTES_KEY_END:
        return _nested_end(at + 13, spans, _NOTES) if _once(spans, 3) else -1
    return _other(at)


@inner
def scan_event(at: int, spans: int) -> int:
    """Cut the line at `at` into spans; return the index of its line feed; -1 for the decoder."""
    for place in range(SPANS):
        put(spans + 8 * place, 0)
    if byte_at(at) != _OPEN:
        return -1
    is_usual = True
    for number in range(8):
        is_usual &= word_at(at + 8 * number) == _PREFIX_WORDS[number]
    if is_usual and word_at(at + _PREFIX_END - 8) == _PREFIX_REST and (
        word_at(at + _PREFIX_END - 13) == _PREFIX_LAST
    ):  # fmt: skip
        at = _keep(at + _PREFIX_END - 1, spans, ID)
    elif byte_at(at + 1) == _QUOTE:
        at = _event_key(at + 2, spans)
    else:
        return -1
    while at >= 0 and byte_at(at) == _COMMA:
        if byte_at(at + 1) != _QUOTE:
            return -1
        at = _event_key(at + 2, spans)
    if at < 0 or byte_at(at) != _CLOSE or byte_at(at + 1) != 10:
        return -1
    return at + 1
