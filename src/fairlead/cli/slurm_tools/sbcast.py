"""sbcast where no batch script runs; in one, the sbcast of the script's own PATH comes first."""

from __future__ import annotations

import os

from fairlead.cli.connection.common import Common
from fairlead.cli.slurm_tools.options import ToolError
from fairlead.member.steps import ENV_STEPS


def run(common_: Common, arguments: list[str]) -> int:
    """Copy a file to the members of the batch script that this is in; ToolError outside of one."""
    del common_
    if ENV_STEPS not in os.environ:
        raise ToolError("this is no batch script; kubectl cp copies a file to one member")
    from fairlead.member.sbcast import main

    return main(arguments)
