"""What follows from the faults of nodes: reports, nodes and books in, steps out.

`need` judges reports, `node_step` moves one node from state to state, `cycle` decides about all of
them within the rails. docs/design/health.md has the reasons.
"""
