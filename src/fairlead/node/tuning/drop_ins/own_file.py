"""A file of the agent's own in a directory of which a daemon reads all files.

Its first line says that the agent wrote it, and at which boot; a second one may have a note. A
content that did no good is kept beside it under a name that no daemon reads, so that it is not
tried again; so is the one before it, which comes back in its place. Each change is one rename or
one unlink: a process that is killed at any line leaves the old file or the new one, and the file
itself is the record.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.node.files import read_file, replace_file
from fairlead.node.running.host import Host

_BYTES_MAX = 64 << 10
_HEAD = "# By the agent of Fairlead, for its tuning profile. Boot: "
_NOTE = "# Note: "


@dataclass(frozen=True, slots=True)
class OwnText:
    """What a file has: its body without white space around it, the boot and the note."""

    body: str = ""
    boot: str = ""
    note: str = ""
    is_there: bool = False


@dataclass(frozen=True, slots=True)
class OwnFile:
    """The file, the one beside it with what is refused, and the one with what it had earlier."""

    host: Host
    directory: str
    name: str

    @property
    def refused_name(self) -> str:
        """The name of what is refused: it ends in none that a daemon reads."""
        return f"{self.name}.refused"

    @property
    def earlier_name(self) -> str:
        """The name of what the file had before it was last written."""
        return f"{self.name}.earlier"

    def read(self) -> OwnText:
        """Return what the file has; OSError, also where it is a link or no regular file."""
        return self._text(self.name)

    def refused(self) -> OwnText:
        """Return what is refused, with the reason as its note; OSError."""
        return self._text(self.refused_name)

    def earlier(self) -> str:
        """Return the body that comes back when the present one is taken back; OSError."""
        body = self._text(self.earlier_name).body
        return "" if body == self.read().body else body

    def write(self, body: str, *, note: str = "") -> None:
        """Replace the file, durably, and keep what it had; OSError."""
        if self.read().body != body:
            self._put(self.earlier_name, self.raw() or b"")
        self._put(self.name, self._data(body, note))

    def refuse(self, body: str, why: str) -> None:
        """Keep a content as refused; OSError."""
        self._put(self.refused_name, self._data(body, why))

    def raw(self) -> bytes | None:
        """Return all of the file, None where there is none; OSError."""
        try:
            return read_file(self.host.path(self.directory, self.name), _BYTES_MAX)
        except FileNotFoundError:
            return None

    def put_back(self, raw: bytes | None) -> None:
        """Make the file what `raw` returned earlier; OSError."""
        if raw is None:
            self.host.path(self.directory, self.name).unlink(missing_ok=True)
        else:
            self._put(self.name, raw)

    def take_back(self, why: str = "") -> bool:
        """Keep the file as refused and make it what it was earlier, none where it was none.

        False where there is none. OSError.
        """
        text, earlier = self.read(), self.earlier()
        if not text.is_there:
            return False
        self.refuse(text.body, why)
        if earlier:
            data = read_file(self.host.path(self.directory, self.earlier_name), _BYTES_MAX)
            self._put(self.name, data)
        else:
            self.put_back(None)
        return True

    def remove(self) -> bool:
        """Remove the file, what is refused and what was earlier; False: none was there. OSError."""
        names = (self.name, self.refused_name, self.earlier_name)
        there = [path for name in names if (path := self.host.path(self.directory, name)).is_file()]
        for path in there:
            path.unlink(missing_ok=True)
        return bool(there)

    def _text(self, name: str) -> OwnText:
        try:
            data = read_file(self.host.path(self.directory, name), _BYTES_MAX)
        except FileNotFoundError:
            return OwnText()
        head, _, rest = data.decode("utf-8", "replace").partition("\n")
        if not head.startswith(_HEAD):
            return OwnText(f"{head}\n{rest}".strip(), is_there=True)
        first, _, after = rest.partition("\n")
        note = first.removeprefix(_NOTE) if first.startswith(_NOTE) else ""
        return OwnText((after if note else rest).strip(), head.removeprefix(_HEAD), note, True)

    def _data(self, body: str, note: str) -> bytes:
        second = f"{_NOTE}{' '.join(note.split())}\n" if note else ""
        return f"{_HEAD}{self.host.boot_id()}\n{second}{body}\n".encode()

    def _put(self, name: str, data: bytes) -> None:
        path = self.host.path(self.directory, name)
        replace_file(path, data, mode=0o644, is_durable=True)
