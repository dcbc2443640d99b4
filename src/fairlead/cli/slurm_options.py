"""Every option of sbatch, and what becomes of it here: the one table of them (pure).

The reader of `#SBATCH` lines, the answers to Slurm's flags and the reference page are made from
OPTIONS. An option is mapped (it means the same here), noted (it names a place or a wish, and the
job's result does not depend on it), or refused (without it the result would be another one).

Source: the manual of sbatch of Slurm 25.05; `src/common/slurm_opt.c` for letters, aliases and the
variables that give options a default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Treatment(Enum):
    """What becomes of an option; the value is the word in the reference."""

    MAPPED = "mapped"
    NOTED = "noted"
    REFUSED = "refused"


class Argument(Enum):
    """Whether an option takes a value; an optional one is attached with `=`."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `words` say what it becomes, why it has no effect, or what to write instead."""

    name: str
    treatment: Treatment
    words: str
    letter: str = ""
    argument: Argument = Argument.REQUIRED
    #: The variable that gives it a value where neither script nor command line does.
    variable: str = ""
    alias: str = ""

    @property
    def shown(self) -> str:
        """The option as people write it."""
        return f"--{self.name}"


_MAIL = "no mail is sent"
_LOGS = "logs are kept by the cluster: fairlead logs JOB"
_WORDS = "it only changes sbatch's own words"
_CORES = "CPUs are not bound to tasks; the cores of a node are not told apart"
_COUNTING = "nothing is charged by it; the team of a job follows from its namespace"
_WISH = "it is a wish about placement that has no equal here"
_RESTARTS = "jobs restart after the failure of a node anyway; --retries N covers their own"
_NONE, _OPTIONAL, _REQUIRED = Argument.NONE, Argument.OPTIONAL, Argument.REQUIRED


def _mapped() -> Iterator[Option]:
    def option(
        name: str, words: str, letter: str = "", variable: str = "",
        argument: Argument = _REQUIRED, alias: str = "",
    ) -> Option:  # fmt: skip
        return Option(name, Treatment.MAPPED, words, letter, argument, variable, alias)

    yield option("job-name", "`--name`", "J", "SBATCH_JOB_NAME")
    yield option("time", "`--time`; 0 and UNLIMITED: no limit", "t", "SBATCH_TIMELIMIT")
    yield option("nodes", "`--nodes`, on as many distinct nodes", "N")
    yield option("ntasks", "tasks of all nodes together, started by `srun`", "n", "SBATCH_NTASKS")
    yield option("ntasks-per-node", "tasks of each node", variable="SBATCH_NTASKS_PER_NODE",
                 alias="tasks-per-node")  # fmt: skip
    yield option("cpus-per-task", "`--cpus`: of each task, times the tasks of a node", "c",
                 "SBATCH_CPUS_PER_TASK")  # fmt: skip
    yield option("cpus-per-gpu", "`--cpus`: of each GPU, times the GPUs of a node",
                 variable="SBATCH_CPUS_PER_GPU")  # fmt: skip
    yield option("mem", "`--memory` of each node; 0: all of it, which no other job shares",
                 variable="SBATCH_MEM_PER_NODE")  # fmt: skip
    yield option("mem-per-cpu", "`--memory`: of each CPU, times the CPUs of a node",
                 variable="SBATCH_MEM_PER_CPU")  # fmt: skip
    yield option("mem-per-gpu", "`--memory`: of each GPU, times the GPUs of a node",
                 variable="SBATCH_MEM_PER_GPU")  # fmt: skip
    yield option("gres", "`--gpus [TYPE:]N`, of each node", variable="SBATCH_GRES")
    yield option("gpus-per-node", "`--gpus [TYPE:]N`", variable="SBATCH_GPUS_PER_NODE")
    yield option("gpus-per-task", "`--gpus`: of each task, times the tasks of a node",
                 variable="SBATCH_GPUS_PER_TASK")  # fmt: skip
    yield option("gpus", "`--gpus`: of all nodes together, the same on each", "G", "SBATCH_GPUS")
    yield option("constraint", "`--constraint`", "C", "SBATCH_CONSTRAINT")
    yield option("partition", "`--partition`", "p", "SBATCH_PARTITION")
    yield option("nodelist", "`--node-selector 'kubernetes.io/hostname in (...)'`", "w")
    yield option("exclude", "`--node-selector 'kubernetes.io/hostname notin (...)'`", "x")
    yield option("exclusive", "`--exclusive`", "", "SBATCH_EXCLUSIVE", _OPTIONAL)
    yield option("dependency", "`--after`", "d")
    yield option("array", "`--array`", "a", "SBATCH_ARRAY_INX")
    yield option("chdir", "`--chdir`", "D", alias="workdir")
    yield option("reservation", "`--reservation`", "", "SBATCH_RESERVATION")
    yield option("hold", "`--hold`", "H", argument=_NONE)
    yield option("no-requeue", "`--no-restart`", "", "SBATCH_NO_REQUEUE", _NONE)
    yield option("export", "`--env`; ALL is everything that the shell exports, on this machine",
                 variable="SBATCH_EXPORT")  # fmt: skip
    yield option("container-image", "`--image`")
    yield option("container-mounts", "`--mount`, one for each")
    yield option("container-workdir", "`--chdir`")


def _noted() -> Iterator[Option]:
    def option(
        name: str, words: str, letter: str = "", variable: str = "",
        argument: Argument = _REQUIRED, alias: str = "",
    ) -> Option:  # fmt: skip
        return Option(name, Treatment.NOTED, words, letter, argument, variable, alias)

    yield option("output", _LOGS, "o", "SBATCH_OUTPUT")
    yield option("error", _LOGS, "e", "SBATCH_ERROR")
    yield option("open-mode", _LOGS, variable="SBATCH_OPEN_MODE")
    yield option("mail-type", _MAIL)
    yield option("mail-user", _MAIL)
    yield option("account", _COUNTING, "A", "SBATCH_ACCOUNT")
    yield option("wckey", _COUNTING, variable="SBATCH_WCKEY")
    yield option("qos", "the rank of a job is its class: --priority CLASS", "q", "SBATCH_QOS")
    yield option("priority", "the rank of a job is its class: --priority CLASS",
                 variable="SBATCH_PRIORITY")  # fmt: skip
    yield option("nice", "the rank of a job is its class: --priority CLASS", "", "", _OPTIONAL)
    yield option("comment", "comments are not kept")
    yield option("admin-comment", "comments are not kept")
    yield option("verbose", _WORDS, "v", "SBATCH_DEBUG", _NONE)
    yield option("quiet", _WORDS, "Q", argument=_NONE)
    yield option("parsable", _WORDS, "", "SBATCH_PARSABLE", _NONE)
    yield option("requeue", _RESTARTS, "", "SBATCH_REQUEUE", _NONE)
    yield option("no-kill", "a job that loses a node restarts as a whole", "k", "SBATCH_NO_KILL",
                 _OPTIONAL)  # fmt: skip
    yield option("wait-all-nodes", "members start together anyway",
                 variable="SBATCH_WAIT_ALL_NODES")  # fmt: skip
    yield option("kill-on-invalid-dep", "a job that waits in vain is cancelled anyway",
                 variable="SBATCH_KILL_INVALID_DEPEND")  # fmt: skip
    yield option("get-user-env", "--export says what comes along", "", "SBATCH_GET_USER_ENV",
                 _OPTIONAL)  # fmt: skip
    yield option("time-min", "a job gets the time that it asks for")
    yield option("hint", _CORES, variable="SBATCH_HINT")
    yield option("overcommit", _CORES, "O", "SBATCH_OVERCOMMIT", _NONE)
    yield option("threads-per-core", _CORES, variable="SBATCH_THREADS_PER_CORE")
    yield option("cores-per-socket", _CORES)
    yield option("sockets-per-node", _CORES)
    yield option("extra-node-info", _CORES, "B")
    yield option("ntasks-per-core", _CORES)
    yield option("ntasks-per-socket", _CORES)
    yield option("ntasks-per-gpu", "srun -n says how many tasks there are")
    yield option("mincpus", "--cpus-per-task says how many CPUs there are")
    yield option("core-spec", _CORES, "S", "SBATCH_CORE_SPEC")
    yield option("thread-spec", _CORES, variable="SBATCH_THREAD_SPEC")
    yield option("cpu-freq", "the clock of a node is as its administrators set it",
                 variable="SBATCH_CPU_FREQ_REQ")  # fmt: skip
    yield option("gpu-freq", "the clock of a node is as its administrators set it")
    yield option("gpu-bind", "tasks see all GPUs of their node",
                 variable="SBATCH_GPU_BIND")  # fmt: skip
    yield option("gres-flags", _CORES, variable="SBATCH_GRES_FLAGS")
    yield option("mem-bind", _CORES, variable="SBATCH_MEM_BIND")
    yield option("distribution", "tasks fill one node after the other", "m", "SBATCH_DISTRIBUTION")
    yield option("contiguous", _WISH, argument=_NONE)
    yield option("spread-job", _WISH, "", "SBATCH_SPREAD_JOB", _NONE)
    yield option("use-min-nodes", _WISH, "", "SBATCH_USE_MIN_NODES", _NONE)
    yield option("oversubscribe", "jobs share nodes anyway", "s", argument=_NONE, alias="share")
    yield option("switches", "--topology LEVEL:preferred=TIME keeps a job together",
                 variable="SBATCH_REQ_SWITCH")  # fmt: skip
    yield option("tmp", "local disk space is not counted")
    yield option("prefer", "--constraint says what a node must have")
    yield option("profile", "there is no profile of a job", variable="SBATCH_PROFILE")
    yield option("acctg-freq", "there is no profile of a job", variable="SBATCH_ACCTG_FREQ")
    yield option("power", _WISH, variable="SBATCH_POWER")
    yield option("propagate", "limits of the shell are not taken along", "", "SBATCH_PROPAGATE",
                 _OPTIONAL)  # fmt: skip
    yield option("network", _WISH, variable="SBATCH_NETWORK")
    yield option("delay-boot", _WISH, variable="SBATCH_DELAY_BOOT")
    yield option("reboot", _WISH, argument=_NONE)
    yield option("mcs-label", "there are no such labels")
    yield option("ignore-pbs", "lines of #PBS are not read", "", "SBATCH_IGNORE_PBS", _NONE)
    yield option("container-name", "an image is pulled for each attempt")
    yield option("container-mount-home", "a container has no home of the machine", argument=_NONE)
    yield option("no-container-mount-home", "a container has none anyway", argument=_NONE)
    yield option("container-writable", "a container can write to its own files", argument=_NONE)
    yield option("container-remap-root", "the image says which user it runs as", argument=_NONE)


def _refused() -> Iterator[Option]:
    def option(
        name: str, words: str, letter: str = "", argument: Argument = _REQUIRED, alias: str = "",
        variable: str = "",
    ) -> Option:  # fmt: skip
        return Option(name, Treatment.REFUSED, words, letter, argument, variable, alias)

    yield option("begin", "submit it with --hold and let it start with: fairlead release JOB", "b")
    yield option("deadline", "use --time DURATION, the longest run time")
    yield option("signal", "members get SIGTERM, and the grace period of the pod, before SIGKILL",
                 variable="SBATCH_SIGNAL")  # fmt: skip
    yield option("licenses", "there are no licences to count", "L")
    yield option("clusters", "choose the cluster with --context", "M", alias="cluster",
                 variable="SBATCH_CLUSTERS")  # fmt: skip
    yield option("cluster-constraint", "choose the cluster with --context")
    yield option("input", "redirect in the script: program < file", "i", variable="SBATCH_INPUT")
    yield option("nodefile", "name the nodes: --nodelist=NODE,NODE", "F")
    yield option("export-file", "name the variables: --export=NAME=VALUE",
                 variable="SBATCH_EXPORT_FILE")  # fmt: skip
    yield option("bb", "there are no burst buffers; copy the data in the script")
    yield option("bbf", "there are no burst buffers; copy the data in the script")
    yield option("container", "name an image: --container-image=IMAGE",
                 variable="SBATCH_CONTAINER")  # fmt: skip
    yield option("container-id", "name an image: --container-image=IMAGE")
    yield option("tres-per-task", "write --cpus-per-task and --gpus-per-task")
    yield option("wrap", "use fairlead run -- COMMAND")
    yield option("wait", "fairlead run waits for the command; fairlead wait JOB for a job", "W",
                 _NONE, variable="SBATCH_WAIT")  # fmt: skip
    yield option("test-only", "--dry-run checks everything, says where it fits and stores nothing",
                 argument=_NONE)  # fmt: skip
    yield option("uid", "jobs run as the owner of the cluster's process")
    yield option("gid", "jobs run as the owner of the cluster's process")


OPTIONS: tuple[Option, ...] = (*_mapped(), *_noted(), *_refused())
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
