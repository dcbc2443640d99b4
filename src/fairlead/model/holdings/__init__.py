"""Who holds what: claims of jobs, use of teams, quotas.

Begin with `claims.py`, then `ledger.py`.
"""
