"""Who acts in a simulated world: replicas of the operator, people, machines, agents, other tools.

Begin with `replicas.py`, then `disturbances.py`.
"""
