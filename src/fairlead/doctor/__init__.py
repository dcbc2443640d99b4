"""Checks of a cluster's control plane and configuration: facts in, findings with evidence out.

`readers/` collect `Facts`, `checks/` hold the checks as data, `examine` evaluates them (pure), and
`output/` writes the report. `audit/` analyses audit logs. Nothing here writes to the cluster.
"""
