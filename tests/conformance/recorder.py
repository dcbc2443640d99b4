"""Recording what a server answers, so that two servers' answers can be compared.

A scenario talks to a `Recorder` as it would to a target. Each answer is kept under a label with
what is bound to differ taken out: uids, versions, times and the ages in a table, which are seconds
here, become placeholders. What is left is compared value by value (`differences`). The path of a
message names its status, as in `body.message 422`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.target import Answer, Target
from tests.patience import PATIENCE_SECONDS

ABSENT = "<absent>"
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_AGE = re.compile(r"\d{1,2}s")
_VERSIONED = ("resourceVersion", "continue")
_ORDER = {"conditions": ("type",), "causes": ("field", "reason", "message"), "verbs": (),
          "resources": ("name",), "managedFields": ("manager", "operation", "apiVersion",
          "subresource")}  # fmt: skip
_HEADERS = ("Content-Type", "Warning", "Retry-After")


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that the two servers answer differently; `where` is scenario/step."""

    where: str
    path: str
    embedded: Any
    real: Any

    def __str__(self) -> str:
        return f"{self.where} {self.path}: embedded {self.embedded!r}, real {self.real!r}"


@dataclass(slots=True)
class Recorder:
    """Sends requests and keeps the answers, normalised, by label."""

    target: Target
    steps: dict[str, Any] = field(default_factory=dict)

    async def __call__(
        self,
        label: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        kind: str = "",
        accept: str = "",
    ) -> Answer:
        """Send a request and record its answer; `kind` is the body's media type."""
        headers = {"Content-Type": kind} if kind else {}
        if accept:
            headers["Accept"] = accept
        answer = await self.target.request(method, path, body, query=query, headers=headers)
        shown = {name: answer.headers[name] for name in _HEADERS if name in answer.headers}
        self.keep(label, {
            "status": answer.status,
            "headers": shown,
            "body": answer.body.decode(errors="replace") if answer.json is None else answer.json,
        })  # fmt: skip
        return answer

    def keep(self, label: str, value: Any) -> None:
        """Record a value under a label of its own."""
        assert label not in self.steps, f"the step {label} is there twice"
        self.steps[label] = self._normal(value, "")

    async def quietly(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        """Send a request whose answer is not compared."""
        return await self.target.request(method, path, body, **more)

    async def events(
        self,
        label: str,
        path: str,
        during: Callable[[], Awaitable[Any]] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        count: int = 1,
    ) -> list[dict[str, Any]]:
        """Open a watch, do something, and record `count` events, or fewer if it ends before."""
        got: list[dict[str, Any]] = []
        async with self.target.watch(path, query=query) as events:
            if during is not None:
                await during()
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while len(got) < count:
                        got.append(await anext(events))
            except (TimeoutError, StopAsyncIteration):
                pass
        self.keep(label, {str(i): event for i, event in enumerate(got)})
        return got

    async def until(
        self, path: str, holds: Callable[[Answer], bool], *, method: str = "GET", **more: Any
    ) -> Answer:
        """Ask until it holds: for what a server does after it has answered."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answer = await self.target.request(method, path, **more)
                if holds(answer):
                    return answer
                await asyncio.sleep(0.02)

    def _normal(self, value: Any, key: str) -> Any:
        if key == "fieldsV1":  # its leaves are empty objects, which say something here
            return dict.fromkeys(_owned(value, ""), "owned")
        if isinstance(value, dict):
            return {k: self._normal(v, k) for k, v in value.items()}
        if isinstance(value, list):
            if key == "cells":
                value = ["<age>" if _is_age(cell) else cell for cell in value]
            if key in _ORDER:  # lists whose order says nothing
                value = sorted(value, key=lambda each: _order(each, _ORDER[key]))
            return [self._normal(v, "") for v in value]
        if isinstance(value, str):
            if key in _VERSIONED and value:
                return f"<{key}>"
            text = _TIME.sub("<time>", value)
            return _UID.sub("<uid>", text)
        return value


def _is_age(cell: Any) -> bool:
    return isinstance(cell, str) and _AGE.fullmatch(cell) is not None


def _order(each: Any, keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(each.get(key)) for key in keys) if isinstance(each, dict) else (str(each),)


def _owned(fields: Any, path: str) -> Iterator[str]:
    if path and (not fields or "." in fields):
        yield _UID.sub("<uid>", path)
    for step, below in fields.items():
        if step != ".":
            yield from _owned(below, f"{path}/{step}")


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for i, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{i}]")
    else:
        yield path, value


def _same(a: Any, b: Any) -> bool:
    """Equal; an empty object is as good as none (a Go server drops those that a client sent)."""
    if {} in (a, b) and ABSENT in (a, b):
        return True
    return a == b and type(a) is type(b)


def differences(name: str, embedded: Recorder, real: Recorder) -> list[Difference]:
    """Return what the two answered differently in the scenario of that name."""
    found: list[Difference] = []
    for label in dict.fromkeys((*embedded.steps, *real.steps)):
        ours = dict(_flat(embedded.steps.get(label, "<no such step>")))
        theirs = dict(_flat(real.steps.get(label, "<no such step>")))
        paths = dict.fromkeys((*ours, *theirs))
        if ours.get("status") != theirs.get("status"):  # the rest follows from that
            paths = dict.fromkeys(("status", "body.message", "body"))
        for path in paths:
            a, b = ours.get(path, ABSENT), theirs.get(path, ABSENT)
            if not _same(a, b):
                status = f" {theirs.get('status')}" if path.endswith("message") else ""
                found.append(Difference(f"{name}/{label}", path + status, a, b))
    return found
