"""What a command asks of a cluster: jobs by their names, settings, answers of the planner.

Begin with `lookup.py`, then `answers.py`. How it is shown is `views`.
"""
