"""What is known of the health of nodes and machines, and when they are reserved.

Begin with `node_health.py`. Imports no other part of the model.
"""
