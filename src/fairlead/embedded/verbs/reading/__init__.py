"""Lists and watches.

Begin with `lists.py`.
"""
