"""The stages of a decision, as `cycle.py` runs them.

Begin with `fit.py`, then `reservation.py`.
"""
