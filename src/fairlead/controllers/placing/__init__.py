"""What the planner decides about places, and what prepares it: teams, devices, images, balloons.

Begin with `scheduler.py`; `decision_log.py` keeps what it decided upon.
"""
