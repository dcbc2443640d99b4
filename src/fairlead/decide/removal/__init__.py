"""The rails: what must hold before anything removes a node or drains it.

`trust` says whether what is seen can be trusted, `ledger` how much each budget has left, `removals`
rules on each removal. docs/design/fleet.md has the reasons.
"""
