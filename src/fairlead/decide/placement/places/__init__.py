"""Where a gang could go: the room of a decision, and the search in it.

Begin with `search.py`. Imports no other part of the planner.
"""
