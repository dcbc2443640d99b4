"""Settings of the health of nodes: see `controller_settings.py`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fairlead.input.sections import Section, about, within

DAY = 86_400


class HealthSettings(Section, frozen=True):
    """What is done about the faults that the agents of nodes report."""

    enabled: Annotated[
        bool,
        about("Follow the reports of nodes; false: nothing is read, and no node is taken out."),
    ] = False
    act_on: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)$")], ...],
        Meta(max_length=64, description="Checks of the agent whose faults are acted on, such as "
             "gpu-xid; * for all. What is done for those of others is only recorded."),
    ] = ()  # fmt: skip
    critical_drain_seconds: Annotated[
        int,
        within(60, DAY, "From a critical fault to the end of the drain of its node."),
    ] = 600  # fmt: skip
    degraded_drain_seconds: Annotated[
        int,
        within(60, 30 * DAY, "The same for a warning that asks for an action."),
    ] = DAY  # fmt: skip
    cosmetic_drain_seconds: Annotated[
        int,
        within(60, 30 * DAY, "The same for information that asks for an action."),
    ] = 7 * DAY  # fmt: skip
    eviction_seconds: Annotated[
        int,
        within(0, 30 * DAY, "So long before that end pods of others are evicted within their "
                            "disruption budgets; at the end they are deleted."),
    ] = 600  # fmt: skip
    reset_seconds: Annotated[
        int, within(10, DAY, "The agent may take so long for the reset of a GPU.")
    ] = 600
    reboot_seconds: Annotated[int, within(60, DAY, "And so long for a reboot.")] = 1800
    replace_seconds: Annotated[
        int, within(600, 30 * DAY, "A machine that is to be replaced and is there after so long "
                                   "is left to a person."),
    ] = DAY  # fmt: skip
    validate_seconds: Annotated[
        int,
        within(1, DAY, "A node whose faults have ended takes work after so long without one, "
                       "while the agent looks."),
    ] = 60  # fmt: skip
    resets_max: Annotated[int, within(0, 8, "Resets of a node in 7 days; then it is rebooted.")] = 1
    reboots_max: Annotated[
        int, within(0, 8, "Reboots of a node in 7 days; then it is replaced.")
    ] = 2
    tries_max: Annotated[
        int, within(1, 8, "Resets, reboots and replacements of a node in 7 days; then a person is "
                          "asked."),
    ] = 5  # fmt: skip
