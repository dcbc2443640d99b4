"""What is special about kinds: defaults, shapes, rules, quotas.

Begin with `strategy.py`; `kinds.py` has the table.
"""
