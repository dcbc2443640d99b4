"""Typed records in YAML files: read as a whole, refused with every mistake and its place.

A `Section` (`api/values/sections.py`) is a group of fields; a file may leave out those that have a
default. Fields may be sections, and lists of sections. Values of the installation, settings of the
controllers, and profiles of virtual nodes are read this way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta

from fairlead.api.values.sections import Section
from fairlead.input.errors import CliError, Code, Problem
from fairlead.input.suggest import nearest
from fairlead.input.yamlmarks import (
    BYTES_MAX,
    YamlMark,
    YamlTooLarge,
    YamlValue,
    locate,
    read_documents,
    to_plain,
)

Tree = dict[str, Any]
S = TypeVar("S", bound=Section)


def merged(default: Any, given: Any) -> Any:
    """Return what Helm makes of both: mappings are joined, null takes a default's entry away."""
    if not isinstance(default, dict) or not isinstance(given, dict):
        return given
    joined: Tree = dict(cast("Tree", default))
    for key, value in cast("Tree", given).items():
        if value is None:
            joined.pop(key, None)
        else:
            joined[key] = merged(joined.get(key), value)
    return joined


def plain(values: Section) -> Tree:
    """Return the values as they stand in a file."""
    tree: Tree = msgspec.json.decode(msgspec.json.encode(values))  # lists, not tuples
    return tree


def no_conflicts(_values: Section) -> Iterable[tuple[str, str]]:
    """Return nothing: the types say all."""
    return ()


def load(
    path: Path, type_: type[S], conflicts: Callable[[S], Iterable[tuple[str, str]]] = no_conflicts
) -> S:
    """Read a file; CliError with everything that is wrong, in the order of the lines.

    `conflicts` yields (path, message) of fields that do not go together.
    """
    return parse(read_text(path), type_, conflicts, source=str(path))


def read_text(path: Path) -> str:
    """Return the text of a file; CliError when it has none, or more than BYTES_MAX."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            message = f"'{path}' is larger than {BYTES_MAX >> 20} MiB"
            raise CliError(Problem(Code.MANIFEST_TOO_LARGE, message))
        return data.decode("utf-8-sig")
    except OSError as error:
        message = f"'{path}' cannot be read: {error.strerror}"
        raise CliError(Problem(Code.MANIFEST_UNREADABLE, message)) from error
    except UnicodeDecodeError as error:
        message = f"'{path}': byte {error.start} is not UTF-8"
        raise CliError(Problem(Code.MANIFEST_UNREADABLE, message)) from error


def parse(
    text: str,
    type_: type[S],
    conflicts: Callable[[S], Iterable[tuple[str, str]]] = no_conflicts,
    *,
    source: str,
) -> S:
    """Read the text of a file, which problems call `source`; see `load`."""
    reader = SectionReader(source)
    documents = reader.documents(text)
    for extra in documents[1:]:
        reader.add(Code.MANIFEST_SYNTAX, extra.mark, "", "the file is one document, not several")
    if documents or not reader.problems:
        empty = YamlValue(YamlMark(1, 1), mapping={})
        values = reader.values(documents[0] if documents else empty, type_)
        for field_path, message in conflicts(values) if values is not None else ():
            mark = locate(documents[0], field_path)[0] if documents else YamlMark(1, 1)
            reader.add(Code.BAD_FIELD, mark, field_path, message)
        if values is not None and not reader.problems:
            return values
    raise reader.error()


class SectionReader:
    """Walks a file along the types and collects what is wrong."""

    def __init__(self, file: str) -> None:
        self.problems: list[tuple[YamlMark, Problem]] = []
        self._file = file

    def add(self, code: Code, mark: YamlMark, path: str, message: str, *, help_: str = "") -> None:
        """Note one mistake."""
        where = f"{self._file}:{mark.line}:{mark.column}"
        help_lines = (help_,) if help_ else ()
        problem = Problem(code, message, where=where, field=path, help=help_lines)
        self.problems.append((mark, problem))

    def error(self) -> CliError:
        """Return all that was found, in the order of the lines; not for none."""
        return CliError([problem for _, problem in sorted(self.problems, key=lambda one: one[0])])

    def documents(self, text: str) -> list[YamlValue]:
        """Return the documents of a text; CliError when it is over a limit."""
        try:
            documents, mistakes = read_documents(text)
        except YamlTooLarge as error:
            problem = Problem(Code.MANIFEST_TOO_LARGE, f"'{self._file}': {error}")
            raise CliError(problem) from error
        for mistake in mistakes:
            code = Code.DUPLICATE_KEY if mistake.key else Code.MANIFEST_SYNTAX
            self.add(code, mistake.mark, mistake.key, mistake.message)
        return documents

    def values(self, document: YamlValue, type_: type[S]) -> S | None:
        """Return a document as its type; None when a field is not as the type says."""
        before = len(self.problems)
        read = self.section(document, type_, "")
        return None if len(self.problems) > before else msgspec.convert(read, type_)

    def section(self, value: YamlValue, type_: type[Section], path: str) -> Tree:
        """Return the plain form of a section."""
        if value.mapping is None:
            self.add(Code.BAD_FIELD, value.mark, path, "must be a mapping of fields")
            return {}
        known = fields_of(type_)
        for each in msgspec.structs.fields(type_):
            if each.required and each.encode_name not in value.mapping:
                message = f"the field {each.encode_name} is missing"
                self.add(Code.BAD_FIELD, value.mark, path, message)
        defaults = _defaults(type_)
        read: Tree = {}
        for key, entry in value.mapping.items():
            here = f"{path}.{key}" if path else key
            mark = value.keys[key]
            if key not in known:
                near = nearest(key, known)
                accepted = f"did you mean {near}?" if near else f"accepted: {', '.join(known)}"
                message = f"no field '{key}'" + (f" in {path}" if path else "")
                self.add(Code.UNKNOWN_FIELD, mark, here, message, help_=accepted)
            elif entry.is_null:
                help_ = "leave the key out to keep the default"
                self.add(Code.BAD_FIELD, mark, here, "nothing stands here", help_=help_)
            elif (item := _item_section(known[key])) and entry.sequence is not None:
                items = enumerate(entry.sequence)
                read[key] = [self.section(each, item, f"{here}[{i}]") for i, each in items]
            elif section := _section(known[key]):
                read[key] = self.section(entry, section, here)
            else:
                given = merged(defaults.get(key), to_plain(entry))
                read[key] = self._checked(given, entry, known[key], here)
        return read

    def _checked(self, given: Any, entry: YamlValue, type_: Any, path: str) -> Any:
        try:
            msgspec.convert(given, type_)
        except msgspec.ValidationError as error:
            message = _reworded(str(error), given)
            self.add(Code.BAD_FIELD, entry.mark, path, message, help_=_accepted(type_))
        return given


def _reworded(message: str, given: object) -> str:
    head, _, at = message.partition(" - at ")
    inner = f" at {at.strip('`').removeprefix('$')}" if at else ""
    shown = "" if isinstance(given, (dict, list)) else f"; got {given!r}"
    return f"{head[:1].lower()}{head[1:]}{inner}{shown}"


def _accepted(type_: Any) -> str:
    base = _bare(type_)
    if isinstance(base, type) and issubclass(base, Enum):
        return f"accepted: {', '.join(str(each.value) for each in base)}"
    for note in get_args(type_)[1:]:
        if isinstance(note, Meta) and note.ge is not None and note.le is not None:
            return f"accepted: {note.ge} to {note.le}"
    return ""


def _bare(type_: Any) -> Any:
    return get_args(type_)[0] if get_origin(type_) is Annotated else type_


def _defaults(type_: type[Section]) -> Tree:
    """Return the fields that have a default, as they stand in a file."""
    found: Tree = {}
    for each in msgspec.structs.fields(type_):
        if not each.required:
            value = each.default_factory() if each.default is NODEFAULT else each.default
            found[each.encode_name] = msgspec.json.decode(msgspec.json.encode(value))
    return found


def _section(type_: Any) -> type[Section] | None:
    """Return the section that a field is, or may be."""
    if get_origin(_bare(type_)) is tuple:
        return None
    return next((each for each in (type_, *get_args(type_)) if is_section(each)), None)


def _item_section(type_: Any) -> type[Section] | None:
    """Return the section that the items of a field are."""
    bare = _bare(type_)
    return _section(get_args(bare)[0]) if get_origin(bare) is tuple else None


def is_section(type_: Any) -> bool:
    """True for a group of values."""
    return isinstance(type_, type) and issubclass(type_, Section)


def fields_of(type_: type[Section]) -> dict[str, Any]:
    """Return the types of a section's fields by their names in a file, in their order."""
    hints = get_type_hints(type_, include_extras=True)
    return {each.encode_name: hints[each.name] for each in msgspec.structs.fields(type_)}


def description_of(type_: Any) -> str:
    """Return what a field is for: its own words, else those of its section."""
    if is_section(type_):
        return " ".join((type_.__doc__ or "").split())
    for note in get_args(type_)[1:]:
        if isinstance(note, Meta) and note.description:
            return note.description
    return ""
