"""`doctor`: finds what will hurt the control plane, says who causes it, and gives the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from fairlead.cli.connection.common import Common, check_choice, common
from fairlead.cli.connection.completers import words
from fairlead.input.errors import Code, fail
from fairlead.input.suggest import nearest

FORMATS = ("text", "json", "yaml", "junit", "html")


def _format(given: str, known: tuple[str, ...] = ("text", "json", "yaml")) -> str:
    check_choice(given, known, "-o")
    return given


_SCRAPE = click.option(
    "--job", "jobs", metavar="SOURCE=REGEX", multiple=True,
    help="Label `job` of a scrape, such as etcd=kube-etcd. Default: *etcd*, and so on.",
)  # fmt: skip
_OUTPUT = click.option(
    "-o", "--output", "output_", metavar="FORMAT", default="text", show_default=True,
    shell_complete=words("text", "json", "yaml"), help="text, json or yaml.",
)  # fmt: skip
_SEATS = click.option(
    "--seats", metavar="N", type=click.IntRange(1), default=600, show_default=True,
    help="Requests that the API servers take at a time.",
)  # fmt: skip
_ACCESS = {
    "token-file": "Bearer token for {}.",
    "login-file": "user:password for {}.",
    "ca-file": "Certificates that {} is verified with.",
    "cert-file": "Client certificate for {}.",
    "key-file": "Its key.",
}
Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])


def access_flags(server: str, *kinds: str, prefix: str = "") -> Callable[[Wrapped], Wrapped]:
    """Return the flags for authentication to a server; `kinds` are keys of `_ACCESS`."""

    def add(wrapped: Wrapped) -> Wrapped:
        insecure = f"Do not verify the certificates of {server}."
        wrapped = click.option(f"--{prefix}insecure", is_flag=True, help=insecure)(wrapped)
        for kind in reversed(kinds):
            text = _ACCESS[kind].format(server)
            flag = f"--{prefix}{kind}"
            wrapped = click.option(flag, metavar="FILE", default="", help=text)(wrapped)
        return wrapped

    return add


class DoctorGroup(click.Group):
    """The group; a misspelt sub-command gets the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the sub-command of the first argument."""
        if args[0] not in self.commands:
            near = nearest(args[0], self.commands)
            raise fail(
                Code.NO_SUCH_COMMAND, f"no command '{ctx.command_path} {args[0]}'",
                help=(f"did you mean {ctx.command_path} {near}?" if near else
                      f"{ctx.command_path} --help",),
            )  # fmt: skip
        return super().resolve_command(ctx, args)


@click.group(
    cls=DoctorGroup,
    invoke_without_command=True,
    epilog="""Examples:

    \b
      fairlead doctor                                   the cluster of the kubeconfig
      fairlead doctor --metrics etcd=http://10.0.0.1:2381/metrics
      fairlead doctor --etcd https://10.0.0.1:2379 --etcd-ca-file ca.crt --etcd-cert-file \
        client.crt --etcd-key-file client.key
      fairlead doctor --prometheus http://127.0.0.1:9090
      fairlead doctor --only 'ETCD-*' -o json
      fairlead doctor --baseline last.json              only what is new
      fairlead doctor --explain ETCD-16

    Exit codes: 0 clean, 1 warnings, 2 critical findings, 3 something could not be looked at
    (--allow-unknown: then 0). A wrong command line exits with 2 and an error text.
    """,
)
@click.option("-o", "--output", "output_", metavar="FORMAT", default="text", show_default=True,
              shell_complete=words("text", "json", "yaml", "junit", "html"),
              help="text, json, yaml, junit or html.")  # fmt: skip
@click.option("--only", metavar="ID", multiple=True, help="Only these checks; * matches.")
@click.option("--skip", metavar="ID", multiple=True, help="Not these checks; * matches.")
@click.option("--explain", metavar="ID", default="", help="Explain one check and exit.")
@click.option("--baseline", metavar="FILE", default="",
              help="An earlier report of -o json: show only what is new.")  # fmt: skip
@click.option("--suppressions", metavar="FILE", default="",
              help="YAML of checks to leave out, each with a reason and an end date.")  # fmt: skip
@click.option("--allow-unknown", is_flag=True, help="Unknown checks do not change the exit code.")
@click.option("--metrics", metavar="NAME=URL", multiple=True,
              help="A page of metrics: apiserver, etcd, scheduler, controller-manager, coredns, "
              "kubelet, prometheus or kube-proxy.")  # fmt: skip
@access_flags("--metrics", "token-file", "ca-file", "cert-file", "key-file", prefix="metrics-")
@click.option("--etcd", metavar="URL", multiple=True,
              help="A member of etcd at its URL for clients; once per member.")  # fmt: skip
@access_flags("--etcd", "ca-file", "cert-file", "key-file", prefix="etcd-")
@click.option("--prometheus", metavar="URL", default="",
              help="A Prometheus that scrapes this cluster, for what no page shows.")  # fmt: skip
@access_flags("--prometheus", "token-file", "login-file", "ca-file", prefix="prometheus-")
@_SCRAPE
@click.option("--interval", metavar="SECONDS", type=click.FloatRange(0, 3600), default=10.0,
              show_default=True, help="Between two scrapes, for rates; 0: one scrape.")  # fmt: skip
@click.option("--manifests", metavar="DIR", default="",
              help="Static pod manifests of the control plane, for flags.")  # fmt: skip
@click.option("--kubelet-config", metavar="FILE", multiple=True,
              help="A kubelet's configuration, YAML or configz.")  # fmt: skip
@click.option("--node-facts", metavar="FILE", multiple=True,
              help="Facts of a node, or sysctl -a; the file's name is the node's.")  # fmt: skip
@click.option("--node-pods", metavar="N", type=click.IntRange(1, 5),
              help="Run a pod of some seconds on N nodes of each class, in the namespace of -n, "
              "for facts of nodes. Without it nothing is created.")  # fmt: skip
@click.option("--node-pods-image", metavar="IMAGE", default="busybox:1.36", show_default=True,
              help="With --node-pods: an image with sh, grep, sed and awk.")  # fmt: skip
@click.option("--audit", "audit_", metavar="FILE", multiple=True, help="An audit log.")
@click.option("--nodes", metavar="N", type=click.IntRange(0), default=0,
              help="Number of nodes, where the API does not say.")  # fmt: skip
@click.option("--at-nodes", metavar="N", type=click.IntRange(0), default=0,
              help="Project what grows to this number of nodes.")  # fmt: skip
@click.option("--offline", is_flag=True, help="Do not ask the Kubernetes API.")
@common(output=False)
def doctor(common_: Common, *, output_: str, explain: str, **options: Any) -> int:
    """Find what will hurt the control plane, and give the fix.

    It reads objects and metrics with a few bounded requests, and reports findings in the order of
    harm. It changes nothing, unless --node-pods asks for pods, which it deletes at the end. What it
    could not see is reported as unknown, never as a pass.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return 0
    from fairlead.cli.doctor.examination import explain_check, run_doctor

    format_ = _format(output_, FORMATS)
    if explain:
        return explain_check(common_, explain, format_)
    return run_doctor(common_, format_, options)


@doctor.command()
@_OUTPUT
@common(output=False, cluster=False)
def checks(common_: Common, *, output_: str) -> int:
    """List the checks that exist."""
    from fairlead.cli.doctor.examination import list_checks

    return list_checks(common_, _format(output_))


@doctor.command(
    epilog="""Examples:

    \b
      fairlead doctor audit /var/log/kubernetes/audit*.log*
      zstd -dc audit.zst | fairlead doctor audit -
      fairlead doctor audit --objects pods=100000,events=50000 audit.log -o json
      fairlead doctor audit --metrics before.txt --metrics after.txt audit.log
      fairlead doctor audit --flow-schema audit.log | kubectl apply --dry-run=server -f -
      fairlead doctor audit diff before.log after.log
      fairlead doctor audit policy --nodes 7500 audit.log > policy.yaml
      fairlead doctor audit --follow /var/log/kubernetes/audit.log

    A file named diff or policy is given as ./diff or ./policy.
    """
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@_OUTPUT
@click.option("--objects", metavar="NAME=COUNT[:BYTES]", multiple=True,
              help="How many objects there are. [default: as many as the log names]")  # fmt: skip
@click.option("--nodes", metavar="N", type=click.IntRange(0), default=0,
              help="Number of nodes. [default: as many as the log names]")  # fmt: skip
@click.option("--metrics", "pages", metavar="FILE", multiple=True,
              help="The API server's /metrics: once, or before and after the log. Bytes are scaled "
              "to it.")  # fmt: skip
@_SEATS
@click.option("--processes", metavar="N", type=click.IntRange(0), default=0,
              help="Processes that read. [default: one per core]")  # fmt: skip
@click.option("--engine", default="auto", show_default=True, metavar="NAME",
              type=click.Choice(["auto", "plain", "compiled"]),
              help="auto, plain or compiled (with the package numba).")  # fmt: skip
@click.option("--follow", is_flag=True,
              help="Report on what is appended from now on, every --interval.")  # fmt: skip
@click.option("--interval", metavar="SECONDS", type=click.FloatRange(0.1), default=10.0,
              show_default=True, help="With --follow: seconds of a report.")  # fmt: skip
@click.option("--flow-schema", is_flag=True,
              help="Print a FlowSchema and its level for the dearest caller found.")  # fmt: skip
@common(output=False, cluster=False)
def audit(
    common_: Common, *, files: tuple[str, ...], output_: str, objects: tuple[str, ...],
    pages: tuple[str, ...], nodes: int, seats: int, processes: int, engine: str, follow: bool,
    interval: float, flow_schema: bool,
) -> int:  # fmt: skip
    """Say who costs the API server how much, from its audit log.

    Logs may be plain, gzip or zstd (with the package zstandard), rotated, and - for stdin. Cost is
    in seat-seconds: what API priority and fairness rations. Lines that cannot be used are counted.
    Logs over 1 GiB are read by compiled code where the package numba is installed.
    """
    from fairlead.cli.doctor.audit import (
        LogReading,
        model_of,
        run_audit,
        run_diff,
        run_follow,
        run_policy,
    )
    from fairlead.doctor.audit.parallel import Engine

    format_ = _format(output_)
    model = model_of(objects, nodes, seats, pages)
    if files[0] == "diff":
        return run_diff(common_, files[1:], format_, model=model)
    if files[0] == "policy":
        return run_policy(common_, files[1:], model=model)
    if follow:
        return run_follow(common_, files, format_, model=model, seconds=interval)
    return run_audit(common_, files, format_, model=model, shows_flow_schema=flow_schema,
                     reading=LogReading(processes, Engine(engine)))  # fmt: skip


@doctor.command(
    epilog="""Examples:

    \b
      fairlead doctor preflight -f agent.yaml --trace audit.log --nodes 7500
      fairlead doctor preflight -f agent.yaml --trace audit.log --nodes 7500 --objects pods=900

    Run the agent on a few nodes and record an audit log; --objects and --traced-nodes describe that
    small cluster. Exit codes: 0 fits, 1 over 10 % of the seats, 2 over 30 %, 3 not in the trace.
    """
)
@click.option("-f", "--file", "file", metavar="FILE", required=True,
              help="Manifest of the agent; - reads stdin.")  # fmt: skip
@click.option("--trace", metavar="FILE", multiple=True, required=True,
              help="Audit log of a cluster where the agent runs.")  # fmt: skip
@click.option("--nodes", metavar="N", type=click.IntRange(1), required=True,
              help="Nodes of the cluster that it is meant for.")  # fmt: skip
@click.option("--traced-nodes", metavar="N", type=click.IntRange(0), default=0,
              help="Nodes of the traced cluster. [default: as many as the log names]")  # fmt: skip
@click.option("--objects", metavar="NAME=COUNT[:BYTES]", multiple=True,
              help="Its objects. [default: as many as the log names]")  # fmt: skip
@_SEATS
@_OUTPUT
@common(output=False)
def preflight(common_: Common, *, output_: str, **options: Any) -> int:
    """Say what an agent will cost on a large cluster, before it is rolled out.

    It takes the agent's behaviour on few nodes from an audit log, and scales it.
    """
    from fairlead.cli.doctor.preflight import run_preflight

    return run_preflight(common_, _format(output_), options)


@doctor.command(
    epilog="""Examples:

    \b
      fairlead doctor metrics http://127.0.0.1:9090 --uses dashboards/ --uses rules.yaml
      fairlead doctor metrics http://127.0.0.1:9090 --uses dashboards/ -o json

    Exit codes: 0 little is unused, 1 over 30 % is unused, something is large or cannot finish, 3 no
    answer.
    """
)
@click.argument("url", metavar="URL")
@_OUTPUT
@click.option("--uses", metavar="PATH", multiple=True,
              help="Dashboards, rules, autoscalers or queries: files or directories.")  # fmt: skip
@access_flags("the server", "token-file", "login-file", "ca-file")
@common(output=False, cluster=False)
def metrics(common_: Common, *, url: str, output_: str, **options: Any) -> int:
    """Say which series of a Prometheus server nothing uses, and write the rules that drop them.

    A metric is used when a rule of the server or an expression of --uses names it. The rules are
    replayed over the status of the TSDB before they are shown; nothing is changed.
    """
    from fairlead.cli.doctor.metrics import run_metrics

    return run_metrics(common_, url, _format(output_), options)


@doctor.command(
    epilog="""Examples:

    \b
      fairlead doctor alerts > rules.yaml            a rule file of Prometheus
      fairlead doctor alerts --operator | kubectl apply -n monitoring -f -
      fairlead doctor alerts --job etcd=my-etcd
    """
)
@click.option("--operator", is_flag=True, help="A PrometheusRule for the Prometheus operator.")
@click.option("--runbooks", metavar="URL", default="",
              help="Where you serve docs/reference, for runbook_url. "
              "[default: no links]")  # fmt: skip
@click.option("-o", "--output", "output_", metavar="FORMAT", default="yaml", show_default=True,
              shell_complete=words("json", "yaml"), help="yaml or json.")  # fmt: skip
@_SCRAPE
@common(output=False, cluster=False)
def alerts(
    common_: Common, *, operator: bool, runbooks: str, output_: str, jobs: tuple[str, ...]
) -> int:
    """Write the alert rules for Prometheus: those on Fairlead, and one for each check.

    A check becomes a rule when Prometheus has what it measures. The limits are those of the check.
    """
    from fairlead.cli.doctor.monitoring import write_alerts

    return write_alerts(common_, _format(output_, ("json", "yaml")), jobs, operator=operator,
                        runbooks=runbooks)  # fmt: skip


@doctor.command(
    epilog="""Examples:

    \b
      fairlead doctor dashboards boards/     then import them, or provision the folder
    """
)
@click.argument("directory", metavar="DIRECTORY")
@_SCRAPE
@common(output=False, cluster=False)
def dashboards(common_: Common, *, directory: str, jobs: tuple[str, ...]) -> int:
    """Write the boards for Grafana into a directory, a JSON file for each."""
    from fairlead.cli.doctor.monitoring import write_boards

    return write_boards(common_, directory, jobs)


@doctor.command(
    epilog="""Examples:

    \b
      fairlead doctor snapshot http://127.0.0.1:9090 > boards.html
      fairlead doctor snapshot http://127.0.0.1:9090 --board control-plane --since 1d > etcd.html
      fairlead doctor snapshot http://127.0.0.1:9090 --since 5h --until 3h > incident.html

    Exit codes: 0, or 3 when the server does not answer.
    """
)
@click.argument("url", metavar="URL")
@click.option("--board", metavar="NAME", multiple=True,
              shell_complete=words("jobs", "teams", "fleet", "controllers", "control-plane"),
              help="jobs, teams, fleet, controllers or control-plane. [default: all]")  # fmt: skip
@click.option("--since", metavar="DURATION", default="6h", show_default=True,
              help="Draw from so long ago.")  # fmt: skip
@click.option("--until", metavar="DURATION", default="0s", show_default=True,
              help="Draw to so long ago.")  # fmt: skip
@access_flags("the server", "token-file", "login-file", "ca-file")
@_SCRAPE
@common(output=False, cluster=False)
def snapshot(common_: Common, *, url: str, **options: Any) -> int:
    """Draw the boards from a Prometheus, as one HTML page for where there is no Grafana.

    The page loads nothing and runs nothing, so it can be attached to a ticket. Each panel has its
    query; one without data says so. At most 300 queries are sent, one at a time.
    """
    from fairlead.cli.doctor.monitoring import write_snapshot

    return write_snapshot(common_, url, options)
