"""Which nodes may go: surplus, spares, announced ends, deleted pools.

Begin with `surplus.py`.
"""
