"""Settings that commands read from the controllers' file, and controllers do not."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fairlead.api.values.sections import YEAR, Section, within

PARTITIONS_MAX = 256


class SlurmSettings(Section, frozen=True):
    """What names in scripts of Slurm mean here; read by `fairlead submit`, not by controllers."""

    partitions: Annotated[
        dict[str, dict[str, str]],
        Meta(max_length=PARTITIONS_MAX, description="Labels of the nodes of each partition that "
             "scripts name, such as `gpu: {nvidia.com/gpu.present: \"true\"}`. A partition that is "
             "not here is the node pool of that name."),
    ] = {}  # fmt: skip
    qos: Annotated[
        dict[str, str],
        Meta(max_length=PARTITIONS_MAX, description="PriorityClass of each quality of service "
             "that scripts name, such as `high: urgent`. One that is not here has no effect."),
    ] = {}  # fmt: skip


class SessionsSettings(Section, frozen=True):
    """Terminals in members that stay when their viewer goes; read by the commands that open them,
    not by controllers.
    """

    idle_seconds: Annotated[
        int,
        within(0, YEAR, "A session of `shell`, `run --pty` or `salloc` ends once nothing was typed "
                        "or shown in a joined terminal for so long, unless --idle says otherwise; "
                        "0: never."),
    ] = 4 * 3600  # fmt: skip
