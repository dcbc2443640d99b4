"""`fairlead backup` and `fairlead restore`: a cluster of this machine as one file."""

from __future__ import annotations

from pathlib import Path

import click

from fairlead.api.values.times import format_time
from fairlead.app.local.datadir import require_own, unusable
from fairlead.app.run_file import is_of_a_cluster
from fairlead.cli.commands.cluster import data_option, data_path
from fairlead.cli.connection.common import Common, common, now
from fairlead.decide.words import plural
from fairlead.input.errors import CliError, Code, Exit, fail, writing


@click.command(
    epilog="""Examples:

    \b
      fairlead backup                                fairlead-backup-DATE.tar.gz, here
      fairlead backup /mnt/safe/monday.tar.gz

    In the file are jobs and all other objects, the history, logs, and what
    makes a caller an administrator: it is readable by you alone. Checkpoints and volumes are not
    in it: copy DIR/checkpoints and DIR/local/claims as you copy other data.
    """
)
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@data_option
@common(output=False, cluster=False)
def backup(common_: Common, *, file: Path | None, data: str) -> int:
    """Save the cluster on this machine as one file.

    It may run meanwhile.
    """
    from fairlead import __version__
    from fairlead.app.local.backup import BackupError, save

    path = data_path(data)
    if not is_of_a_cluster(path):
        raise fail(
            Code.NOT_RUNNING, f"{path} is not the data directory of a cluster",
            help=("fairlead up starts one; --data DIR names another directory",),
        )  # fmt: skip
    today = format_time(now())[:10]
    target = file if file is not None else Path(f"fairlead-backup-{today}.tar.gz")
    require_own(path)
    try:
        with writing(target):
            size = save(path, target.absolute(), version=__version__, now=now())
    except BackupError as error:
        raise fail(Code.BACKUP, str(error), help=("try again",)) from error
    common_.note(f"Saved {path} as {target}, {size / 1e6:.1f} MB.")
    return Exit.OK


@click.command(
    epilog="""Examples:

    \b
      fairlead restore monday.tar.gz
      fairlead restore monday.tar.gz --data /tmp/drill && fairlead up --data /tmp/drill

    Jobs that ran when the backup was made start again as their next attempt, from their last
    checkpoint. Restore where the old cluster is gone: two that run would both run the jobs.
    """
)
@click.argument("file", type=click.Path(path_type=Path))
@data_option
@common(output=False, cluster=False)
def restore(common_: Common, *, file: Path, data: str) -> int:
    """Make a data directory from a backup."""
    from fairlead.app.local import backup as backups
    from fairlead.embedded.storage.wal import StoreError, WrongFormat

    path = data_path(data)
    try:
        restored = backups.restore(file, path)
    except backups.BackupError as error:
        raise fail(Code.BACKUP, str(error),
                   help=("--data DIR chooses another directory", "fairlead backup makes one"),
                   ) from error  # fmt: skip
    except WrongFormat as error:
        raise fail(Code.DATA_VERSION, f"{file}: {error}") from error
    except StoreError as error:
        raise fail(Code.BACKUP, f"the store in {file} is damaged: {error}") from error
    except OSError as error:
        raise _unusable(file, path, error) from error
    made_at = format_time(restored.about.made_at)
    common_.note(f"Restored {plural(restored.objects, 'object')} of {made_at} to {path}.")
    common_.note(f"fairlead up --data {path} starts the cluster.")
    return Exit.OK


def _unusable(file: Path, data: Path, error: OSError) -> CliError:
    if error.filename is not None and Path(error.filename) == file:
        return fail(Code.BACKUP, f"{file} cannot be read: {error.strerror}")
    return unusable(data, error)
