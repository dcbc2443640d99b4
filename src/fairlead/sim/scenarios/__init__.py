"""`fairlead sim`: a scenario becomes a world, what happens in it becomes figures and a page.

Begin with `scenario.py`, then `run.py`.
"""
