"""How much the controllers keep: the entries of all containers that can be reached from them.

What has a limit of its own, and shows past decisions and events, is left out.
"""

from __future__ import annotations

import gc
import types
from collections import deque

from prometheus_client import CollectorRegistry

from fairlead.controllers.placing.decision_log import DecisionLog
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.client import Client
from fairlead.runtime.events import Recorder

_APART = (
    type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType,
    types.CodeType, types.FrameType, types.CoroutineType, types.GeneratorType,
    ApiService, Store, Client, MemoryHistory, CollectorRegistry, DecisionLog, Recorder,
)  # fmt: skip
_MODULES = ("asyncio", "_asyncio", "contextvars", "_contextvars", "random", "_random", "enum")


def entries_of(root: object) -> int:
    """Return the entries of the containers behind an object, and the hundreds of characters in its
    texts and bytes.
    """
    seen, todo, count = {id(root)}, deque([root]), 0
    apart: dict[type, bool] = {}  # there are many objects, and few types
    while todo:
        for found in gc.get_referents(todo.popleft()):
            if id(found) in seen:
                continue
            kind = type(found)
            if kind not in apart:
                apart[kind] = issubclass(kind, _APART) or kind.__module__.startswith(_MODULES)
            if apart[kind]:
                continue
            seen.add(id(found))
            if isinstance(found, str | bytes):
                count += len(found) // 100
                continue
            if isinstance(found, dict | list | set | deque):
                count += len(found)  # pyright: ignore[reportUnknownArgumentType] # of anything
            todo.append(found)
    return count
