"""The test of a gang's nodes from within its members' pods, before their program starts.

    gate     the way of one member: its own tests, then those between members, then the result
    leader   the first member, which gathers what all found and says whether they go on
    pairs    what two members measure between them
    pair     the same between the test pods of two nodes that are idle

Members prove themselves to each other by the key of their attempt (`fairlead.member.gang_link`).
"""

from fairlead.node.gang_gate.gate import EXIT_FAILED, EXIT_STOPPED, GateEnd, run_gate
from fairlead.node.gang_gate.pair import run_pair

__all__ = ["EXIT_FAILED", "EXIT_STOPPED", "GateEnd", "run_gate", "run_pair"]
