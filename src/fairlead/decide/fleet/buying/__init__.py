"""Which nodes are bought, and for whom.

Begin with `demand.py`.
"""
