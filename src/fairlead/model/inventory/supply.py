"""What some nodes have of one resource (pure)."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]


class Supply(NamedTuple):
    """What some nodes have of one resource, how many have some left, and the most that one has."""

    unused: int
    owned: int
    free_nodes: int
    nodes: int
    largest: int

    @classmethod
    def of(cls, unused: Ints, owned: Ints) -> Supply:
        """Sum up int64[nodes] of what is unused, and of what there is."""
        free, most = int(np.count_nonzero(unused)), int(owned.max(initial=0))
        return cls(int(unused.sum()), int(owned.sum()), free, len(owned), most)
