"""Where a gang could go: the room of a decision, the search in it, and why it finds nothing.

Begin with `search.py`, then `unplaceable.py`. Imports no other part of the planner.
"""
