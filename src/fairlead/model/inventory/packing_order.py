"""The packing order: in which order nodes are filled, as one number a node, smaller first.

Nodes without devices come first, so that members without devices leave the others alone; then the
fewest free devices; then those that are not suspect; then those with a device in use; then the
least free CPU and memory; then the name. How much of a job's images a node has to pull is added to
it (`images_shift`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fairlead.model.inventory.image_table import LACKING_MAX

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

#: Rows of CPU and memory in a table of nodes.
_SHARE_ROWS = (0, 1)
#: Of the place in the order of names.
RANK_BITS = 24
_SHARE_BITS = 10
#: The part of CPU and of memory that is free, each of so many steps.
_SHARE_STEPS = 511
#: There is room for how much of its images a node lacks above the name and above the share.
_IMAGE_BITS = LACKING_MAX.bit_length()
_SHARE_AT = RANK_BITS + _IMAGE_BITS
_IMAGES_ABOVE_SHARE_AT = _SHARE_AT + _SHARE_BITS
_WHOLE_AT = _IMAGES_ABOVE_SHARE_AT + _IMAGE_BITS
#: The bit of a suspect, above the one that says that all devices are free.
_SUSPECT = 2
#: Bits of the packing order below that say how many devices are free.
BITS_BELOW_DEVICES = _WHOLE_AT + 2
_DEVICES_MAX = 1 << 16


def packing_key(
    free: Ints, owned: Ints, device_rows: Sequence[int], *, suspect: Bools, rank: Ints
) -> Ints:
    """Return int64[N] from what is free and what there is, int64[D, N], and the facts by node."""
    share = np.zeros(free.shape[1], dtype=np.int64)
    for row in _SHARE_ROWS:
        share += np.maximum(free[row], 0) * _SHARE_STEPS // np.maximum(owned[row], 1)
    key = np.zeros(free.shape[1], dtype=np.int64)
    if device_rows:  # in place: a few arrays less are half of the time
        devices = np.maximum(free[device_rows], 0).sum(axis=0)
        total = owned[device_rows].sum(axis=0)
        np.minimum(devices, _DEVICES_MAX, out=key)
        key += 1
        key <<= 2
        key |= devices >= total
        key *= total > 0
    key[suspect] |= _SUSPECT
    key <<= _WHOLE_AT
    share <<= _SHARE_AT
    key |= share
    key |= rank
    return key


def packing_key_of(
    used: list[int], owned: list[int], device_rows: Sequence[int], *, is_suspect: bool, rank: int
) -> int:
    """Return the same of one node, without the cost of vectors of length one."""
    share = devices = total = 0
    for row in _SHARE_ROWS:
        if used[row] < owned[row]:
            share += (owned[row] - used[row]) * _SHARE_STEPS // owned[row]
    for row in device_rows:
        devices += max(owned[row] - used[row], 0)
        total += owned[row]
    tier = 1 + min(devices, _DEVICES_MAX) if total else 0
    is_whole = devices >= total > 0
    above = tier << 2 | (_SUSPECT if is_suspect else 0) | is_whole
    return (above << _WHOLE_AT) | (share << _SHARE_AT) | rank


def images_shift(*, has_devices: bool) -> int:
    """Return where what a node lacks of a member's images is added to the packing order.

    For a member with devices that is above the free CPU and memory, for one without below: there
    these say which nodes are free, and to break up a free node is worse than a pull.
    """
    return _IMAGES_ABOVE_SHARE_AT if has_devices else RANK_BITS
