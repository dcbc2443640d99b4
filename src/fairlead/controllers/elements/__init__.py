"""Arrays: which of their elements exist, and in what state the others are.

Begin with `arrays.py`.
"""
