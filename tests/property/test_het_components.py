"""Components of heterogeneous jobs: whatever is written, every option is in exactly one of them."""

from __future__ import annotations

import shlex

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cli.script.header import SubmissionContext, parse_header
from fairlead.cli.script.het_components import Components, merged, separated
from fairlead.cli.script.sbatch_lines import COLON, HETJOB, OptionReader
from fairlead.cli.script.slurm_options import OPTIONS, Argument, OptionTreatment, Reach

_TAKEN = [each for each in OPTIONS if each.treatment is not OptionTreatment.REFUSED]
_WITH_VALUE = [each for each in _TAKEN if each.argument is Argument.REQUIRED]
_VALUES = st.one_of(
    st.sampled_from(("1", "2-4", "gpu:4", "8G", "a,b", "n[1-3]", "0", "x:y", "", ":", "hetjob")),
    st.text("a1:=-,[] '\"\\#\u0661", max_size=6),
)
_WORDS = st.one_of(
    st.tuples(st.sampled_from([each.shown for each in OPTIONS]), _VALUES).map("=".join),
    st.sampled_from((*HETJOB, COLON, "--", "-", "-N", "-N2", "--hetjob", "hetjob=1")),
    _VALUES,
)
_LINES = st.lists(st.lists(_WORDS, max_size=4), max_size=6)


@settings(max_examples=60)
@given(_LINES, st.lists(_WORDS, max_size=8))
def test_whatever_is_written_is_read_or_refused(lines: list[list[str]], words: list[str]) -> None:
    text = "".join(f"#SBATCH {' '.join(line)}\n" for line in lines)
    header = parse_header(
        f"#!/bin/sh\n{text}true\n",
        file="t.sh",
        beside=SubmissionContext(options=tuple(separated(words))),
    )
    assert header.batch is not None
    assert all(each.message and each.help is not None for each in header.problems)


@settings(max_examples=60)
@given(st.lists(
    st.dictionaries(st.sampled_from([each.name for each in _WITH_VALUE]), st.integers(1, 9),
                    max_size=6), min_size=1, max_size=5,
), st.data())  # fmt: skip
def test_every_option_is_in_its_own_component_and_in_later_ones_by_its_reach_alone(
    asked: list[dict[str, int]], data: st.DataObject
) -> None:
    by_name = {each.name: each for each in _WITH_VALUE}
    reader, commands = OptionReader(), list[list[str]]()
    for place, options in enumerate(asked):
        if place:
            reader.read_line(data.draw(st.sampled_from(HETJOB)), f"t.sh:{place}")
        commands.append([])
        for name, value in options.items():
            word = f"--{name}={value}.{place}"
            if data.draw(st.booleans()):
                reader.read_line(shlex.quote(word), f"t.sh:{place}")
            else:
                commands[-1].append(word)
    words = [word for part in commands for word in (COLON, *part)][1:]
    reader.read_command(separated(words))
    assert reader.problems == []
    found: Components = merged(reader)
    assert len(found.options) == len(asked)
    for place, options in enumerate(found.options):
        for name, given_ in options.items():
            own = int(given_.value.partition(".")[2])
            assert name in asked[own]
            assert own == place or (own < place and by_name[name].reach is not Reach.COMPONENT), (
                f"--{name} of component {own} is in {place}"
            )
        missing = asked[place].keys() - options.keys()
        of_job = {Reach.JOB, Reach.FIRST}
        assert all(by_name[n].reach in of_job or n == "array" for n in missing)
        if place == 0:
            assert missing <= ({"array"} if len(asked) > 1 else set())
