"""Checkers of the promises: each with a model of its own, fed with every committed write.

Begin with `checkers.py`. A checker that must know what its actor did stands beside it in `actors`.
"""
