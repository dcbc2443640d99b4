"""The `fairlead` command: its table of sub-commands, loaded one at a time, and its error handling.

`--help` and completion need the names and one line each, which stand here; the module of a
command is imported when it runs. click does the parsing; its complaints are put into our own
words and codes.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from fairlead import terminal
from fairlead.input.errors import CliError, Code, Exit, Problem, fail, render_error
from fairlead.input.masked import masked
from fairlead.input.suggest import nearest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PROGRAM = "fairlead"
#: What people type who know other tools, and what does it here.
_OTHER_WORDS = {
    **dict.fromkeys(
        ("delete", "rm", "kill", "stop"),
        "fairlead cancel JOB; kubectl delete fj JOB removes one that has ended",
    ),
    **dict.fromkeys(
        ("edit", "modify", "patch"), "fairlead update JOB --time DURATION; fairlead priority"
    ),
    "describe": "fairlead why JOB",
}  # fmt: skip
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One sub-command: the module that has it under its name, and its line in the help."""

    module: str
    line: str
    attribute: str = ""  # where the name is one of Python's own
    needs_linux: bool = False  # the others run where Python does


SECTIONS: dict[str, dict[str, CommandEntry]] = {
    "Jobs": {
        "submit": CommandEntry("submit", "Queue a script or a manifest as a job."),
        "run": CommandEntry("submit", "Queue a command as a job and follow it."),
        "sweep": CommandEntry(
            "sweep", "Run a command with many values of its parameters, as one array."
        ),
        "ps": CommandEntry("jobs", "Show jobs: live ones and the last few."),
        "why": CommandEntry("why", "Explain why jobs wait, or what they do."),
        "logs": CommandEntry("logs", "Show a job's logs, also after it is gone."),
        "exec": CommandEntry("interactive", "Run a command beside a member of a job.", "exec_"),
        "shell": CommandEntry("interactive", "Open a shell beside a member of a job."),
        "sessions": CommandEntry("sessions", "Show terminals that can be joined."),
        "attach": CommandEntry("sessions", "Go on with a terminal of a job that was left or lost."),
        "cp": CommandEntry("copy", "Copy a file or a directory to or from a member of a job."),
        "forward": CommandEntry("interactive", "Forward ports of this machine to a member."),
        "ssh-config": CommandEntry(
            "ssh", "Print what makes ssh JOB.fairlead lead to a member of a job.", "ssh_config"
        ),
        "ssh-proxy": CommandEntry(
            "ssh", "Speak SSH on stdin and stdout, for ssh to be led to a member.", "ssh_proxy"
        ),
        "notebook": CommandEntry("notebook", "Open JupyterLab in a job, or join it again."),
        "wait": CommandEntry("wait", "Block until jobs reach a state."),
        "cancel": CommandEntry("change", "Stop jobs for good."),
        "hold": CommandEntry("change", "Give a job's nodes back and keep the job."),
        "release": CommandEntry("change", "Let held jobs go on."),
        "requeue": CommandEntry("change", "End the present attempt of jobs and queue them again."),
        "priority": CommandEntry("change", "Move jobs to another priority class."),
        "update": CommandEntry(
            "change", "Change when jobs may start, and for how long they may run."
        ),
        "resubmit": CommandEntry("resubmit", "Run jobs again that have ended."),
        "history": CommandEntry("history", "Show jobs that have ended."),
        "runs": CommandEntry("runs", "Show runs: jobs with parameters, tags, notes or metrics."),
        "eff": CommandEntry("eff", "Show what a job used of what it asked for."),
        "top": CommandEntry("top", "Show what running jobs use of what they hold."),
        "slurm": CommandEntry(
            "slurm", "Put Slurm's commands into a directory; import a site's configuration."
        ),
        "usage": CommandEntry("usage", "Show GPU-hours: held, busy, borrowed and lost."),
    },
    "Cluster": {
        "up": CommandEntry("cluster", "Start a cluster on this machine.", needs_linux=True),
        "status": CommandEntry("cluster", "Show how the cluster on this machine does."),
        "web": CommandEntry("web", "Serve the web page of a cluster on this machine."),
        "web-server": CommandEntry(
            "web_server", "Serve the web page to the users of a cluster.", "web_server"
        ),
        "down": CommandEntry("cluster", "Stop the cluster on this machine; its state is kept."),
        "backup": CommandEntry("backup", "Save the cluster on this machine as one file."),
        "restore": CommandEntry("backup", "Make a data directory from a backup."),
        "nodes": CommandEntry("nodes", "Show nodes, grouped by pool and state."),
        "node": CommandEntry("node", "Show one node, or change whether it takes work."),
        "images": CommandEntry(
            "images", "Show images: where they are, their sizes, and who uses them."
        ),
        "network": CommandEntry("network", "Show what teams and pods send where."),
        "tune": CommandEntry("tune", "Show what a tuning profile would change on the nodes."),
        "fleet": CommandEntry("fleet", "Show node pools, and what holds each back."),
        "health": CommandEntry(
            "health", "Show what another policy would do about the faults of nodes."
        ),
        "audit": CommandEntry(
            "audit", "Show what was taken from jobs and the fleet, and verify its records."
        ),
        "defrag": CommandEntry("defrag", "Show which gangs would move to free nodes."),
        "decisions": CommandEntry(
            "decisions", "Show what the scheduler decided, and make it again."
        ),
        "teams": CommandEntry("teams", "Show teams: their shares, and what they use."),
        "quota": CommandEntry("teams", "Show what a team was promised, has and uses."),
        "reservations": CommandEntry(
            "reservations",
            "Show reservations: nodes that only jobs of a team which name them may use.",
        ),
        "install": CommandEntry("install", "Put Fairlead on a Kubernetes cluster."),
        "uninstall": CommandEntry("uninstall", "Take Fairlead off a Kubernetes cluster."),
        "controller": CommandEntry("controller", "Run the controllers on a Kubernetes cluster."),
        "webhook": CommandEntry("webhook", "Show what the webhook does to new pods and jobs."),
        "doctor": CommandEntry(
            "doctor", "Find what will hurt the control plane, and give the fix."
        ),
        "agent": CommandEntry("agent", "Look after the health of this machine.", needs_linux=True),
        "collector": CommandEntry(
            "collector", "Write what a node's agent reports into the cluster."
        ),
    },
    "Simulation": {
        "sim": CommandEntry("sim", "Simulate a cluster under a load."),
    },
    "Tool": {
        "completion": CommandEntry("tool", "Print the completion script of bash, zsh or fish."),
        "version": CommandEntry("tool", "Print the version."),
    },
}
ENTRIES: dict[str, CommandEntry] = {
    name: entry for part in SECTIONS.values() for name, entry in part.items()
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the sections."""
        return list(ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None when there is none of that name."""
        entry = ENTRIES.get(cmd_name)
        if entry is None:
            return None
        if entry.needs_linux and sys.platform != "linux" and not ctx.resilient_parsing:
            raise fail(
                Code.OTHER_SYSTEM,
                f"'{PROGRAM} {cmd_name}' needs Linux, and this is {sys.platform}",
                help=("--kubeconfig FILE has the other commands use a cluster elsewhere",),
            )
        try:
            module = importlib.import_module(f"fairlead.cli.commands.{entry.module}")
        except ModuleNotFoundError as error:
            if ctx.resilient_parsing and is_of_others(error):
                return None  # completion: nothing is said of a command that cannot run here
            raise
        command: click.Command = getattr(module, entry.attribute or cmd_name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return commands with their lines, and flags, without importing any command."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=entry.line)
            for name, entry in ENTRIES.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the first argument, or say which one was meant."""
        name = args[0]
        if name not in ENTRIES and not name.startswith("-") and not ctx.resilient_parsing:
            from fairlead.cli.script import slurm

            near = nearest(name, ENTRIES)
            help_ = f"did you mean {PROGRAM} {near}?" if near else f"{PROGRAM} --help"
            help_ = slurm.COMMANDS.get(name) or _OTHER_WORDS.get(name) or help_
            raise fail(Code.NO_SUCH_COMMAND, f"no command '{name}'", help=(help_,))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections without importing any command."""
        for title, part in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.line) for name, entry in part.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.option("--version", "shows_version", is_flag=True, help="Print the version and exit.")
@click.pass_context
def cli(context: click.Context, *, shows_version: bool) -> None:
    """A machine-learning research cluster: gang jobs that start together or not at all.

    Start with:

    \b
      fairlead up --detach            a cluster on this machine
      fairlead submit train.sh        queue a script
      fairlead ps                     see where it runs, or why it does not
    """
    if shows_version:
        from fairlead import __version__

        terminal.say(f"{PROGRAM} {__version__}\n")
    elif context.invoked_subcommand is None:
        terminal.say(f"{context.get_help()}\n")


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code; all that can go wrong ends in a few clear lines.

    KeyboardInterrupt and BrokenPipeError pass through.
    """
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    is_verbose = "-vv" in own or own.count("-v") + own.count("--verbose") > 1
    is_anchored = is_verbose or "-v" in own or "--verbose" in own
    try:
        result: Any = cli.main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.Abort as abort:
        raise KeyboardInterrupt from abort
    except click.exceptions.NoArgsIsHelpError as error:
        terminal.say(f"{error.ctx.get_help()}\n")
        return Exit.OK
    except click.ClickException as error:
        command = next((word for word in own if word in ENTRIES), "")
        return _report(usage_error(error, command), with_anchors=is_anchored)
    except CliError as error:
        return _report(error, with_anchors=is_anchored)
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except terminal.OutputLost as error:
        return _report(_output_lost(str(error)), with_anchors=is_anchored)
    except Exception as error:  # noqa: BLE001 # the one place where a fault of ours is caught
        return _report(_translate(error, shows_traceback=is_verbose), with_anchors=is_anchored)
    return int(result) if isinstance(result, int) else Exit.OK


def _report(error: CliError, *, with_anchors: bool) -> int:
    terminal.tell(render_error(error, with_anchors=with_anchors).removesuffix("\n"))
    return error.exit


def _translate(error: Exception, *, shows_traceback: bool) -> CliError:
    """Return the API's refusals in our words, and a report for anything that is our fault."""
    from fairlead.api.status import ApiError

    if isinstance(error, ApiError):
        from fairlead.cli.connection.refusals import from_api

        return from_api(error)
    if isinstance(error, ModuleNotFoundError) and is_of_others(error):
        return fail(
            Code.NOT_INSTALLED, f"this needs the Python package {error.name}, of Fairlead's server",
            help=("pip install 'fairlead[server]'",),
        )  # fmt: skip
    if isinstance(error, OSError) and error.errno in _FULL:
        if error.filename is None:
            return _output_lost(error.strerror or str(error))
        return fail(Code.DATA_UNWRITABLE, f"'{error.filename}' cannot be written: {error.strerror}",
                    help=("free space there",))  # fmt: skip
    if shows_traceback:
        import traceback

        terminal.tell(masked("".join(traceback.format_exception(error))))
    try:
        report = f"a report was saved as {_save_report(error)}"
    except OSError as unsaved:
        report = f"a report could not be saved: {unsaved.strerror}"
    return fail(
        Code.CRASH,
        masked(f"a fault of {PROGRAM}: {type(error).__name__}: {error}".split("\n", 1)[0]),
        detail=(report,),
        help=("send it with what you did; -vv shows it here",),
    )  # fmt: skip


def is_of_others(error: ModuleNotFoundError) -> bool:
    """Return whether a module is missing that another package has: Fairlead's own are all there."""
    return error.name is not None and error.name.partition(".")[0] != PROGRAM


def _output_lost(why: str) -> CliError:
    return fail(
        Code.DATA_UNWRITABLE, f"standard output cannot be written: {why}",
        help=("write to a file on a disk that has room",),
    )  # fmt: skip


def _save_report(error: Exception) -> str:
    import tempfile
    import traceback

    from fairlead import __version__

    text = masked("".join(traceback.format_exception(error)))
    arguments = masked(" ".join(sys.argv[1:]))
    descriptor, path = tempfile.mkstemp(prefix="fairlead-crash-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"fairlead {__version__}, Python {sys.version}\n{arguments}\n\n{text}")
    return path


def usage_error(error: click.ClickException, name: str) -> CliError:
    """Return click's complaint about the command of that name in our form."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context else f"{PROGRAM} {name}".rstrip()
    see = (f"{command} --help",)
    if isinstance(error, click.NoSuchOption):
        from fairlead.cli.script import slurm

        known = _flags(context.command) if context else []
        here = slurm.flag_help(name, error.option_name)
        near = nearest(error.option_name, known)
        help_ = (f"did you mean {near}?",) if near else see
        if here:
            help_ = (here, *see)
        elif not near and context is not None and context.info_name == "submit":
            help_ = (*see, "what follows -- goes to the script: fairlead submit SCRIPT -- "
                     f"{error.option_name} ...")  # fmt: skip
        elif context is not None and context.parent is None:
            help_ = (f"flags follow the command: {PROGRAM} COMMAND {error.option_name} ...",)
        return CliError(Problem(Code.NO_SUCH_FLAG, f"no flag '{error.option_name}'", help=help_))
    if isinstance(error, click.MissingParameter):
        name = _called(error.param) if error.param else str(error.param_hint)
        if name == "JOB...":
            see = ("if $(fairlead ps ...) was given, it found no job", *see)
        return CliError(Problem(Code.MISSING_ARGUMENT, f"{command} needs {name}", help=see))
    if isinstance(error, click.BadParameter):
        hint = error.param.opts[-1] if error.param else str(error.param_hint or "value")
        return CliError(Problem(Code.BAD_VALUE, f"{hint}: {_value(error.message)}", help=see))
    if isinstance(error, click.BadOptionUsage):
        message = f"{error.option_name} needs a value"
        if "does not take a value" in error.message:
            message = f"{error.option_name} takes no value"
        return CliError(Problem(Code.MISSING_ARGUMENT, message, help=see))
    if match := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", error.message):
        extra = match[1]
        accepted = [_called(each) for each in context.command.params
                    if isinstance(each, click.Argument)] if context else []  # fmt: skip
        takes = " ".join(accepted) or "no argument"
        message = f"{command} takes {takes}: '{extra}' is too much"
        return CliError(Problem(Code.BAD_VALUE, message, help=see))
    return CliError(Problem(Code.MISSING_ARGUMENT, _sentence(error.format_message()), help=see))


def _called(parameter: click.Parameter) -> str:
    """Return what the help calls a parameter: JOB, or -f FILE."""
    if isinstance(parameter, click.Option):
        return f"{parameter.opts[0]} {parameter.metavar or ''}".rstrip()
    return parameter.human_readable_name


def _value(text: str) -> str:
    """Return click's words on a value in ours."""
    if match := re.match(r"(\S+) is not in the range (\d*)<?=?x(?:>=\d+)?<?=?(\d*)", text):
        low = re.search(r"(\d+)<=x|x>=(\d+)", text)
        high = f" to {int(match[3]):,}" if match[3] else " or more"
        least = (low[1] or low[2]) if low else "0"
        return f"'{match[1]}' must be a whole number from {least}{high}"
    if match := re.match(r"'(.*)' is not a valid integer", text):
        return f"'{match[1]}' must be a whole number"
    return _sentence(text)


def _sentence(text: str) -> str:
    text = text.strip().removesuffix(".")
    return text[:1].lower() + text[1:]


def _flags(command: click.Command) -> list[str]:
    return [name for parameter in command.params for name in (*parameter.opts,
            *parameter.secondary_opts) if name.startswith("--")]  # fmt: skip
