"""Calls that break purity, determinism or structure are banned, with the thing to use instead."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from tests.tidy.sources import ROOT, calls, modules, name, nodes, tree

from fairlead.api.names import OWN_NAMESPACE

#: What a command runs without an event loop.
BLOCKING = ("cli/", "install/", "app/local/launch.py")
#: Read YAML by its events, with bounds; and the manifests that are our own text.
YAML_LOADERS = ("input/yamlmarks.py", "embedded/http/request.py", "install/manifests.py")
#: Call -> (instead, places where it is right).
BANNED: dict[str, tuple[str, tuple[str, ...]]] = {
    "time.time": ("a Clock argument", ("runtime/clock.py", "cli/", "member/")),
    "time.monotonic": (
        "loop.time()",
        (
            *BLOCKING,
            "member/",
            "run.py",
            "embedded/local/processes/shim_session.py",
            "node/gang_gate/",
            "node/running/program_run.py",
            "node/shaping/probe.py",
        ),
    ),
    "time.sleep": (
        "asyncio.sleep",
        (*BLOCKING, "member/", "embedded/local/processes/shim.py", "node/running/program_run.py"),
    ),
    "datetime.now": ("a Clock argument", ()),
    "datetime.datetime.now": ("a Clock argument", ()),
    "uuid.uuid4": ("an id source passed in", ("cli/",)),
    "random.random": ("a random.Random argument", ()),
    "random.choice": ("a random.Random argument", ()),
    "asyncio.create_task": ("asyncio.TaskGroup", ()),
    "asyncio.ensure_future": ("asyncio.TaskGroup", ()),
    "asyncio.wait": ("asyncio.TaskGroup or gather: a set of tasks has no order", ()),
    "asyncio.wait_for": ("asyncio.timeout: before Python 3.12 it can lose a cancellation", ()),
    "asyncio.as_completed": ("asyncio.TaskGroup or gather", ()),
    "asyncio.to_thread": (
        "a runner passed in from the shell",
        ("cli/", "embedded/local/", "node/gang_gate/"),
    ),
    "print": ("fairlead.terminal in cli, a logger elsewhere", ()),
    "click.echo": ("fairlead.terminal", ()),
    "click.secho": ("fairlead.terminal", ()),
    **{
        f"yaml.{call}": ("fairlead.input.plain, whose depth and size are bounded", YAML_LOADERS)
        for call in (
            "load",
            "load_all",
            "safe_load",
            "safe_load_all",
            "full_load",
            "parse",
            "compose",
            "scan",
            "unsafe_load",
        )
    },
    "json.load": ("fairlead.input.plain.json_document", ("embedded/local/processes/shim.py",)),
    "os.system": ("subprocess with a list", ()),
    "pickle.loads": ("msgspec", ()),
    "eval": ("nothing", ()),
    "exec": ("nothing", ()),
}

#: What may name the standard streams, and for what.
STREAMS = {
    "terminal.py": "writes text, made printable",
    "cli/formats/program_output.py": "writes the output of programs, filtered for a terminal",
    "cli/main.py": "flushes them at the end",
    "cli/commands/cluster.py": "gives stderr to the log",
    "app/operator_process.py": "gives stderr to the log",
    "app/local/launch.py": "flushes them before it forks",
    "runtime/logs.py": "writes log lines, made printable",
    "member/": "is the output of programs",
}

PURE = ("api/", "model/", "decide/")
PURE_FORBIDDEN_MODULES = {
    "asyncio", "threading", "time", "datetime", "random", "uuid", "secrets", "os", "socket",
    "logging", "pathlib", "subprocess", "io", "sys",
}  # fmt: skip


#: In a line that begins a statement of a module: what it may bind.
_MAY_BIND = re.compile(r"\b([A-Z_][A-Z0-9_]*) *=(?!=)")


@cache
def places() -> dict[str, list[tuple[Path, int]]]:
    """Return where each dotted name is called, in the order of the modules."""
    found: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    for path in modules():
        for dotted, line in calls(path):
            found[dotted].append((path, line))
    return found


@pytest.mark.parametrize("call", sorted(BANNED))
def test_banned_call_is_not_used(call: str) -> None:
    instead, allowed = BANNED[call]
    found = [
        f"{name(path)}:{line}"
        for path, line in places().get(call, ())
        if not name(path).startswith(allowed or ("-",))
    ]
    assert found == [], f"{call} is banned here, use {instead}"


def test_text_reaches_the_standard_streams_at_one_place() -> None:
    """Elsewhere it would be written as it is, with the escape sequences that others put in it."""
    found = {
        f"{name(path)}:{node.lineno}"
        for path in modules()
        for node in nodes(path)
        if not name(path).startswith(tuple(STREAMS))
        and (
            (isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr", "__stdout__")
             and isinstance(node.value, ast.Name) and node.value.id == "sys")
            or (isinstance(node, ast.ImportFrom) and node.module == "sys"
                and {each.name for each in node.names} & {"stdout", "stderr"})
        )
    }  # fmt: skip
    assert found == set()
    assert all(any(name(path).startswith(each) for path in modules()) for each in STREAMS)


def test_the_pure_layers_import_nothing_impure() -> None:
    found: list[str] = []
    for path in modules():
        if not name(path).startswith(PURE):
            continue
        for node in nodes(path):
            roots: list[str] = []
            if isinstance(node, ast.Import):
                roots = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                roots = [(node.module or "").split(".")[0]]
            found += [f"{name(path)} imports {r}" for r in roots if r in PURE_FORBIDDEN_MODULES]
    assert found == []


def test_the_core_never_awaits() -> None:
    found = [
        f"{name(path)}:{node.lineno}"
        for path in modules()
        if name(path).startswith(PURE)
        for node in nodes(path)
        if isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith)
    ]
    assert found == []


def test_no_except_is_bare() -> None:
    found = [
        f"{name(path)}:{node.lineno}"
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert found == []


def test_type_ignores_give_their_reason() -> None:
    found = [
        f"{name(path)}:{number}"
        for path in modules()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "type: ignore" in line and line.split("type: ignore", 1)[1].count("#") == 0
    ]
    assert found == []


def test_the_usual_namespace_is_written_once() -> None:
    """Everything else says `names.OWN_NAMESPACE`, or finds where Fairlead was installed."""
    found: list[str] = []
    for path in modules():
        words = {node.value for node in nodes(path) if isinstance(node, ast.Expr)}
        found += [
            name(path) for node in nodes(path) if isinstance(node, ast.Constant)
            and OWN_NAMESPACE in str(node.value) and node not in words
        ]  # fmt: skip
    assert found == ["api/names.py"]


def test_no_constant_is_bound_twice() -> None:
    """The second one wins without a word: what was tried with smaller numbers stays small."""
    twice: list[str] = []
    for part in ("src", "tests", "bench", "tools"):
        for path in sorted((ROOT / part).rglob("*.py")):
            lines = path.read_text().splitlines()
            bound = [n for line in lines if line[:1].strip() for n in _MAY_BIND.findall(line)]
            if len(bound) == len(set(bound)):
                continue  # nothing to parse for
            targets = [
                target.id
                for node in tree(path).body
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name) and target.id.isupper()
            ]
            twice += [
                f"{path.relative_to(ROOT)}: {n}" for n in set(targets) if targets.count(n) > 1
            ]
    assert twice == []


def test_texts_that_cannot_be_decoded_are_caught_whatever_is_wrong_with_them() -> None:
    """msgspec raises UnicodeDecodeError, which is no DecodeError; both are ValueErrors."""
    found = [
        f"{name(path)}:{node.lineno}: {node.attr}"
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in ("DecodeError", "MsgspecError")
    ]
    assert found == []
