"""The type of a move."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from fairlead.sim.tenants.calls import Call

Move: TypeAlias = Callable[[str, random.Random], Sequence[Call]]
