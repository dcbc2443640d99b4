"""Which elements of an array are jobs now, and what its status says (pure)."""

from fairlead.decide.arrays.actions import (
    Action,
    CancelElement,
    CreateElement,
    DeleteArray,
    DeleteElement,
    PrioritizeElement,
    SuspendElement,
    WriteArrayStatus,
)
from fairlead.decide.arrays.element_jobs import ElementJobs
from fairlead.decide.arrays.environment import element_annotations, element_environment
from fairlead.decide.arrays.lifecycle import decide_array
from fairlead.decide.arrays.view import ArraysPolicy, ArrayView, ElementRefusal

__all__ = [
    "Action",
    "ArrayView",
    "ArraysPolicy",
    "CancelElement",
    "CreateElement",
    "DeleteArray",
    "DeleteElement",
    "ElementJobs",
    "ElementRefusal",
    "PrioritizeElement",
    "SuspendElement",
    "WriteArrayStatus",
    "decide_array",
    "element_annotations",
    "element_environment",
]
