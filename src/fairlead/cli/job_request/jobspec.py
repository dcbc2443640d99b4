"""A request and a program become a Job (pure): one role, `worker`, whose members run the program.

Of a heterogeneous job of Slurm each component is a role, `het0`, `het1` and so on, of one gang.

A script travels in a ConfigMap that is mounted in every member, so that later edits of the file do
not change a queued job. Its `#!` line is read here and put in front as the command, since files of
a ConfigMap need not be executable; without one it is run by /bin/sh.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job, JobSpec, Restart, RestartPolicy, Role
from fairlead.api.jobs.job_array import JobArray, JobArraySpec
from fairlead.api.jobs.job_mounts import mount_of, volume_of
from fairlead.api.jobs.run_facts import PARAMETER_PREFIX, RunSource
from fairlead.api.kubernetes import core
from fairlead.api.kubernetes.pod_parts import (
    ConfigMapVolumeSource,
    PodAffinityTerm,
    PodAntiAffinity,
)
from fairlead.api.meta import LabelSelector, LabelSelectorRequirement, ObjectMeta
from fairlead.api.values import quantity
from fairlead.api.values.times import format_time
from fairlead.cli.job_request.batch import Batch
from fairlead.cli.job_request.environment import passed_variables
from fairlead.cli.job_request.flag_groups.array_flag import ArrayRequest
from fairlead.cli.job_request.request import ROLE, JobRequest, Target, clean_name
from fairlead.decide.jobs.rendering.slurm_variables import het_name
from fairlead.member.end_signal import end_signal

SCRIPT_BYTES_MAX = 512 * 1024
SCRIPT_MOUNT = "/etc/fairlead-script"
SCRIPT_VOLUME = "script"
#: The roles of a heterogeneous job are this and the number of the component.
HET_ROLE = "het"
MOUNT_VOLUME = "mount"
CONTAINER = "main"
SHELL = "/bin/sh"
_LAUNCHER = re.compile(r"(?<![\w./-])srun(?![\w.-])")
_STARTS_TASKS = re.compile(r"(?<![\w./-])(?:srun|scontrol|mpirun|mpiexec|prterun)(?![\w.-])")
_WITH_INPUT = 'input=$1; shift; exec "$@" < "$input"'


@dataclass(frozen=True, slots=True)
class Script:
    """A script file: its base name, and its text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Program:
    """What members run: a script with arguments, or a plain command, perhaps with its input."""

    arguments: tuple[str, ...]
    script: Script | None = None
    stdin: Script | None = None
    #: What a job of it is called after, where that is not its first word.
    called: str = ""

    @property
    def file(self) -> Script | None:
        """What travels in the ConfigMap."""
        return self.script or self.stdin


@dataclass(frozen=True, slots=True)
class Origin:
    """Where and by whom it is submitted."""

    directory: str
    user: str
    environment: Mapping[str, str]
    host: str = ""
    #: The code there, where it is recorded.
    source: RunSource | None = None
    #: The code there may be recorded.
    has_source: bool = False
    #: The variables that give options of sbatch a value.
    defaults: Mapping[str, str] = field(default_factory=dict[str, str])


def interpreter(text: str) -> tuple[str, ...]:
    """Return the words of a script's `#!` line, at most interpreter and one argument; else /bin/sh.

    The kernel passes all that follows the interpreter as one argument (execve(2)); so does this.
    """
    first = text.split("\n", 1)[0].rstrip("\r")
    match = re.match(r"^#!\s*(\S+)(?:\s+(.*\S))?\s*$", first)
    if match is None:
        return (SHELL,)
    return (match[1], match[2]) if match[2] else (match[1],)


def literal(text: str) -> str:
    """Return the text so that Kubernetes' expansion of `$(NAME)` and `$$` leaves it as it was."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def script_file(name: str) -> str:
    """Return the key under which a script is kept: its base name made safe for a ConfigMap."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:200] or "script"


def base_name(program: Program) -> str:
    """Return what a job of this program is called before its number."""
    if program.script is not None:
        return clean_name(program.script.name.rsplit(".", 1)[0])
    return clean_name((program.called or program.arguments[0]).rsplit("/", 1)[-1])


def next_name(base: str, taken: Iterable[str]) -> str:
    """Return `base-N`, N being one more than the highest number in use; 1 at first."""
    pattern = re.compile(rf"^{re.escape(base)}-(\d{{1,9}})$")
    numbers = [int(match[1]) for name in taken if (match := pattern.match(name))]
    return f"{base}-{max(numbers, default=0) + 1}"


def config_map_name(job_name: str) -> str:
    """Return the name of the ConfigMap that holds a job's script."""
    return f"{job_name}-script"


def build_script_map(job_name: str, script: Script) -> core.ConfigMap:
    """Return the ConfigMap of a script; the owner is added once the job has a uid."""
    labels = {names.JOB_NAME: job_name, names.MANAGED_BY: "fairlead"}
    meta = ObjectMeta(name=config_map_name(job_name), labels=labels)
    return core.ConfigMap(metadata=meta, data={script_file(script.name): script.text})


def build_job(name: str, request: JobRequest, program: Program, origin: Origin) -> Job:
    """Return the job; `request.target` None means a cluster without local and virtual nodes."""
    roles = tuple(
        Role(
            name=ROLE if not request.further else f"{HET_ROLE}{place}",
            count=each.members,
            min_count=each.members_min,
            template=_role_template(name, _Member(request, place), program, origin),
        )
        for place, each in enumerate(request.components)
    )
    spec = JobSpec(
        roles=roles,
        reservation=request.reservation,
        priority_class_name=request.priority_class,
        priority=request.priority,
        time_limit_seconds=request.time_seconds,
        restart=_restart(request),
        topology=request.topology,
        checkpoint=request.checkpoint,
        preflight=request.preflight,
        after=request.after,
        notify=request.notify,
        not_before=None if request.not_before is None else format_time(request.not_before),
        deadline=None if request.deadline is None else format_time(request.deadline),
        suspend=request.is_held,
    )  # fmt: skip
    annotations = {names.SUBMITTED_BY: origin.user} if origin.user else {}
    annotations |= request.run.annotations(origin.source)
    return Job(metadata=ObjectMeta(name=name, annotations=annotations), spec=spec)


@dataclass(frozen=True, slots=True)
class _Member:
    """The members of one component of a request."""

    whole: JobRequest
    place: int

    @property
    def own(self) -> JobRequest:
        """What this component asks for."""
        return self.whole.components[self.place]


def _role_template(
    name: str, member: _Member, program: Program, origin: Origin
) -> core.PodTemplate:
    """Return the template of the members of a component."""
    request, whole = member.own, member.whole
    named = [(f"{MOUNT_VOLUME}-{i}", mount) for i, mount in enumerate(request.mounts, 1)]
    volumes = [volume_of(mount, volume) for volume, mount in named]
    mounts = [mount_of(mount, volume) for volume, mount in named]
    command = program.arguments
    if program.file is not None:
        source = ConfigMapVolumeSource(name=config_map_name(name))
        volumes.append(core.Volume(name=SCRIPT_VOLUME, config_map=source))
        mounts.append(core.VolumeMount(SCRIPT_VOLUME, SCRIPT_MOUNT, read_only=True))
        path = f"{SCRIPT_MOUNT}/{script_file(program.file.name)}"
        command = (SHELL, "-c", _WITH_INPUT, "sh", path, *command)
        if program.script is not None:
            command = (*interpreter(program.script.text), path, *program.arguments)
            if runs_once(whole, program.script):
                command = (*_batch_command(whole), *command)
    command = tuple(_with_parameters(literal(word), whole) for word in command)
    container = core.Container(
        name=CONTAINER,
        image=request.image,
        command=command,
        working_dir=_working_directory(whole, origin),
        env=_environment(member, origin, program.file.name if program.file else ""),
        resources=_resources(request),
        volume_mounts=tuple(mounts),
    )
    return _template(member, container, tuple(volumes), _notes(member, program))


def _with_parameters(word: str, request: JobRequest) -> str:
    """Return the word with the variable of a parameter in place of `{name}`; `${name}` is the
    shell's.
    """
    swept = request.array.parameters if request.array is not None else ()
    for name in (*dict(request.run.parameters), *dict(swept)):
        word = re.sub(rf"(?<!\$)\{{{name}\}}", f"$({PARAMETER_PREFIX}{name})", word)
    return word


def runs_once(request: JobRequest, script: Script) -> bool:
    """True for a batch script of Slurm that the first member alone runs, and that has srun.

    One of a single node that starts no tasks runs as it is, so that its image needs no Python; one
    that starts our mpirun without srun runs in every member.
    """
    batch = request.batch
    if batch is None or (names.MPIRUN in script.text and not _LAUNCHER.search(script.text)):
        return False
    has_files = request.target is Target.LOCAL and bool(batch.output or batch.error)
    starts_tasks = _STARTS_TASKS.search(script.text) is not None
    return request.member_count > 1 or bool(batch.signal) or has_files or starts_tasks


def where_it_runs(request: JobRequest, script: Script) -> str:
    """Return the note on a batch script of several nodes that starts nothing on them."""
    if request.batch is None or request.member_count == 1:
        return ""
    if not runs_once(request, script):
        return "the script runs in every member, since it starts mpirun without srun"
    if _STARTS_TASKS.search(script.text):
        return ""
    return f"the first of the {request.member_count} nodes runs the script, and it calls no srun"


def files_note(request: JobRequest) -> str:
    """Return the note on files of --output and --error that nobody would see; "" for none."""
    batch = request.batch
    if batch is None or request.target is Target.LOCAL or not (batch.output or batch.error):
        return ""
    return "--output and --error have no effect: logs are kept by the cluster: fairlead logs JOB"


def _batch_command(request: JobRequest) -> tuple[str, ...]:
    """Return what runs a batch script in each member, up to the script's own command."""
    assert request.batch is not None
    python = sys.executable if request.target is Target.LOCAL else "python3"
    words = [python, "-m", names.BATCH]
    batch = request.batch
    if request.target is Target.LOCAL:  # files in a container are gone with it
        files = (("--output", batch.output), ("--error", batch.error))
        words += [word for flag, pattern in files if pattern for word in (flag, pattern)]
        words += ["--open-mode", "append"] if batch.appends else []
    if request.batch.signal:
        words += ["--signal", request.batch.signal]
        words += [] if request.time_seconds is None else ["--time", str(request.time_seconds)]
    return (*words, "--")


def build_array(job: Job, array: ArrayRequest) -> JobArray:
    """Return the array whose elements are like a job, which has its name; one of a held job is held
    as a whole.
    """
    spec = JobArraySpec(
        indices=array.indices,
        template=replace(job.spec, suspend=False),
        parallelism=array.parallelism,
        parameters=dict(array.parameters),
        early_stop=array.early_stop,
        suspend=job.spec.suspend,
    )
    return JobArray(metadata=job.metadata, spec=spec)


def _restart(request: JobRequest) -> Restart:
    if not request.restarts:
        return Restart(policy=RestartPolicy.NEVER)
    return Restart(limit=request.retries)


def to_manifest(work: Job | JobArray) -> dict[str, Any]:
    """Return a job or an array as it goes over the wire, with apiVersion and kind, without a
    status.
    """
    body = msgspec.to_builtins(work)
    body.pop("status", None)
    return {"apiVersion": names.API_VERSION, "kind": type(work).__name__, **body}


def _template(
    member: _Member,
    container: core.Container,
    volumes: tuple[core.Volume, ...],
    annotations: dict[str, str],
) -> core.PodTemplate:
    request = member.own
    selector: dict[str, str] = {}
    tolerations: tuple[core.Toleration, ...] = ()
    if request.target in (Target.LOCAL, Target.VIRTUAL):
        selector = {names.NODE_TYPE: request.target.value}
    if request.target in (Target.LOCAL, Target.ANY):
        tolerations = (core.Toleration(key=names.TAINT_LOCAL, operator="Exists"),)
    spec = core.PodSpec(
        containers=(container,),
        volumes=volumes,
        node_selector={**selector, **dict(request.node_selector)},
        affinity=_affinity(request, shares_machine=shares_machine(member.whole)),
        tolerations=tolerations,
        restart_policy="Never",
        termination_grace_period_seconds=_grace_seconds(member.whole),
    )
    return core.PodTemplate(metadata=ObjectMeta(annotations=annotations), spec=spec)


def _grace_seconds(request: JobRequest) -> int | None:
    """Return the grace period of a script that asks for a signal before its end; None: as usual."""
    asked = request.batch.signal if request.batch is not None else ""
    return end_signal(asked).grace_seconds if asked else None


def shares_machine(request: JobRequest) -> bool:
    """True where members cannot keep apart: all are on this machine."""
    return request.target is Target.LOCAL and request.member_count > 1


def _affinity(request: JobRequest, *, shares_machine: bool) -> core.Affinity | None:
    """Return which nodes a member may have, and which pods it keeps away from.

    The uid, which a template cannot name, distinguishes members of one job from those of others;
    those of two components may be on one node, as with Slurm.
    """
    nodes = None
    if request.node_requirements or request.node_choices:
        terms = tuple(
            core.NodeSelectorTerm((*request.node_requirements, *choice))
            for choice in request.node_choices or ((),)
        )
        rather = tuple(
            core.PreferredSchedulingTerm(max(1, 100 - place), core.NodeSelectorTerm(choice))
            for place, choice in enumerate(request.node_choices)
        )
        nodes = core.NodeAffinity(required=core.NodeSelector(terms), preferred=rather)
    apart: tuple[PodAffinityTerm, ...] = ()
    any_job = LabelSelector(match_expressions=(LabelSelectorRequirement(names.JOB_NAME, "Exists"),))
    if request.is_exclusive and not shares_machine:
        term = PodAffinityTerm(names.HOSTNAME, any_job, namespace_selector=LabelSelector())
        apart = (term,)
    elif request.one_per_node and request.members > 1 and not shares_machine:
        of_jobs = LabelSelector(
            match_expressions=(LabelSelectorRequirement(names.JOB_NAME, "Exists"),)
        )
        same = (names.JOB_UID, names.ROLE)
        apart = (PodAffinityTerm(names.HOSTNAME, of_jobs, match_label_keys=same),)
    if nodes is None and not apart:
        return None
    return core.Affinity(nodes, PodAntiAffinity(apart) if apart else None)


def _notes(member: _Member, program: Program) -> dict[str, str]:
    """Return the annotations of the pods. A script is read here: the cluster sees its name only."""
    request = member.own
    notes: dict[str, str] = {}
    if request.simulate_seconds is not None:
        notes[names.SIMULATE_SECONDS] = f"{request.simulate_seconds:g}"
    if request.batch is not None:
        notes[names.SLURM_TASKS] = request.batch.annotation
    script = program.script
    if script is not None and (names.MPIRUN in script.text or runs_once(member.whole, script)):
        notes[names.MPI] = "true"
    return notes


def _working_directory(request: JobRequest, origin: Origin) -> str:
    if request.target is Target.LOCAL or request.target is Target.ANY:
        return request.chdir or origin.directory
    return request.chdir or ""


def _slurm_variables(batch: Batch, origin: Origin, base: str) -> dict[str, str]:
    """Return Slurm's variables that are known at submission."""
    return {
        "SLURM_JOB_NAME": base,
        "SLURM_SUBMIT_DIR": origin.directory,
        "SLURM_SUBMIT_HOST": origin.host,
        "SLURM_JOB_USER": origin.user,
        **dict(batch.variables),
    }


def _component_variables(request: JobRequest) -> dict[str, str]:
    """Return the variables that say what was asked for of each component of a heterogeneous job."""
    return {
        het_name(name, place): value
        for place, each in enumerate(request.components if request.further else ())
        for name, value in (each.batch.variables if each.batch is not None else ())
    }


def _environment(member: _Member, origin: Origin, base: str) -> tuple[core.EnvVar, ...]:
    request = member.own
    out: dict[str, str] = {}
    if request.target is Target.LOCAL or request.target is Target.ANY:
        exports_all = request.batch is not None and request.batch.exports_all
        out = dict(passed_variables(origin.environment, exports_all=exports_all))
    if request.batch is not None:
        out.update(_slurm_variables(request.batch, origin, base))
        if member.place == 0:  # where the script runs
            out.update(_component_variables(member.whole))
    out.update(request.env)
    out.update(request.run.variables)
    return tuple(core.EnvVar(name=name, value=literal(value)) for name, value in out.items())


def _resources(request: JobRequest) -> core.ResourceRequirements:
    amounts: dict[str, str | int | float] = {
        quantity.CPU: quantity.format_base(quantity.CPU, request.cpu_millis)
    }
    if request.memory_bytes is not None:
        amounts[quantity.MEMORY] = quantity.format_base(quantity.MEMORY, request.memory_bytes)
    if request.gpus:
        amounts[request.gpu_resource] = str(request.gpus)
    limits = {key: value for key, value in amounts.items() if key != quantity.CPU}
    return core.ResourceRequirements(requests=amounts, limits=limits)
