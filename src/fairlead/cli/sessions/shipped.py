"""Modules of `fairlead.member` as text, for the Python of a member, whose image needs none of it.

They come first on the program's standard input: a command line is limited, is in the logs of
proxies and API servers, and is read by other users of a machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fairlead import member

#: Exit code where there is no Python that can run them.
NO_PYTHON = 125
_BOOT = f"""import json, os, sys, types
if sys.version_info < (3, 8):
    sys.exit({NO_PYTHON})
left, text = int(sys.argv[1]), b""
while len(text) < left:
    data = os.read(0, left - len(text))
    if not data:
        sys.exit(1)
    text += data
for name, source in json.loads(text):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
sys.exit(module.main(sys.argv[2:]))
"""
#: Isolated: neither variables nor files of the member's directory change what is imported.
_FIND = f'p=$(command -v python3) || exit {NO_PYTHON}; exec "$p" -I -S -c "$@"'


class Shipped:
    """What runs the last of some modules in a member: its command, and what it is given first."""

    def __init__(self, *names: str) -> None:
        """They are read and not imported: this process runs none of them."""
        place = Path(str(member.__file__))
        texts = [(f"{member.__name__}.{name}", place.with_name(f"{name}.py").read_text())
                 for name in names]  # fmt: skip
        self.text = json.dumps(texts).encode()

    def command(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """Return the command that runs it with these arguments."""
        return ("sh", "-c", _FIND, "fairlead-shipped", _BOOT, str(len(self.text)), *arguments)
