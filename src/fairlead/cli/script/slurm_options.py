"""Every option of sbatch, and what becomes of it here: the one table of them (pure).

The reader of `#SBATCH` lines, the answers to Slurm's flags and the reference page are made from
OPTIONS. An option is mapped (it means the same here), noted (it names a place or a wish, and the
job's result does not depend on it), or refused (without it the result would be another one).

Source: the manual of sbatch of Slurm 25.05; `src/common/slurm_opt.c` for letters, aliases and the
variables that give options a default; for what is carried to later components, the list of the
page "Heterogeneous Job Support". Those of plug-ins are of pyxis (`container-...`), EAR, and
CSCS (`environment`, `uenv`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class OptionTreatment(Enum):
    """What becomes of an option; the value is the word in the reference."""

    MAPPED = "mapped"
    NOTED = "noted"
    REFUSED = "refused"


class Reach(Enum):
    """What an option of one component of a heterogeneous job is to the later ones."""

    #: Each component has its own, or the default.
    COMPONENT = "component"
    #: A later component has it as well, unless it has its own.
    CARRIED = "carried"
    #: The whole job has one; another one of a later component is refused.
    JOB = "job"
    #: The whole job has one; that of a later component has no effect.
    FIRST = "first"


class Argument(Enum):
    """Whether an option takes a value; an optional one is attached with `=`."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `words` say what it becomes, why it has no effect, or what to write instead."""

    name: str
    words: str
    letter: str = ""
    argument: Argument = Argument.REQUIRED
    #: The variable that gives it a value where neither script nor command line does.
    variable: str = ""
    alias: str = ""
    treatment: OptionTreatment = OptionTreatment.MAPPED
    #: Without a value it is as good as not given: templates have such lines.
    may_be_empty: bool = False
    reach: Reach = Reach.COMPONENT

    @property
    def shown(self) -> str:
        """The option as people write it."""
        return f"--{self.name}"


_FILE = "a copy of the log in a file, on this machine; on a cluster: `fairlead logs JOB`"
_WORDS = "it only changes sbatch's own words"
_CORES = "CPUs are not bound to tasks; the cores of a node are not told apart"
_COUNTING = "nothing is charged by it; the team of a job follows from its namespace"
_WISH = "it is a wish about placement that has no equal here"
_CLUSTER = "the cluster is that of `--context`"
_EAR = "there is no EAR to manage energy"
_RESTARTS = "jobs restart after the failure of a node anyway; --retries N covers their own"
_NONE, _OPTIONAL = Argument.NONE, Argument.OPTIONAL

_MAPPED = (
    Option("job-name", "`--name`", letter="J", variable="SBATCH_JOB_NAME", reach=Reach.FIRST),
    Option(
        "time",
        "`--time`; 0 and UNLIMITED: no limit",
        letter="t",
        variable="SBATCH_TIMELIMIT",
        reach=Reach.JOB,
    ),
    Option("nodes", "`--nodes`, on as many distinct nodes", letter="N"),
    Option(
        "ntasks",
        "tasks of all nodes together, started by `srun`",
        letter="n",
        variable="SBATCH_NTASKS",
    ),
    Option(
        "ntasks-per-node",
        "tasks of each node",
        variable="SBATCH_NTASKS_PER_NODE",
        alias="tasks-per-node",
    ),
    Option(
        "cpus-per-task",
        "`--cpus`: of each task, times the tasks of a node",
        letter="c",
        variable="SBATCH_CPUS_PER_TASK",
    ),
    Option(
        "cpus-per-gpu",
        "`--cpus`: of each GPU, times the GPUs of a node",
        variable="SBATCH_CPUS_PER_GPU",
    ),
    Option(
        "mem",
        "`--memory` of each node; 0: all of it, which no other job shares",
        variable="SBATCH_MEM_PER_NODE",
        reach=Reach.CARRIED,
    ),
    Option(
        "mem-per-cpu",
        "`--memory`: of each CPU, times the CPUs of a node",
        variable="SBATCH_MEM_PER_CPU",
    ),
    Option(
        "mem-per-gpu",
        "`--memory`: of each GPU, times the GPUs of a node",
        variable="SBATCH_MEM_PER_GPU",
    ),
    Option("gres", "`--gpus [TYPE:]N`, of each node", variable="SBATCH_GRES"),
    Option("gpus-per-node", "`--gpus [TYPE:]N`", variable="SBATCH_GPUS_PER_NODE"),
    Option(
        "gpus-per-task",
        "`--gpus`: of each task, times the tasks of a node",
        variable="SBATCH_GPUS_PER_TASK",
    ),
    Option(
        "gpus",
        "`--gpus`: of all nodes together, the same on each",
        letter="G",
        variable="SBATCH_GPUS",
    ),
    Option("constraint", "`--constraint`", letter="C", variable="SBATCH_CONSTRAINT"),
    Option("partition", "`--partition`", letter="p", variable="SBATCH_PARTITION"),
    Option("nodelist", "`--node-selector 'kubernetes.io/hostname in (...)'`", letter="w"),
    Option(
        "exclude",
        "`--node-selector 'kubernetes.io/hostname notin (...)'`",
        letter="x",
        reach=Reach.CARRIED,
    ),
    Option("exclusive", "`--exclusive`", variable="SBATCH_EXCLUSIVE", argument=_OPTIONAL),
    Option("dependency", "`--after`", letter="d", reach=Reach.JOB),
    Option("begin", "`--begin`", letter="b", reach=Reach.JOB),
    Option("deadline", "`--deadline`", reach=Reach.JOB),
    Option(
        "qos",
        "`--priority`: the class of the setting `slurm.qos`",
        letter="q",
        variable="SBATCH_QOS",
        reach=Reach.FIRST,
    ),
    Option("array", "`--array`", letter="a", variable="SBATCH_ARRAY_INX", reach=Reach.JOB),
    Option("chdir", "`--chdir`", letter="D", alias="workdir", reach=Reach.JOB),
    Option("reservation", "`--reservation`", variable="SBATCH_RESERVATION", reach=Reach.JOB),
    Option(
        "signal",
        "a signal before the time limit, or at an earlier end, to all tasks or with B: the script",
        variable="SBATCH_SIGNAL",
        reach=Reach.JOB,
    ),
    Option("output", _FILE, letter="o", variable="SBATCH_OUTPUT", reach=Reach.FIRST),
    Option("error", _FILE, letter="e", variable="SBATCH_ERROR", reach=Reach.FIRST),
    Option("open-mode", _FILE, variable="SBATCH_OPEN_MODE", reach=Reach.FIRST),
    Option("hold", "`--hold`", letter="H", argument=_NONE, reach=Reach.JOB),
    Option(
        "no-requeue",
        "`--no-restart`",
        variable="SBATCH_NO_REQUEUE",
        argument=_NONE,
        reach=Reach.JOB,
    ),
    Option(
        "export",
        "`--env`; ALL is everything that the shell exports, on this machine",
        variable="SBATCH_EXPORT",
        reach=Reach.JOB,
    ),
    Option(
        "mail-type",
        "`--notify` of BEGIN, END, FAIL, REQUEUE or ALL, where mail is sent",
        may_be_empty=True,
        reach=Reach.FIRST,
    ),
    Option("mail-user", "the address of that `--notify`", may_be_empty=True, reach=Reach.FIRST),
    Option(
        "comment",
        "kept in `SLURM_JOB_COMMENT`, and shown by `squeue -o %k` and `sacct`",
        reach=Reach.FIRST,
    ),
    Option("container-image", "`--image`", reach=Reach.CARRIED),
    Option("container-mounts", "`--mount`, one for each", reach=Reach.CARRIED),
    Option("container-workdir", "`--chdir`", reach=Reach.JOB),
)
_NOTED = (
    Option("account", _COUNTING, letter="A", variable="SBATCH_ACCOUNT", reach=Reach.CARRIED),
    Option("wckey", _COUNTING, variable="SBATCH_WCKEY"),
    Option(
        "priority", "the rank of a job is its class: --priority CLASS", variable="SBATCH_PRIORITY"
    ),
    Option("nice", "the rank of a job is its class: --priority CLASS", argument=_OPTIONAL),
    Option("admin-comment", "comments are not kept"),
    Option("verbose", _WORDS, letter="v", variable="SBATCH_DEBUG", argument=_NONE),
    Option("quiet", _WORDS, letter="Q", argument=_NONE),
    Option("parsable", _WORDS, variable="SBATCH_PARSABLE", argument=_NONE),
    Option("requeue", _RESTARTS, variable="SBATCH_REQUEUE", argument=_NONE),
    Option(
        "no-kill",
        "a job that loses a node restarts as a whole",
        letter="k",
        variable="SBATCH_NO_KILL",
        argument=_OPTIONAL,
    ),
    Option("wait-all-nodes", "members start together anyway", variable="SBATCH_WAIT_ALL_NODES"),
    Option(
        "kill-on-invalid-dep",
        "a job that waits in vain is cancelled anyway",
        variable="SBATCH_KILL_INVALID_DEPEND",
    ),
    Option(
        "get-user-env",
        "--export says what comes along",
        variable="SBATCH_GET_USER_ENV",
        argument=_OPTIONAL,
    ),
    Option("time-min", "a job gets the time that it asks for"),
    Option("hint", _CORES, variable="SBATCH_HINT"),
    Option("overcommit", _CORES, letter="O", variable="SBATCH_OVERCOMMIT", argument=_NONE),
    Option("threads-per-core", _CORES, variable="SBATCH_THREADS_PER_CORE"),
    Option("cores-per-socket", _CORES),
    Option("sockets-per-node", _CORES),
    Option("extra-node-info", _CORES, letter="B"),
    Option("ntasks-per-core", _CORES),
    Option("ntasks-per-socket", _CORES),
    Option("ntasks-per-gpu", "srun -n says how many tasks there are"),
    Option("mincpus", "--cpus-per-task says how many CPUs there are"),
    Option("core-spec", _CORES, letter="S", variable="SBATCH_CORE_SPEC"),
    Option("thread-spec", _CORES, variable="SBATCH_THREAD_SPEC"),
    Option(
        "cpu-freq",
        "the clock of a node is as its administrators set it",
        variable="SBATCH_CPU_FREQ_REQ",
    ),
    Option("gpu-freq", "the clock of a node is as its administrators set it"),
    Option("gpu-bind", "tasks see all GPUs of their node", variable="SBATCH_GPU_BIND"),
    Option("gres-flags", _CORES, variable="SBATCH_GRES_FLAGS"),
    Option("mem-bind", _CORES, variable="SBATCH_MEM_BIND", alias="mem_bind"),
    Option(
        "distribution",
        "tasks fill one node after the other",
        letter="m",
        variable="SBATCH_DISTRIBUTION",
    ),
    Option("contiguous", _WISH, argument=_NONE),
    Option("spread-job", _WISH, variable="SBATCH_SPREAD_JOB", argument=_NONE),
    Option("use-min-nodes", _WISH, variable="SBATCH_USE_MIN_NODES", argument=_NONE),
    Option("oversubscribe", "jobs share nodes anyway", letter="s", argument=_NONE, alias="share"),
    Option(
        "switches",
        "--topology LEVEL:preferred=TIME keeps a job together",
        variable="SBATCH_REQ_SWITCH",
    ),
    Option("tmp", "local disk space is not counted"),
    Option("prefer", "--constraint says what a node must have"),
    Option("profile", "there is no profile of a job", variable="SBATCH_PROFILE"),
    Option("acctg-freq", "there is no profile of a job", variable="SBATCH_ACCTG_FREQ"),
    Option("power", _WISH, variable="SBATCH_POWER"),
    Option(
        "propagate",
        "limits of the shell are not taken along",
        variable="SBATCH_PROPAGATE",
        argument=_OPTIONAL,
    ),
    Option("network", _WISH, variable="SBATCH_NETWORK"),
    Option("delay-boot", _WISH, variable="SBATCH_DELAY_BOOT"),
    Option("reboot", _WISH, argument=_NONE),
    Option("mcs-label", "there are no such labels"),
    Option(
        "ignore-pbs", "lines of #PBS are not read", variable="SBATCH_IGNORE_PBS", argument=_NONE
    ),
    Option("container-name", "an image is pulled for each attempt"),
    Option("container-mount-home", "a container has no home of the machine", argument=_NONE),
    Option("no-container-mount-home", "a container has none anyway", argument=_NONE),
    Option("container-writable", "a container can write to its own files", argument=_NONE),
    Option("no-container-entrypoint", "a script runs in place of it anyway", argument=_NONE),
    Option("licenses", "licences are not counted: a job starts while none is free", letter="L"),
    Option("clusters", _CLUSTER, letter="M", variable="SBATCH_CLUSTERS", alias="cluster"),
    Option("cluster-constraint", _CLUSTER),
    Option("ear", _EAR),
    Option("ear-policy", _EAR),
    Option("container-remap-root", "the image says which user it runs as", argument=_NONE),
)
_REFUSED = (
    Option("input", "redirect in the script: program < file", letter="i", variable="SBATCH_INPUT"),
    Option("nodefile", "name the nodes: --nodelist=NODE,NODE", letter="F"),
    Option("export-file", "name the variables: --export=NAME=VALUE", variable="SBATCH_EXPORT_FILE"),
    Option("bb", "there are no burst buffers; copy the data in the script"),
    Option("bbf", "there are no burst buffers; copy the data in the script"),
    Option("container", "name an image: --container-image=IMAGE", variable="SBATCH_CONTAINER"),
    Option("container-id", "name an image: --container-image=IMAGE"),
    Option("environment", "name an image: --container-image=IMAGE"),
    Option("uenv", "name an image: --container-image=IMAGE"),
    Option("tres-per-task", "write --cpus-per-task and --gpus-per-task"),
    Option("wrap", "use fairlead run -- COMMAND"),
    Option(
        "wait",
        "fairlead run waits for the command; fairlead wait JOB for a job",
        letter="W",
        variable="SBATCH_WAIT",
        argument=_NONE,
    ),
    Option(
        "test-only",
        "--dry-run checks everything, says where it fits and stores nothing",
        argument=_NONE,
    ),
    Option("uid", "jobs run as the owner of the cluster's process"),
    Option("gid", "jobs run as the owner of the cluster's process"),
)

OPTIONS: tuple[Option, ...] = (
    *_MAPPED,
    *(replace(option, treatment=OptionTreatment.NOTED) for option in _NOTED),
    *(replace(option, treatment=OptionTreatment.REFUSED) for option in _REFUSED),
)
LONG: dict[str, Option] = {
    name: option for option in OPTIONS for name in (option.name, option.alias) if name
}
SHORT: dict[str, Option] = {option.letter: option for option in OPTIONS if option.letter}


def find_long(name: str) -> Option | None:
    """Return the option of that name, or the one of which it is the only prefix (getopt_long)."""
    if name in LONG:
        return LONG[name]
    found = {LONG[known].name for known in LONG if known.startswith(name)}
    return LONG[found.pop()] if name and len(found) == 1 else None
