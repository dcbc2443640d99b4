"""No text makes a parser fail otherwise than by the errors that it documents.

Texts that once did are among the target's own. `python -m tests.property.fuzz` reads many more.
"""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.fuzz_targets import TARGETS, Target

#: What parsers stumble over: separators, quotes, numbers at the edge, digits that are none.
TOKENS = (
    "", " ", "\0", "-", "[", "]", "{", "}", "(", ")", "0", "1", "9" * 30, "1e999",
    "-1", "nan", "inf", "=", ",", ":", ";", '"', "'", "\\", "\n", "\r\n", "\t", "%", "$",
    "&a ", "*a", "<<: ", "!!set ", "? ", "- ",
    "|", ">", "#", "@", "/", "..", "\u00b2", "\u0661", "\u2028", "\ufeff", "\U0001f600",
    "1d", "2026-01-01T00:00:00Z", "\x1b[31m", "[" * 200, "{" * 200, "a" * 5000,
)  # fmt: skip
_PIECES = st.one_of(st.sampled_from(TOKENS), st.text(max_size=4))
_FILE_PIECES = st.one_of(
    st.sampled_from(TOKENS),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=4),
)


@st.composite
def texts(draw: st.DrawFn, target: Target) -> str | bytes:
    """Draw a text from nothing, or one of the target's with parts cut out and put in."""
    seed = draw(st.sampled_from((*target.seeds, type(target.seeds[0])())))
    if isinstance(seed, bytes):
        binary = st.one_of(
            st.binary(max_size=6), st.sampled_from([each.encode() for each in TOKENS])
        )
        made = seed
        for _ in range(draw(st.integers(0, 4))):
            at, size = draw(st.integers(0, len(made))), draw(st.integers(0, 8))
            made = made[:at] + draw(binary) + made[at + size :]
        return made
    text = seed
    for _ in range(draw(st.integers(0, 4))):
        at, size = draw(st.integers(0, len(text))), draw(st.integers(0, 8))
        text = text[:at] + draw(_FILE_PIECES if target.is_file else _PIECES) + text[at + size :]
    return text


@pytest.mark.parametrize(
    "target", TARGETS, ids=lambda each: "-".join((each.name, *map(str, each.more[:1])))[:80]
)
def test_whatever_it_reads_a_parser_answers_or_raises_what_it_documents(target: Target) -> None:
    def read(given_: str | bytes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                target.call(given_)
            except target.errors:
                return

    for seed in target.seeds:
        read(seed)
    settings(max_examples=25)(given(texts(target))(read))()
