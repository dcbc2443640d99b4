"""`why`: the planner's own explanation of a job, asked on the state that the API shows."""

from __future__ import annotations

import click

from fairlead.cli.common import Common, Format, common, dump, now
from fairlead.cli.completers import complete_jobs
from fairlead.cli.embedded import is_embedded
from fairlead.cli.errors import Exit
from fairlead.cli.fit import read_state
from fairlead.cli.lookup import clean_reference, find_job
from fairlead.cli.views.why import why_facts, why_text
from fairlead.decide.explain import explain


@click.command(
    epilog="""Examples:

    \b
      fairlead why train-1
      fairlead why train-1 -o json
    """
)
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@common()
def why(common_: Common, *, job: str) -> int:
    """Explain why a job waits, or what it does.

    Of a waiting job: the verdict, the numbers behind it, who is ahead and who holds the room, when
    it may start, and what would let it start now. Every suggestion was tried on the cluster's state
    before it is made.
    """
    api = common_.connect()
    space = common_.space(api.target.namespace)
    found = find_job(api, space, clean_reference(job))
    instant = now()
    explanation = None
    if not found.is_finished:
        explanation = explain(read_state(api), found.metadata.key, instant)
    if common_.format in (Format.JSON, Format.YAML):
        common_.emit(dump(why_facts(found, explanation), common_.format))
    elif common_.format is Format.NAME:
        common_.emit(f"{found.metadata.name}\n")
    else:
        common_.emit(why_text(found, explanation, instant, is_up=is_embedded(api)))
    return Exit.OK
