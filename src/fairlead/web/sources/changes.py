"""The changes that the page offers, each with the right that it takes and what makes it: the
command's own function, in a thread, as the user who confirmed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fairlead.api.cluster.node_suites import suites
from fairlead.api.resources import JOB_ARRAYS, JOBS, NODE_TESTS, NODES, Resource
from fairlead.api.reviews import ResourceAttributes
from fairlead.cli.cluster.known_nodes import node_named
from fairlead.cli.commands.change import change_reference
from fairlead.cli.commands.node import cordon_patch, drain_patch, patch_node, resume_patch
from fairlead.cli.commands.node_tests import create_test
from fairlead.cli.commands.resubmit import Resubmission, resubmit_one
from fairlead.cli.connection.common import Common, Format, now, seconds_of
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.arrays import ArrayReference
from fairlead.cli.job_request.change_verbs import (
    CANCEL,
    HOLD,
    RELEASE,
    ChangeVerb,
    priority_change,
)
from fairlead.input.errors import CliError, Code, fail

#: What a job or an array is, and a node.
WORK_KINDS: Mapping[str, Resource[Any]] = {"jobs": JOBS, "arrays": JOB_ARRAYS}


@dataclass(frozen=True, slots=True)
class ChangeOrder:
    """A change of one object, with what its form asks for. `namespace` is "" for a node, `kind`
    the part of the site that has the object, `user` who asks for it.
    """

    change: PageChange
    kind: str
    namespace: str
    name: str
    fields: Mapping[str, str]
    user: str

    @property
    def right(self) -> ResourceAttributes:
        """What the API server is asked for the person to be allowed."""
        resource = self.change.resource or WORK_KINDS[self.kind]
        verb, space = self.change.right, self.namespace
        name = "" if verb == "create" else self.name
        return ResourceAttributes(verb, resource.plural, resource.group, namespace=space, name=name)

    def words(self) -> tuple[str, ...]:
        """Return the equal command, without the program's name and the namespace."""
        flags: list[str] = []
        for field in self.change.fields:
            value = self.fields[field.name]
            if value and value != field.default:
                flags += (field.flag, value) if field.flag else (value,)
        return (*self.change.command, self.name, *flags)


#: Makes a change, and returns the name of what it has made, "" for nothing new. CliError, ApiError.
Maker = Callable[[Common, Api, ChangeOrder], str]


@dataclass(frozen=True, slots=True)
class ChangeField:
    """What the form of a change asks for; `flag` is the command's, "" for an argument of it."""

    name: str
    label: str
    flag: str = ""
    default: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PageChange:
    """A change: its verb in the address, its command, what it means, the right that it takes
    (`resource` None: on the job or the array itself), and what makes it.
    """

    verb: str
    command: tuple[str, ...]
    means: str
    make: Maker
    right: str = "patch"
    resource: Resource[Any] | None = None
    fields: tuple[ChangeField, ...] = ()
    #: On the button, where that is not the verb of the address.
    button: str = ""
    #: Of a job or an array: what its command writes.
    of_work: ChangeVerb | None = None


def _of_work(verb: ChangeVerb, means: str) -> PageChange:
    def make(common: Common, api: Api, order: ChangeOrder) -> str:
        return _change_work(common, api, order, verb)

    return PageChange(verb.verb, (verb.verb,), means, make, of_work=verb)


def _change_work(common: Common, api: Api, order: ChangeOrder, verb: ChangeVerb) -> str:
    reference = ArrayReference(order.name)
    _, problem = change_reference(common, api, verb, space=order.namespace, reference=reference)
    if problem is not None:
        raise CliError([problem])
    return ""


def _move(common: Common, api: Api, order: ChangeOrder) -> str:
    name = order.fields["class"]
    if not name:
        raise fail(Code.BAD_VALUE, "no priority class is named")
    return _change_work(common, api, order, priority_change(name))


def _rerun(common: Common, api: Api, order: ChangeOrder) -> str:
    wanted = Resubmission(order.namespace, ArrayReference(order.name), order.user)
    return str(resubmit_one(common, api, wanted)["metadata"]["name"])


def _cordon(_common: Common, api: Api, order: ChangeOrder) -> str:
    patch = cordon_patch(order.user, order.fields["reason"])
    patch_node(api, node_named(api, order.name), patch)
    return ""


def _drain(_common: Common, api: Api, order: ChangeOrder) -> str:
    at = now()
    ends = at + seconds_of(order.fields["within"], "--within")
    patch = drain_patch(order.user, order.fields["reason"], at, ends)
    patch_node(api, node_named(api, order.name), patch)
    return ""


def _resume(_common: Common, api: Api, order: ChangeOrder) -> str:
    found = node_named(api, order.name)
    patch_node(api, found, resume_patch(found))
    return ""


def _test(_common: Common, api: Api, order: ChangeOrder) -> str:
    create_test(api, order.name, order.fields["suite"])
    return ""


_REASON = ChangeField("reason", "Why, for those who find it", "--reason")
CANCELS = _of_work(
    CANCEL, "It stops for good: its members get SIGTERM, and SIGKILL when their grace period is "
    "over. Its log and its record stay.",
)  # fmt: skip
HOLDS = _of_work(
    HOLD, "It gives its nodes back and is kept. It is not considered until it is released; then it "
    "goes on from its last checkpoint.",
)  # fmt: skip
RELEASES = _of_work(RELEASE, "It is considered again, in its old place in the queue.")
MOVES = PageChange(
    "priority", ("priority",),
    "It moves to another priority class. A lower priority counts at once; while it holds nodes, a "
    "higher one counts from the next attempt on.",
    _move, fields=(ChangeField("class", "Priority class"),), button="Move",
)  # fmt: skip
RERUNS = PageChange(
    "rerun", ("resubmit",),
    "It runs again from the start, under a new name, with the same template and script. What has "
    "ended stays as it is, with its record and its log; what waits for it does not wait for the "
    "new one.",
    _rerun, right="create",
)  # fmt: skip
CORDONS = PageChange(
    "cordon", ("node", "cordon"),
    "It takes no new work. What runs there goes on; only a person ends a cordon.",
    _cordon, resource=NODES, fields=(_REASON,),
)  # fmt: skip
DRAINS = PageChange(
    "drain", ("node", "drain"),
    "It takes no new work, and is empty by the deadline: gangs that save checkpoints leave after "
    "the next one, the others shortly before the deadline. It takes no work until it is resumed.",
    _drain, resource=NODES,
    fields=(ChangeField("within", "Empty within", "--within", "1h"), _REASON),
)  # fmt: skip
RESUMES = PageChange(
    "resume", ("node", "resume"),
    "It takes work again: its cordon, its drain or its retirement by hand ends. A fault keeps it "
    "out all the same.",
    _resume, resource=NODES,
)  # fmt: skip
TESTS = PageChange(
    "test", ("node", "test"),
    "The cluster runs a suite of tests on it. What works there goes on, and its GPUs are left "
    "alone. A test that fails is a fault of the node: health then takes it out of service.",
    _test, right="create", resource=NODE_TESTS,
    fields=(ChangeField("suite", "Suite", "--suite", "quick", tuple(suites())),),
)  # fmt: skip
WORK_CHANGES = {each.verb: each for each in (CANCELS, HOLDS, RELEASES, MOVES, RERUNS)}
NODE_CHANGES = {each.verb: each for each in (CORDONS, DRAINS, RESUMES, TESTS)}


def make_change(common: Common, api: Api, order: ChangeOrder) -> str:
    """Make a change that was confirmed; return the name of what it has made, "" for nothing new.

    CliError, ApiError.
    """
    # As data, a command prints nothing by the way.
    own = replace(common, namespace=order.namespace, format=Format.JSON, quiet=True)
    return order.change.make(own, api, order)
