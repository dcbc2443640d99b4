"""Names that users of Slurm write: of commands, of the cluster, of the partition of all jobs."""

from __future__ import annotations

CLUSTER = "fairlead"
DEFAULT_PARTITION = "all"
COMMANDS = (
    "sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "seff",
    "sinfo", "sprio", "squeue", "srun", "sshare",
)  # fmt: skip
#: The version of Slurm whose manual pages are followed.
RELEASE = "24.05.0"
