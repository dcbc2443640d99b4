"""The processes of a pod: how they start, are entered, are followed and end.

Begin with `process.py`; `shim.py` is the parent that outlives the node.
"""
