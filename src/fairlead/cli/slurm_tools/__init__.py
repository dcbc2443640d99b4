"""Slurm's commands as views of Fairlead: sbatch, squeue, sacct, scancel, scontrol, sinfo.

Programs that know Slurm call these and read what they print. Each command has a module of its own;
they share one table of fields (`fields.py`), one view of a job (`records.py`), and one reader of
options (`options.py`). What they do is done by the functions that Fairlead's own commands use.
"""
