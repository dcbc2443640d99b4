"""`scontrol show hostnames [LIST]` in a batch script: the one use of it that scripts make there."""

from __future__ import annotations

import os
import sys

from fairlead.member.hostlist import expand_hosts


def main(argv: list[str]) -> int:
    """Print the hosts of a list, by default of the job, one a line."""
    if len(argv) not in (2, 3) or argv[0] != "show" or argv[1] not in ("hostnames", "hostname"):
        sys.stderr.write("scontrol: error: in a job this is only: scontrol show hostnames [LIST]\n")
        return 1
    listed = argv[2] if len(argv) == 3 else os.environ.get("SLURM_JOB_NODELIST", "")
    try:
        hosts = expand_hosts(listed)
    except ValueError as error:
        sys.stderr.write(f"scontrol: error: {error}\n")
        return 1
    sys.stdout.write("".join(f"{host}\n" for host in hosts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
