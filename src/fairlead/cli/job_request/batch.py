"""What is particular to a batch script of Slurm: its tasks, and what it takes along (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.api.jobs.notify import Notify
from fairlead.decide.jobs.rendering.slurm_variables import NTASKS, SLURM_VARIABLES, TaskCounts

#: Known at submission, whatever was asked for.
SUBMITTED = ("SLURM_JOB_NAME", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST", "SLURM_JOB_USER")

#: Of the tasks that srun starts.
OF_TASKS = (
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", *NTASKS, "SLURM_STEP_ID", "SLURM_STEPID",
    "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE", "SLURM_LAUNCH_NODE_IPADDR",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Batch:
    """The tasks of a batch script and its environment; the script itself is no task."""

    #: The most that one node has.
    tasks_per_node: int = 1
    #: Of all nodes; None: as many as the nodes have, however many nodes there are.
    tasks: int | None = None
    #: The variables of the shell come along where that shell and the job are of one machine.
    exports_all: bool = True
    #: Variables that come along where they are set.
    exports: frozenset[str] = frozenset()
    #: [B:]SIG@SECONDS before the end (`member.end_signal`); "" for none.
    signal: str = ""
    #: The quality of service that was asked for, by its name in the settings.
    qos: str = ""
    #: Addresses for mail, and its events; only where the cluster sends mail to that address.
    mail: Notify | None = None
    #: Files for a copy of what it writes, on this machine; patterns of Slurm.
    output: str = ""
    error: str = ""
    appends: bool = False
    #: Slurm's variables that say what was asked for, by name.
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def annotation(self) -> str:
        """The tasks as `fairlead.dev/slurm-tasks` of a template has them."""
        total = f"/{self.tasks}" if self.tasks is not None else ""
        return f"{self.tasks_per_node}{total}"

    @property
    def names(self) -> frozenset[str]:
        """The variables of Slurm that the script sees."""
        own = dict(self.variables)
        known = frozenset((*SUBMITTED, *SLURM_VARIABLES, *own))
        counts = TaskCounts(self.tasks_per_node, self.tasks)
        return known if counts.are_asked(own) else known.difference(NTASKS)
