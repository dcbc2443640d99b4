"""Which nodes are bought, and for which gangs.

Begin with `demand.py`.
"""
