"""What pods ask for, and the rules that every pod spec must meet.

Begin with `pod_asks.py`, then `pod_rules.py`.
"""
