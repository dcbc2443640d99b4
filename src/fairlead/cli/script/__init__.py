"""What a script says of its job: #FAIRLEAD and #SBATCH lines, and how Slurm's words are meant.

Begin with `header.py`, then `slurm_meaning.py`.
"""
