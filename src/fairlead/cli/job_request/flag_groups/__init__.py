"""The flags of a request, by subject.

Begin with `flags.py`.
"""
