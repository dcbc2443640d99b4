"""A job as the planner sees it: its gang, and its phase.

Begin with `gangs.py`.
"""
