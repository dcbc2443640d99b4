"""Functions, classes, methods and constants of the package that nothing in it uses are dead.

A use is a mention outside of the definition itself and of what is unused: as a name in its module,
as an import, an attribute, or a word in a text (`getattr`, a path to import). Tests are no users.
Mentions are by name: a method that shares its name with a used one is not noticed. What is called
from outside is recognised by its form: decorated functions (commands, callbacks), and methods of
classes that derive from a class of another package.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.tidy.sources import ROOT, modules, name, tree

#: Where a path starts or ends like this: who uses it.
ALLOWED = {
    "testing/": "the public test kit",
    "member/progress.py": "imported by programs inside a job",
    "cli/jupyter/provisioner.py": "started by Jupyter, by an entry point",
    "kube/http1.py:_Incoming.on_": "called by httptools",
    "SpdySocket.feed_eof": "called by aiohttp",
    "Metrics.collect": "called by prometheus_client",
    "kube/kubeconfig.py:load_connection": "connects programs beside the CLI",
    ".watch_count": "tells tests that no watch is left open",
    ".backlog": "tells tests and benchmarks when deletions are through",
}
#: Decorators that hand the function to nothing else.
PLAIN = re.compile(
    r"(.*\.)?(property|(static|class)method|cached_property|cache|lru_cache|(async)?contextmanager"
    r"|dataclass|runtime_checkable|unique|final|override|total_ordering|setter)"
)
OWN_BASES = re.compile(
    r"Protocol|Generic|\w*Enum|Flag|Exception|\w*Error|NamedTuple|msgspec\.Struct"
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

Sources = dict[str, ast.Module]


class Mention(NamedTuple):
    module: str
    line: int
    is_local: bool  # means the name of this module, not of another


class Definition(NamedTuple):
    module: str
    path: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.module}:{self.path}"

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    def holds(self, mention: Mention) -> bool:
        return mention.module == self.module and self.first <= mention.line <= self.last

    def is_used_by(self, mention: Mention) -> bool:
        if mention.module == self.module:
            return not self.holds(mention)
        return not mention.is_local


def mentions(module: str, nodes: Sequence[ast.AST]) -> Iterator[tuple[str, Mention]]:
    texts = {n.value for n in nodes if isinstance(n, ast.Expr)}  # docstrings
    for node in nodes:
        match node:
            case ast.Name(id=word, ctx=ast.Load()):
                yield word, Mention(module, node.lineno, is_local=True)
            case ast.Attribute(attr=word):
                yield word, Mention(module, node.lineno, is_local=False)
            case ast.ImportFrom(names=names):
                yield from ((n.name, Mention(module, node.lineno, is_local=False)) for n in names)
            case ast.Constant(value=str(text)) if node not in texts:
                for word in re.findall(r"[A-Za-z_]\w*", text):
                    yield word, Mention(module, node.lineno, is_local=False)
            case _:
                pass


def definitions(
    module: str, body: Iterable[ast.stmt], classes: dict[str, ast.ClassDef], prefix: str = ""
) -> Iterator[Definition]:
    for node in body:
        first, names = node.lineno, list[str]()
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and not prefix:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        elif isinstance(node, (ast.ClassDef, *FUNCTIONS)):
            first = min(part.lineno for part in (node, *node.decorator_list))
            calls = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
            names = [node.name] if all(PLAIN.fullmatch(ast.unparse(d)) for d in calls) else []
        for each in names:
            if not each.startswith("__"):
                yield Definition(module, prefix + each, first, node.end_lineno or first)
        if isinstance(node, ast.ClassDef) and not is_foreign(node, classes):
            yield from definitions(module, node.body, classes, f"{prefix}{node.name}.")


def is_foreign(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    """True for a class that derives from one of another package, which calls its methods."""
    texts = [ast.unparse(b.value if isinstance(b, ast.Subscript) else b) for b in node.bases]
    return any(
        is_foreign(classes[text], classes)
        if text in classes and classes[text] is not node
        else not OWN_BASES.fullmatch(text)
        for text in texts
    )


Read = tuple[set[Definition], dict[str, set[Mention]]]


def read(sources: Sources) -> Read:
    """Return all definitions, and for each of their names where it is mentioned."""
    nodes = {module: list(ast.walk(code)) for module, code in sources.items()}
    classes = {n.name: n for some in nodes.values() for n in some if isinstance(n, ast.ClassDef)}
    found = {d for m, code in sources.items() for d in definitions(m, code.body, classes)}
    places: dict[str, set[Mention]] = {d.name: set() for d in found}
    for module, some in nodes.items():
        for word, mention in mentions(module, some):
            if word in places:
                places[word].add(mention)
    return found, places


def unused(source: Read, *, roots: tuple[str, ...] = ()) -> list[str]:
    """Return what nothing uses, and what only that uses, as `module:path`; roots are in use."""
    found = {d for d in source[0] if not is_one_of(roots, str(d))}
    places = dict(source[1])
    dead: list[str] = []
    while more := [d for d in found if not any(map(d.is_used_by, places[d.name]))]:
        dead += map(str, more)
        found -= set(more)
        held: dict[str, list[Definition]] = defaultdict(list)
        for each in more:
            held[each.module].append(each)
        for word, uses in places.items():
            places[word] = {m for m in uses if not any(d.holds(m) for d in held.get(m.module, ()))}
    return sorted(dead)


def is_one_of(roots: Iterable[str], path: str) -> bool:
    return any(path.startswith(root) or path.endswith(root) for root in roots)


def test_nothing_is_defined_that_nothing_uses() -> None:
    sources = {name(path): tree(path) for path in modules()}
    for path in sorted((ROOT / "tools").rglob("*.py")):  # entry points too
        sources[path.relative_to(ROOT).as_posix()] = ast.parse(path.read_text())
    source = read(sources)
    found = unused(source)
    assert [root for root in ALLOWED if not any(is_one_of([root], f) for f in found)] == []
    rest = unused(source, roots=(*ALLOWED, "tools/"))
    assert rest == [], "delete what nothing uses, or say in ALLOWED who does"


def test_what_is_unused_is_found_and_what_is_called_from_outside_is_not() -> None:
    code = """
USED, ALONE = 1, 2
ALONE_TOO: int = USED
def dead(): return only_of_dead()
def only_of_dead(): return only_of_dead
@command
def registered(): return helper().method
def helper(): ...
class Handler(asyncio.Protocol):
    def data_received(self): ...
class Plain:
    def method(self): ...
    def lost(self): ...
"""
    sources = {"a.py": ast.parse(code), "b.py": ast.parse("from a import Handler\nPlain")}
    found = unused(read(sources))
    dead = ["ALONE_TOO", "Plain", "Plain.lost", "dead", "only_of_dead"]
    assert found == [f"a.py:{path}" for path in dead]
