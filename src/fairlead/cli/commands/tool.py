"""`completion` and `version`."""

from __future__ import annotations

import click

from fairlead.cli.connection.common import Common, Format, common
from fairlead.cli.connection.completers import words
from fairlead.input.errors import Code, fail
from fairlead.input.suggest import nearest

SHELLS = {
    "bash": 'eval "$(fairlead completion bash)"       in ~/.bashrc',
    "zsh": 'eval "$(fairlead completion zsh)"        in ~/.zshrc',
    "fish": "fairlead completion fish | source        in ~/.config/fish/config.fish",
}


@click.command(
    epilog="Put one of these where your shell starts:\n\n\b\n" + "\n".join(SHELLS.values())
)
@click.argument("shell", metavar="bash|zsh|fish", shell_complete=words(*SHELLS))
@common(output=False, cluster=False)
def completion(_common: Common, *, shell: str) -> None:
    """Print the completion script of bash, zsh or fish."""
    from click.shell_completion import get_completion_class

    from fairlead.cli.app import PROGRAM, cli

    found = get_completion_class(shell) if shell in SHELLS else None
    if found is None:
        near = nearest(shell, SHELLS)
        raise fail(
            Code.BAD_VALUE, f"'{shell}' must be one of {', '.join(SHELLS)}",
            help=(f"fairlead completion {near}",) if near else (),
        )  # fmt: skip
    script = found(cli, {}, PROGRAM, "_FAIRLEAD_COMPLETE")
    # `source()` of bash starts bash to learn its version; the script itself does not need that.
    _common.emit(script.source_template % script.source_vars() + "\n")


@click.command()
@common(cluster=False)
def version(common_: Common) -> None:
    """Print the version."""
    import platform

    from fairlead import __version__

    facts = {"fairlead": __version__, "python": platform.python_version(),
             "platform": platform.platform()}  # fmt: skip
    if common_.is_structured:
        common_.data(facts)
    elif common_.format is Format.WIDE:
        common_.emit("".join(f"{key:<9} {value}\n" for key, value in facts.items()))
    else:
        common_.emit(f"fairlead {__version__}\n")
