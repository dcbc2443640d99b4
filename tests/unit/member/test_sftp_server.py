"""The SFTP server of members: what packets it answers, and what ends it."""

from __future__ import annotations

import ast
import io
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.member import sftp_server
from fairlead.member.sftp_server import (
    HANDLES_MAX,
    PACKET_BYTES_MAX,
    READ_BYTES_MAX,
    BrokenPacketError,
    SftpServer,
    serve,
    text_of,
)

_NO_ATTRIBUTES = struct.pack(">I", 0)
_OPEN, _CLOSE, _READ, _WRITE, _LIST, _NAMES, _REMOVE, _RENAME, _EXTENDED = (
    3, 4, 5, 6, 11, 12, 13, 18, 200,
)  # fmt: skip


def asked(kind: int, *fields: bytes, number: int = 7) -> bytes:
    return struct.pack(">BI", kind, number) + b"".join(fields)


def told(server: SftpServer, kind: int, *fields: bytes) -> tuple[int, bytes]:
    """Return the type of an answer, and what follows the number of the request."""
    answer = server.answer(asked(kind, *fields))
    assert struct.unpack(">I", answer[1:5])[0] == 7
    return answer[0], answer[5:]


def code_of(server: SftpServer, kind: int, *fields: bytes) -> int:
    kind, body = told(server, kind, *fields)
    assert kind == 101
    return struct.unpack(">I", body[:4])[0]


def opened(server: SftpServer, path: Path, flags: int) -> bytes:
    kind, handle = told(
        server, _OPEN, text_of(os.fsencode(path)), struct.pack(">I", flags), _NO_ATTRIBUTES
    )
    assert kind == 102
    return handle


def test_a_file_is_written_and_read_in_pieces(tmp_path: Path) -> None:
    server, path, data = SftpServer(), tmp_path / "data", os.urandom(300_000)
    handle = opened(server, path, 0b11011)
    assert code_of(server, _WRITE, handle, struct.pack(">Q", 200_000), text_of(data[200_000:])) == 0
    assert code_of(server, _WRITE, handle, struct.pack(">Q", 0), text_of(data[:200_000])) == 0
    kind, body = told(server, _READ, handle, struct.pack(">QI", 5, 0xFFFFFFFF))
    assert (kind, body[4:]) == (103, data[5 : 5 + READ_BYTES_MAX])
    assert code_of(server, _READ, handle, struct.pack(">QI", 300_000, 10)) == 1
    assert code_of(server, _CLOSE, handle) == 0
    assert code_of(server, _CLOSE, handle) == 4
    assert path.read_bytes() == data


def test_a_directory_is_listed_to_its_end_and_a_name_is_not_replaced(tmp_path: Path) -> None:
    server = SftpServer()
    for number in range(150):
        (tmp_path / f"file-{number}").touch()
    _, handle = told(server, _LIST, text_of(os.fsencode(tmp_path)))
    count = 0
    while (answer := told(server, _NAMES, handle))[0] == 104:
        count += struct.unpack(">I", answer[1][:4])[0]
    assert count == 152
    names = [text_of(os.fsencode(tmp_path / name)) for name in ("file-1", "file-2")]
    assert code_of(server, _RENAME, *names) == 4
    assert code_of(server, _EXTENDED, text_of(b"posix-rename@openssh.com"), *names) == 0
    assert code_of(server, _REMOVE, names[0]) == 2
    assert code_of(server, _EXTENDED, text_of(b"unknown@x")) == 8
    assert code_of(server, _REMOVE, text_of(b"a\0b")) == 4


def test_handles_are_bounded_and_closed_at_the_end(tmp_path: Path) -> None:
    server, path = SftpServer(), tmp_path / "file"
    path.touch()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(HANDLES_MAX):
        opened(server, path, 1)
    refused = (text_of(os.fsencode(path)), struct.pack(">I", 1), _NO_ATTRIBUTES)
    assert code_of(server, _OPEN, *refused) == 4
    server.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    "stream", [b"\0\0\0\1", struct.pack(">I", PACKET_BYTES_MAX + 1), b"\0\0\0\0", b"\0\0",
               b"\0\0\0\5\5\0\0\0\1"],
)  # fmt: skip
def test_what_breaks_the_protocol_ends_it(stream: bytes) -> None:
    with pytest.raises(BrokenPacketError):
        serve(io.BytesIO(stream), io.BytesIO())


@given(st.binary(max_size=60), st.sampled_from([*range(3, 20), 200]))
def test_any_packet_has_an_answer_or_breaks_the_protocol(data: bytes, kind: int) -> None:
    """The first path is in no directory; links have theirs second, so none is made."""
    server = SftpServer()
    try:
        answer = server.answer(asked(kind, text_of(b"/nonexistent/" + data[:9]), data))
    except BrokenPacketError:
        return
    assert answer[0] in {101, 102, 103, 104, 105, 201}
    server.close()


def test_it_can_be_read_by_python_3_8_and_imports_nothing_of_ours() -> None:
    text = Path(str(sftp_server.__file__)).read_text()
    ast.parse(text, feature_version=(3, 8))
    assert "fairlead." not in "".join(line for line in text.splitlines() if "import" in line)
