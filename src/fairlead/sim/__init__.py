"""The simulator: virtual time, faults, checkers, reports.

Begin with `world.py`, then `setup/world_options.py`.
"""
