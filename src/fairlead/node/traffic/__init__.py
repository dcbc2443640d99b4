"""Traffic of the node's pods: bytes by namespace, class of the other end, and direction.

`classes` compiles prefix lists, `ruleset` says in nft's JSON what the kernel is to count, `nft` and
`netlink` speak to the kernel, `pods` reads who has which address, `arrivals` asks for a look when
one comes, `counting` keeps the kernel in step with the pods, `usage` adds up what was counted,
`flows` has it by job, with rates, and `ended` keeps what members of jobs had sent until it is
reported.
Design: docs/design/network.md.
"""

from fairlead.node.traffic.arrivals import PodArrivals
from fairlead.node.traffic.classes import PrefixConflict, PrefixList, parse_lists
from fairlead.node.traffic.counting import (
    Counting,
    TrafficFacts,
    plan_of,
    read_usage,
    remove_table,
)
from fairlead.node.traffic.ended import EndedTrafficLine
from fairlead.node.traffic.flows import FlowLine
from fairlead.node.traffic.pods import PodSource, read_pods
from fairlead.node.traffic.usage import PodLine, TrafficUsage, UsageLine

__all__ = [
    "Counting",
    "EndedTrafficLine",
    "FlowLine",
    "PodArrivals",
    "PodLine",
    "PodSource",
    "PrefixConflict",
    "PrefixList",
    "TrafficFacts",
    "TrafficUsage",
    "UsageLine",
    "parse_lists",
    "plan_of",
    "read_pods",
    "read_usage",
    "remove_table",
]
