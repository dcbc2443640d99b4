"""`defrag`: which running gangs would move to free a block of nodes, and the request to do it."""

from __future__ import annotations

import click

from fairlead.api.jobs.job import Job, JobSpec, JobStatus, PodTemplate, Role
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Container, PodSpec, ResourceRequirements
from fairlead.api.meta import ObjectMeta
from fairlead.api.names import DEFRAGMENT
from fairlead.api.resources import JOBS
from fairlead.api.values import quantity
from fairlead.api.values.times import format_time
from fairlead.cli.cluster.cluster_settings import settings_or_defaults
from fairlead.cli.cluster.lookup import find_job
from fairlead.cli.cluster.objects import read_objects, read_state
from fairlead.cli.connection.common import Common, common, now
from fairlead.cli.connection.completers import complete_jobs
from fairlead.cli.job_request.job_names import clean_reference
from fairlead.cli.views.moves import moves_facts, moves_text
from fairlead.decide.answers.block_moves import find_moves
from fairlead.decide.placement.places.whatif import largest_shape
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.input.errors import Code, Exit, fail
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.phase import Phase, phase_of

#: Name of the block that is asked about by its size: no name that a job can have.
_BLOCK = "~block"


@click.command(
    epilog="""Examples:

    \b
      fairlead defrag --nodes 4 --topology rack
      fairlead defrag train-1
      fairlead defrag train-1 --apply
    """
)
@click.argument("job", metavar="[JOB]", required=False, default="", shell_complete=complete_jobs)
@click.option("--nodes", metavar="N", type=click.IntRange(1, 100_000),
              help="Ask about a block of so many whole nodes.")  # fmt: skip
@click.option("--topology", metavar="LEVEL", default="",
              help="All nodes of the block in one domain of this level.")  # fmt: skip
@click.option("--priority", metavar="CLASS", default="",
              help="Only gangs of at most this class move for the block.")  # fmt: skip
@click.option("--apply", "applies", is_flag=True,
              help="Request the moves for JOB; without it nothing is changed.")  # fmt: skip
@common()
def defrag(
    common_: Common, *, job: str, nodes: int | None, topology: str, priority: str, applies: bool
) -> int:
    """Show which gangs would move to free nodes.

    For a waiting job, or for a block of whole nodes; with the work that is lost. A gang that moves
    saves a checkpoint, ends, and starts again on nodes that are reserved for it, which counts
    against no limit. Gangs move only after placement.moveMinRunSeconds and for a job of no lower
    priority, at most placement.movesMax of them.

    With --apply the scheduler does it for JOB: it computes the moves again, and does nothing unless
    placement.defragmentsOnRequest is set. Only administrators may request it.
    """
    if (
        bool(job) == (nodes is not None)
        or (applies and not job)
        or (job and (topology or priority))
    ):
        raise fail(
            Code.BAD_COMBINATION, "name a waiting JOB, or --nodes N; --apply needs a JOB",
            help=("fairlead defrag JOB --apply", "fairlead defrag --nodes 4 --topology rack"),
        )  # fmt: skip
    api, instant = common_.connect(), now()
    settings = settings_or_defaults(common_, api)
    cluster = read_state(read_objects(api), settings.levels(), instant)
    space = common_.space(api.connection.namespace)
    if job:
        found = find_job(api, space, clean_reference(job))
        if phase_of(found) is not Phase.QUEUED:
            text, help_ = "does not wait for a place", f"fairlead why {found.metadata.name}"
            raise fail(Code.BAD_VALUE, f"job {found.metadata.name} {text}", help=(help_,))
    else:
        found = _block(cluster, nodes or 1, topology, priority, at=instant, space=space)
        cluster.job_changed(found)
    state = PlacementState(cluster)
    key = found.metadata.key
    moves, retry_at = find_moves(state, key, settings.placement_policy(), instant)
    if common_.is_structured:
        common_.data(moves_facts(state, moves))
    else:
        common_.emit(moves_text(state, moves, retry_at - instant))
    if applies and moves is not None and moves.moves:
        body = {"metadata": {"annotations": {DEFRAGMENT: "true"}}}
        api.patch(JOBS, key[1], body, namespace=key[0])
        common_.note(f"requested; fairlead why {key[1]} shows how far it is")
    if applies and not settings.placement.defragments_on_request:
        common_.note("note: placement.defragmentsOnRequest is not set, so nothing moves")
    return Exit.OK if moves is not None else Exit.FAILED


def _block(
    cluster: ClusterState, nodes: int, level: str, priority: str, *, at: float, space: str
) -> Job:
    """Return a waiting job of whole nodes: of all GPUs of the largest one, or its CPUs without."""
    shape = largest_shape(cluster)
    resource = quantity.GPU if shape.get(quantity.GPU) else quantity.CPU
    amount = quantity.humanize(resource, shape.get(resource, 0))
    container = Container(name="block", resources=ResourceRequirements({resource: amount}))
    role = Role("block", PodTemplate(spec=PodSpec(containers=(container,))), nodes)
    meta = ObjectMeta(
        name=_BLOCK, namespace=space, uid=_BLOCK, creation_timestamp=format_time(at),
        resource_version="1",
    )  # fmt: skip
    topology = Topology(level, required=True) if level else None
    spec = JobSpec(roles=(role,), topology=topology, priority_class_name=priority)
    return Job(metadata=meta, spec=spec, status=JobStatus(attempt=1))
