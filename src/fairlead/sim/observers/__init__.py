"""Who watches the writes of a simulated world, and what a broken promise is.

Begin with `observer.py`. Imports no other part of the simulator.
"""
