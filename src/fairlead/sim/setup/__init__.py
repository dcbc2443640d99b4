"""What a simulated world consists of and what goes wrong in it: jobs, teams, volumes, faults.

Begin with `world_options.py`, then `workload.py`.
"""
