"""The kinds of a whole cluster: teams, node pools, the fleet, reports and tests of nodes, images.

Begin with `team.py`, then `node_pool.py`.
"""
