"""`slurm`: Slurm's own commands, and what moves a site of Slurm here."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.connection.common import Common, Format, common, dump
from fairlead.cli.script.slurm_names import COMMANDS
from fairlead.input.errors import Code, fail, writing

if TYPE_CHECKING:
    from fairlead.cli.slurm_import.manifests import ImportedSite

#: What tells a command of ours from one of a real Slurm, which is never replaced.
MARK = "fairlead.cli.slurm_tools"
_PROGRAM = """#!/bin/sh
exec {python} -m {module} {command} "$@"
"""


@click.group()
def slurm() -> None:
    """Put Slurm's commands into a directory; import a site's configuration."""


@slurm.command(
    epilog="""Examples:

    \b
      fairlead slurm install ~/.local/bin
      fairlead slurm install /opt/fairlead/slurm && export PATH=/opt/fairlead/slurm:$PATH
    """
)
@click.argument("directory", metavar="DIR", type=click.Path())
@common(output=False, cluster=False)
def install(common_: Common, *, directory: str) -> None:
    """Put sbatch, squeue, sacct and their like into a directory.

    They are small programs that call this Fairlead, and use the cluster that `fairlead` uses; the
    namespace is the kubeconfig's, or $FAIRLEAD_NAMESPACE. A command of a real Slurm that is in the
    directory is never replaced.
    """
    target = Path(directory).expanduser()
    foreign = [name for name in COMMANDS if _is_foreign(target / name)]
    if foreign:
        raise fail(
            Code.BAD_VALUE, f"{target / foreign[0]} exists and is not of Fairlead",
            help=("choose another directory, before that one in $PATH",),
        )  # fmt: skip
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in COMMANDS:
            _write(target / name, name)
    except OSError as error:
        raise fail(
            Code.BAD_VALUE, f"{error.filename or target} cannot be written: {error.strerror}"
        ) from error
    common_.note(f"{', '.join(COMMANDS)} are in {target}")
    if str(target.absolute()) not in os.environ.get("PATH", "").split(os.pathsep):
        common_.note(f"export PATH={shlex.quote(str(target.absolute()))}:$PATH")


def _is_foreign(path: Path) -> bool:
    try:
        return MARK.encode() not in path.read_bytes()[:4_096]
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _write(path: Path, name: str) -> None:
    """Write one command, in one step: another process may be about to start it."""
    text = _PROGRAM.format(python=shlex.quote(sys.executable), module=MARK, command=name)
    beside = path.with_name(f".{name}.{os.getpid()}")
    beside.write_text(text)
    beside.chmod(0o755)
    beside.replace(path)


@slurm.command(
    name="import",
    epilog="""Examples:

    \b
      sacctmgr dump mycluster file=accounts.cfg
      sacctmgr -P show qos > qos.txt
      scontrol show reservation > reservations.txt
      fairlead slurm import --conf /etc/slurm/slurm.conf --associations accounts.cfg \\
          --qos qos.txt --reservations reservations.txt --out site
      sh site/labels.sh && kubectl apply -f site/objects.yaml
    """,
)
@click.option("--conf", metavar="FILE", required=True, help="slurm.conf; what it includes is read.")
@click.option("--associations", metavar="FILE", default="", help="Output of sacctmgr dump.")
@click.option("--qos", metavar="FILE", default="", help="Output of sacctmgr -P show qos.")
@click.option("--reservations", metavar="FILE", default="",
              help="Output of scontrol show reservation.")  # fmt: skip
@click.option("--out", metavar="DIR", default="",
              help="Write objects.yaml, settings.yaml and labels.sh there.")  # fmt: skip
@common(cluster=False)
def import_(
    common_: Common, *, conf: str, associations: str, qos: str, reservations: str, out: str
) -> None:
    """Print what does the same as a site's Slurm: Teams, priority classes, node pools, settings.

    Accounts with users become Teams, qualities of service PriorityClasses, partitions labels of
    nodes and the setting slurm.partitions. Each line that has no counterpart is named on stderr.
    Nothing is changed: read the result, see `fairlead teams plan -f`, then apply it.
    """
    from fairlead.cli.commands.teams_import import NAMESPACES_NOTE
    from fairlead.cli.slurm_import.accounts import read_associations, read_qos, read_records
    from fairlead.cli.slurm_import.conf import Findings, read_conf
    from fairlead.cli.slurm_import.fleet import read_fleet
    from fairlead.cli.slurm_import.manifests import SlurmSite, imported
    from fairlead.cli.slurm_import.options import read_options
    from fairlead.input.sections import read_text

    found = Findings()
    lines = read_conf(conf, lambda file: read_text(Path(file)), found)
    accounts, classes = ({}, []) if not associations else read_associations(
        associations, read_text(Path(associations)), found)  # fmt: skip
    by_name = {each.name: each for each in classes}
    if qos:
        by_name |= {each.name: each for each in read_qos(qos, read_text(Path(qos)), found)}
    elif by_name:
        common_.note("note: priorities are not in the dump: give the file of --qos")
    records = [] if not reservations else list(
        read_records(reservations, read_text(Path(reservations)), "reservationname"))  # fmt: skip
    site = SlurmSite(
        read_fleet(lines, found), read_options(lines, found), accounts, list(by_name.values()),
        records,
    )  # fmt: skip
    result = imported(site, found)
    found.check()
    for note in found.notes:
        common_.note(f"note: {note}")
    _show_site(common_, result, out)
    if accounts:
        common_.note(NAMESPACES_NOTE)


def _show_site(common_: Common, site: ImportedSite, out: str) -> None:
    """Print the site, or write its files."""
    objects = {"apiVersion": "v1", "kind": "List", "items": list(site.objects)}
    files = {
        "objects.yaml": dump(objects, Format.YAML),
        "settings.yaml": dump(site.settings, Format.YAML),
        "labels.sh": "".join(f"{line}\n" for line in ("set -e", *site.labels)),
    }
    if out:
        with writing(out):
            Path(out).mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (Path(out) / name).write_text(text, encoding="utf-8")
        common_.note(f"{', '.join(files)} are in {out}")
    elif common_.format is Format.JSON:
        common_.data({"objects": objects, "settings": site.settings, "labels": list(site.labels)})
    else:
        common_.emit("\n".join(f"# {name}\n{text}" for name, text in files.items()))


@slurm.command(
    epilog="""Examples:

    \b
      scontrol show node > nodes.txt
      fairlead slurm check --nodes nodes.txt
      sinfo -o '%P %c %m %G %N' > partitions.txt
      fairlead slurm check --nodes nodes.txt --sinfo partitions.txt
    """
)
@click.option("--nodes", "nodes_file", metavar="FILE", default="",
              help="Output of scontrol show node.")  # fmt: skip
@click.option("--sinfo", "sinfo_file", metavar="FILE", default="",
              help="Output of sinfo, with a header and the column NODELIST.")  # fmt: skip
@common()
def check(common_: Common, *, nodes_file: str, sinfo_file: str) -> int:
    """Compare the nodes that a Slurm knows with those of the cluster.

    Shows nodes that only one of them has, CPUs, memory and GPUs of which jobs get less here,
    features and partitions that no label has, and nodes that take jobs in one of them alone.
    Exit code 1: there are differences.
    """
    from fairlead.cli.cluster.cluster_settings import slurm_settings
    from fairlead.cli.slurm_import import nodes_check
    from fairlead.cli.slurm_import.conf import Findings
    from fairlead.input.sections import read_text

    if not nodes_file and not sinfo_file:
        raise fail(Code.MISSING_ARGUMENT, "give --nodes FILE, --sinfo FILE or both",
                   help=("scontrol show node > nodes.txt",))  # fmt: skip
    found = Findings()
    known = nodes_check.KnownBySlurm()
    if nodes_file:
        known.take_nodes(nodes_file, read_text(Path(nodes_file)), found)
    if sinfo_file:
        known.take_sinfo(sinfo_file, read_text(Path(sinfo_file)), found)
    found.check()
    api = common_.connect()
    partitions = slurm_settings(common_, api).partitions
    rows = nodes_check.differences(known, nodes_check.nodes_of(api), partitions)
    if common_.is_structured:
        common_.data([dict(zip(("nodes", "what", "slurm", "cluster"), row, strict=True))
                      for row in rows])  # fmt: skip
    else:
        common_.table(nodes_check.COLUMNS, rows, empty="no differences")
    return 1 if rows else 0
