"""Which variables of the shell a job of this machine takes along (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fairlead.api.pods.pod_rules import is_env_name

#: What each job takes along; --env NAME adds others.
LOCAL_ENVIRONMENT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "CONDA_PREFIX",
    "PYTHONPATH", "LD_LIBRARY_PATH",
)  # fmt: skip
#: A member has its own: set by Fairlead, by a shell, by a terminal or by the machine. The cluster,
#: $FAIRLEAD_KUBECONFIG and $FAIRLEAD_NAMESPACE, is the same for sbatch and scontrol in a script.
OF_MEMBERS = re.compile(
    r"FAIRLEAD_(?!(?:KUBECONFIG|NAMESPACE)\b)\w+|(?:SLURM|PET|BASH|SSH|XDG|LC)_\w+"
    r"|(?:LOCAL_|GROUP_|NODE_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)"
    r"|PWD|OLDPWD|SHELL|SHLVL|TERM|HOSTNAME|HOST|U?ID|EUID|PPID|RANDOM|SECONDS"
    r"|LINENO|IFS|PS\d|DISPLAY|EDITOR|TMPDIR|BASH|_"
)
_NOT_TEXT = re.compile(r"[\0\ud800-\udfff]")


def passed_variables(
    environment: Mapping[str, str], *, exports_all: bool
) -> Iterator[tuple[str, str]]:
    """Yield what a job of this machine takes along, as (name, value).

    With `exports_all`, as for scripts of Slurm, that is all but what members have of their own.
    """
    for name, value in environment.items():
        is_known = name in LOCAL_ENVIRONMENT
        is_more = exports_all and is_env_name(name) and not OF_MEMBERS.fullmatch(name)
        if (is_known or is_more) and not _NOT_TEXT.search(value):
            yield name, value
