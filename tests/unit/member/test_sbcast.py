"""sbcast: real members of one machine, and members that have a file system each."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from pathlib import Path

import pytest
from tests.unit.member.test_batch import run

from fairlead.member.file_copies import CopyToMembers, FilesFromFirst
from fairlead.member.gang_link import LinkLost, Message


def test_a_file_is_copied_whole_with_its_mode_and_into_a_directory(tmp_path: Path) -> None:
    data = os.urandom(700_000)
    (tmp_path / "tool").write_bytes(data)
    (tmp_path / "tool").chmod(0o750)
    os.utime(tmp_path / "tool", (1_000_000, 2_000_000))
    (tmp_path / "there").mkdir()
    script = (
        "sbcast -C tool copy && srun sh -c 'cmp tool copy && stat -c %a copy'\n"
        "sbcast --preserve --compress=lz4 tool there && stat -c '%a %Y' there/tool; ls -A there"
    )
    codes, lines, errors = run(tmp_path, script)
    assert (codes, errors) == ([0, 0], "")
    assert lines == ["750", "750", "750 2000000", "tool"]
    assert (tmp_path / "there/tool").read_bytes() == data
    assert list(tmp_path.glob(".sbcast-*")) == []


def test_what_is_there_is_replaced_only_by_force_and_mistakes_are_named(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("new\n")
    (tmp_path / "old").write_text("old\n")
    script = (
        "sbcast new old; echo code $?; cat old\nsbcast -f new old; echo code $?; cat old\n"
        "sbcast absent old; sbcast new nowhere/file; sbcast new; sbcast . x\n"
        "sbcast --send-libs new x; env -u FAIRLEAD_STEPS sbcast new x; echo last $?; sbcast -V"
    )
    codes, lines, errors = run(tmp_path, script)
    assert codes == [0, 0]
    assert lines == ["code 0", "code 1", "last 1", "new", "old", "slurm 25.05.0"]
    for said in (
        f"node 0: {tmp_path}/old exists; --force replaces it; node 1: ",
        "No such file or directory: 'absent'",
        f"{tmp_path}/nowhere/file cannot be written: No such file",
        "Need two file names, have 1 names",
        "Is a directory",
        "only the file itself is copied",
        "this is no batch script",
    ):
        assert said in errors
    assert list(tmp_path.glob(".sbcast-*")) == []


class Conversation:
    """What sbcast says, as a link that ends with it; and what it is answered."""

    def __init__(self, *said: Message) -> None:
        self.said = list(said)
        self.answers: list[Message] = []

    async def receive(self) -> Message:
        if not self.said:
            raise LinkLost
        return self.said.pop(0)

    async def send(self, message: Message) -> None:
        self.answers.append(message)


def copied(roots: list[Path], *said: Message) -> list[Message]:
    """Copy a file to members whose root directories these are; return what sbcast is answered."""
    conversation = Conversation(*said)

    async def copy() -> None:
        members: dict[int, FilesFromFirst] = {}

        async def answer(message: Message) -> None:
            copying.heard(message["member"], message["error"])

        def way_to(node: int, root: Path):  # a Send
            members[node] = FilesFromFirst(answer)

            async def send(message: Message) -> None:
                if "open" in message:
                    target = f"{root}/{message['open']['target']}"
                    message = {**message, "open": {**message["open"], "target": target}}
                await members[node].hear(message["copy"], message)

            return send

        copying = CopyToMembers(7, {node: way_to(node, root) for node, root in enumerate(roots)})
        asked = {"target": "file", "name": "x", "mode": 0o600, "replaces": False, "times": []}
        await copying.serve(conversation, asked)  # pyright: ignore[reportArgumentType] # a Link

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRLEAD_INDEX", "0")
        try:
            asyncio.run(copy())
        except LinkLost:
            conversation.answers.append({"lost": True})
    return conversation.answers


PIECES: tuple[Message, ...] = tuple({"data": b64encode(text).decode()} for text in (b"one", b"two"))


def test_all_members_have_the_file_or_none_has_any_of_it(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in "abc"]
    for root in roots:
        root.mkdir()
    assert copied(roots, *PIECES, {"end": True}) == [{"ready": 3}, {"copied": 3}]
    assert [(root / "file").read_text() for root in roots] == ["onetwo"] * 3
    (roots[0] / "file").unlink()
    [answer] = copied(roots[:2], *PIECES, {"end": True})
    assert answer["error"] == f"node 0: {roots[1]}/file exists; --force replaces it"
    assert list(roots[0].iterdir()) == []


def test_a_copy_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    assert copied([tmp_path], *PIECES) == [{"ready": 1}, {"lost": True}]
    [_, answer] = copied([tmp_path], {"data": "?"}, {"end": True})
    assert "file cannot be written: Only base64" in answer["error"]
    assert copied([tmp_path], {"who": "me"})[-1] == {"lost": True}
    assert list(tmp_path.iterdir()) == []
