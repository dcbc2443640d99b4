"""Who leaves for whom: preemption, moves and consolidation.

Begin with `preempt.py`, then `victim_search.py`.
"""
