"""The life of a virtual pod in stages, and what its status says in each.

Begin with `records.py`.
"""
