"""Lines of a watch, as real servers write them."""

from __future__ import annotations

import pytest

from fairlead.api.resources import PODS
from fairlead.api.status import Expired, InternalError
from fairlead.kube.decoding import Decoders
from fairlead.kube.protocol import LineSplitter
from fairlead.runtime.client import EventType, WatchEvent


def event(line: bytes) -> WatchEvent[object]:
    return Decoders(PODS).event(line)


def test_a_bookmark_is_an_empty_object_and_no_valid_one() -> None:
    """As kube-apiserver 1.36 sends it for pods."""
    line = (
        b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{'
        b'"resourceVersion":"2187","creationTimestamp":null},"spec":{"containers":null},"status":{}}}'
    )
    assert event(line) == WatchEvent(EventType.BOOKMARK, None, "2187")


def test_a_pod_that_cannot_be_read_is_no_bookmark() -> None:
    line = (
        b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"},"spec":{"containers":null}}}'
    )
    with pytest.raises(InternalError, match="cannot be decoded"):
        event(line)


def test_a_line_has_a_limit_and_a_stream_of_lines_has_none() -> None:
    splitter = LineSplitter(10)
    for _ in range(5):
        assert splitter.feed(b"12345678\n1234") == [b"12345678"]
        assert splitter.feed(b"5678\n") == [b"12345678"]
    splitter.feed(b"1234567890")
    with pytest.raises(InternalError, match="longer than 10 bytes"):
        splitter.feed(b"1")


def test_an_error_line_is_raised() -> None:
    line = (
        b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"x"}}'
    )
    with pytest.raises(Expired):
        event(line)
