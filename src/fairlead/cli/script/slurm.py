"""What people who know Slurm write, and what does it here (pure).

Commands and their flags are answered with ours; sbatch's flags by the tables that also read
`#SBATCH` lines. Of a script's body, the variables are noted that Slurm would set.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from fairlead.cli.script.slurm_options import LONG, SHORT, OptionTreatment

COMMANDS = {
    "sbatch": "fairlead submit SCRIPT reads its #SBATCH lines",
    "srun": "fairlead run -- COMMAND; a script with #SBATCH lines has srun",
    "salloc": "fairlead run --pty -- bash; fairlead slurm install DIR has salloc itself",
    "squeue": "fairlead ps; fairlead why JOB explains why one waits",
    "sinfo": "fairlead nodes",
    "scancel": "fairlead cancel JOB",
    "sacct": "fairlead history",
    "scontrol": "fairlead hold, release, requeue, update or why, each with JOB",
    "sattach": "fairlead logs -f JOB",
    "sprio": "fairlead ps -o wide shows priorities, fairlead why JOB its place in the queue",
    "sreport": "fairlead usage --by team,user",
    "seff": "fairlead eff JOB",
    "sstat": "fairlead top",
}

#: Slurm's states of jobs, and ours.
STATES = {
    "PENDING": "Waiting", "PD": "Waiting", "R": "Running", "CONFIGURING": "Starting",
    "COMPLETING": "Stopping", "COMPLETED": "Succeeded", "CD": "Succeeded", "F": "Failed",
    "CA": "Cancelled", "TIMEOUT": "Failed", "NODE_FAIL": "Restarting", "PREEMPTED": "Restarting",
    "SUSPENDED": "Held", "REQUEUED": "Restarting", "OUT_OF_MEMORY": "Failed",
}  # fmt: skip

_MOUNT = "--mount SOURCE:PATH, such as --mount claim:data:/data:ro"
#: Of sbatch, of its containers (pyxis) and of docker.
_SUBMIT = {
    "container-image": "--image IMAGE",
    "container-mounts": _MOUNT,
    "container-workdir": "--chdir DIR",
    "volume": _MOUNT,
    "test-only": "--dry-run checks everything, says where it fits and stores nothing",
    "parsable": "leave it out: stdout has the id of the job and nothing else",
    "wait": "fairlead run waits for the command; fairlead wait JOB for a job",
}
_RUN = {
    "-i": "--pty gives the command this terminal; a file is given to it: fairlead run ... < FILE",
    "-t": "--pty gives the command this terminal; --time DURATION is its time limit",
    "--interactive": "--pty gives the command this terminal",
}
_WIDE = "-o wide shows more columns; -o json everything"
#: Of each command: Slurm's flags, long and short, and what to write.
_FLAGS: dict[str, dict[tuple[str, ...], str]] = {
    "ps": {
        ("-t", "--states"): "--state STATE: Waiting, Running, Held, ...",
        ("--start",): "fairlead why JOB says when it may start",
        ("-i", "--iterate"): "--watch",
        ("--nodelist",): "--node NODE",
        ("-S",): "--sort COLUMN",
        ("-j", "--job", "--jobs"): "fairlead why JOB",
        ("-p", "--partition"): "there are no partitions; -n NAMESPACE, or -A for all namespaces",
        ("--format", "-O", "--Format"): _WIDE,
        ("-h", "--noheader"): "--no-headers",
    },
    "cancel": {
        ("-t",): "--state STATE",
        ("--jobname",): "--name PATTERN, or the name itself",
        ("-s", "--signal"): "members get SIGTERM, and SIGKILL after their grace period; there is "
        "no other signal",
    },
    "nodes": {
        ("--list-reasons",): "-R, or --reasons",
        ("-N", "--Node", "--long"): _WIDE,
        ("-p", "--partition"): "-l fairlead.dev/pool=NAME",
        ("-t", "--states"): "the column STATE has it",
    },
    "update": {
        ("--priority", "--qos"): "fairlead priority JOB CLASS",
        ("-N", "--nodes", "--members", "--gpus", "--cpus", "--memory"): "what a job asks for stays "
        "as it is: fairlead why JOB --if nodes=N finds the size that fits; cancel and submit it",
    },
    "history": {
        ("-j", "--jobs"): "fairlead history JOB",
        ("-S", "--starttime"): "--since DURATION, such as 7d",
        ("-s",): "--state STATE: Succeeded, Failed or Cancelled",
        ("-l", "--long", "--format"): _WIDE,
    },
}

#: Variables of Slurm, and where the same stands here.
_VARIABLES = {
    "SLURM_PROCID": "RANK",
    "SLURM_NODEID": "NODE_RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_NPROCS": "WORLD_SIZE",
    "SLURM_NNODES": "WORLD_SIZE",
    "SLURM_JOB_NUM_NODES": "WORLD_SIZE",
    "SLURM_JOB_NAME": "FAIRLEAD_JOB",
    "SLURM_ARRAY_JOB_ID": "FAIRLEAD_JOB",
    "SLURM_JOB_NODELIST": "FAIRLEAD_HOSTFILE",
    "SLURM_NODELIST": "FAIRLEAD_HOSTFILE",
    "SLURM_LAUNCH_NODE_IPADDR": "MASTER_ADDR",
    "SLURM_RESTART_COUNT": "FAIRLEAD_ATTEMPT",
    "SLURM_SUBMIT_DIR": "PWD",
}
_VARIABLE = re.compile(r"\bSLURM_\w+")
#: A shell's expansion with a default, or an assignment: right without Slurm, too.
_HAS_VALUE = re.compile(r"\$\{SLURM_\w+:?[-=][^}]*\}|\bSLURM_\w+=")
_SRUN = re.compile(r"\s*(?:(?:exec|time|nohup)\s+)*srun\s+(?!\()")
_MODULE = re.compile(
    r"\s*(?:module|ml)\s+(?:load|add|purge|restore|swap|unload|use|[\w.+-]+/[\w.+-]+)\b"
)
#: What defines the commands that the line above finds: a login shell, or a file that is sourced.
_MODULE_DEFINED = re.compile(
    r"\A#!.*\s(?:-\w*l\w*|--login)\b|^\s*(?:\.|source)\s.*(?:module|lmod|profile)|\bmodule\s*\(\)",
    re.IGNORECASE | re.MULTILINE,
)
_SRUN_DEFINED = re.compile(r"\bsrun\s*\(\)|\balias\s+srun=")


def flag_help(command: str, flag: str) -> str:
    """Return what a flag of Slurm's command is here; "" for one that Slurm does not have."""
    if command not in ("submit", "run"):
        found = (text for flags, text in _FLAGS.get(command, {}).items() if flag in flags)
        return next(found, "")
    if command == "run" and flag in _RUN:
        return _RUN[flag]
    option = LONG.get(flag[2:]) if flag.startswith("--") else SHORT.get(flag[1:])
    name = option.name if option is not None else flag[2:]
    if name in _SUBMIT:
        return _SUBMIT[name]
    if option is None:
        return ""
    match option.treatment:
        case OptionTreatment.MAPPED:
            return f"sbatch's {option.shown} is {option.words.replace('`', '')} here"
        case OptionTreatment.NOTED:
            return f"leave it out: {option.words}"
        case OptionTreatment.REFUSED:
            return option.words


def variable_notes(
    text: str, *, file: str, given: Collection[str], unset: Collection[str] = ()
) -> Iterator[str]:
    """Yield a note on each variable of Slurm that a script reads and nothing sets.

    `given` are the variables that the job gets beside Fairlead's own, `unset` those of Fairlead
    that it does not get: srun alone sets them, for its tasks.
    """
    seen = set(given)
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        seen.update(name for part in _HAS_VALUE.findall(line) for name in _VARIABLE.findall(part))
        for name in _VARIABLE.findall(line):
            if name not in seen:
                seen.add(name)
                here = _VARIABLES.get(name)
                what = f"${here} has it here" if here else f"--env {name}=VALUE sets it"
                if here in unset:
                    what = "srun sets it, for each task that it starts"
                yield f"{file}:{number}: ${name} is not set: {what}"


def module_note(text: str, *, file: str) -> str:
    """Return the note on a script for a container that loads modules of a site; "" for none."""
    if _MODULE_DEFINED.search(text):
        return ""
    lines = enumerate(text.splitlines(), 1)
    number = next((number for number, line in lines if _MODULE.match(line)), None)
    if number is None:
        return ""
    return (
        f"{file}:{number}: module is a command of the login shells of a site: software comes with "
        "the image (--image), or the script sources what defines it"
    )


def srun_line(text: str) -> int | None:
    """Return the number of the first line of a script that calls srun; None without one."""
    if _SRUN_DEFINED.search(text):
        return None
    lines = enumerate(text.splitlines(), 1)
    return next((number for number, line in lines if _SRUN.match(line)), None)
