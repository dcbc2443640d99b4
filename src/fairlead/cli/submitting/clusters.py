"""Which of several clusters a job goes to: each is asked what `submit --dry-run` asks, and the one
where the job starts soonest has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from fairlead.api.status import ApiError
from fairlead.cli.connection.common import Common, check_choice
from fairlead.cli.connection.connect import Choice, known_contexts
from fairlead.cli.submitting.fit import JobFit
from fairlead.cli.views.plan import line
from fairlead.decide.words import plural
from fairlead.input.errors import CliError, Code, fail

#: Asks all contexts of the kubeconfig.
AUTO = "auto"
CLUSTERS_MAX = 32


class Checked(Protocol):
    """Work that a cluster has checked and does not store yet."""

    @property
    def fit(self) -> JobFit:
        """What a decision of the cluster would do with it."""
        ...


C = TypeVar("C", bound=Checked)


@dataclass(slots=True)
class _Notes:
    """Keeps what is said of a cluster until it is known whether the work goes there."""

    tell: Callable[[str], None]
    kept: list[str] | None = field(default_factory=list[str])

    def __call__(self, text: str) -> None:
        if self.kept is None:
            self.tell(text)
        else:
            self.kept.append(text)

    def release(self) -> None:
        """Say what was kept, and from now on all at once."""
        kept, self.kept = self.kept or (), None
        for text in kept:
            self.tell(text)


def in_soonest(common: Common, clusters: str, check: Callable[[Common], C]) -> C:
    """Check work in the clusters of some contexts, a list with commas or `auto`, and return what
    the one says where it starts soonest; of equals the first, and of all the current one. CliError
    where none can have it; what one of them refuses is a note.
    """
    contexts = _contexts(common, clusters)

    def ask(context: str) -> tuple[_Notes, C | str]:
        notes = _Notes(common.tell)
        try:
            return notes, check(replace(common, context=context, tell=notes))
        except CliError as error:
            return notes, "; ".join(problem.message for problem in error.problems)
        except ApiError as error:
            return notes, str(error)

    with ThreadPoolExecutor(len(contexts)) as pool:
        answers = dict(zip(contexts, pool.map(ask, contexts), strict=True))
    able, said = dict[str, C](), dict[str, str]()
    for context, (_, answer) in answers.items():
        if isinstance(answer, str):
            said[context] = f"{context}: {answer}"
        else:
            able[context], said[context] = answer, f"{context}: {answer.fit.words}"
    if not able:
        raise fail(
            Code.NO_CLUSTER_TAKES_IT, f"none of {plural(len(contexts), 'cluster')} takes it",
            detail=tuple(said.values()),
            help=(f"fairlead submit --context {contexts[0]} says more of one of them",),
        )  # fmt: skip
    best = min(able, key=lambda context: able[context].fit.start)
    for context, text in said.items():
        mark = " (chosen)" if context == best else ""
        common.note(line("Clusters" if context == contexts[0] else "", text + mark))
    answers[best][0].release()
    return able[best]


def _contexts(common: Common, clusters: str) -> Sequence[str]:
    """Return the contexts that are asked, each once; CliError for one that there is not."""
    if common.context:
        raise fail(Code.BAD_COMBINATION, "--cluster and --context do not go together",
                   help=(f"--cluster {common.context},... asks that one, too",))  # fmt: skip
    known = known_contexts(Choice(common.kubeconfig), os.environ)
    contexts = known if clusters == AUTO else tuple(dict.fromkeys(clusters.split(",")))
    for name in contexts:
        check_choice(name, known, "--cluster")
    if not 1 <= len(contexts) <= CLUSTERS_MAX:
        raise fail(
            Code.BAD_VALUE, f"--cluster asks 1 to {CLUSTERS_MAX} clusters, not {len(contexts)}",
            help=("--cluster CONTEXT,CONTEXT,... names those that may have the job",),
        )  # fmt: skip
    return contexts
