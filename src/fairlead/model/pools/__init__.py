"""Pools of nodes: what belongs to which, and what is held free in them.

Begin with `pool_nodes.py`.
"""
