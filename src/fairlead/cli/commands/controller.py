"""`controller`: the scheduler and the jobs controller against a Kubernetes cluster."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.api.names import OWN_NAMESPACE
from fairlead.cli.connection.common import Common, common
from fairlead.cli.connection.connect import Choice, replica_connection
from fairlead.input.errors import Code, Exit, fail

if TYPE_CHECKING:
    from fairlead.app.configuration.policies import Policies
    from fairlead.webhook.service import WebhookOptions

LISTEN_DEFAULT = "0.0.0.0:8080"
#: For the cluster to stop sending API servers to a pod that is going.
WEBHOOK_LINGER_SECONDS = 5.0


@click.command(
    epilog="""Examples:

    \b
      fairlead controller                          in a pod: its service account
      fairlead controller --context staging        beside the cluster, for a look
      fairlead controller --listen 127.0.0.1:0     probes and metrics on a free port

    Several may run at a time: one leads, the others take over when it ends or falls silent.
    SIGTERM hands over at once.
    """
)
@click.option(
    "--listen", metavar="ADDR", default=LISTEN_DEFAULT, show_default=True,
    help="HOST:PORT of /healthz, /readyz and /metrics.",
)  # fmt: skip
@click.option(
    "--lease", metavar="NAME", default="fairlead-controller", show_default=True,
    help="Lease that the leader holds, in the namespace of -n.",
)  # fmt: skip
@click.option(
    "--lease-seconds", metavar="N", type=click.IntRange(2, 3600), default=15, show_default=True,
    help="A leader that is silent for so long is replaced.",
)  # fmt: skip
@click.option(
    "--peer-naming", type=click.Choice(["dns", "address"]), default="dns", show_default=True,
    help="How members find each other: names of a headless service, or pod addresses.",
)  # fmt: skip
@click.option(
    "--binding", type=click.Choice(["native", "pinned", "direct"]), default="native",
    show_default=True,
    help="Who binds members on nodes without the label fairlead.dev/binding. native: the stock "
    "scheduler, small gangs as a PodGroup where the API server has those; pinned: the stock "
    "scheduler, to the node that Fairlead says; direct: Fairlead, for nodes that no other "
    "scheduler fills.",
)  # fmt: skip
@click.option(
    "--checkpoint-root", metavar="DIR", default="",
    help="Directory of the nodes under which jobs get checkpoints. [default: none]",
)  # fmt: skip
@click.option(
    "--settings", "settings_file", metavar="FILE", default="",
    help="Settings of the controllers. [default: none]",
)  # fmt: skip
@click.option(
    "--history", metavar="FILE|URL", default="",
    help="SQLite file or postgresql:// URL that keeps jobs that have ended, and logs. Also: "
    "FAIRLEAD_HISTORY_URL, which no list of processes shows. [default: in memory]",
)  # fmt: skip
@click.option(
    "--webhook-listen", metavar="ADDR", default="",
    help="HOST:PORT where API servers may ask about new pods and jobs, and pass on what fairlead "
    "history and logs ask, over TLS. fairlead install sets 0.0.0.0:9443. [default: nowhere]",
)  # fmt: skip
@click.option(
    "--webhook-cert-dir", metavar="DIR", type=click.Path(path_type=Path), default=None,
    help="Directory with tls.crt and tls.key that somebody else renews. [default: made and renewed "
    "in the Secret fairlead-webhook]",
)  # fmt: skip
@click.option(
    "--webhook-convert",
    is_flag=True,
    help="Also convert objects between v1alpha1 and v1beta1 there. fairlead install sets it where "
    "crds.v1beta1 is true.",
)
@common(output=False)
def controller(
    common_: Common, *, listen: str, lease: str, lease_seconds: int, peer_naming: str,
    binding: str, checkpoint_root: str, settings_file: str, history: str, webhook_listen: str,
    webhook_cert_dir: Path | None, webhook_convert: bool,
) -> int:  # fmt: skip
    """Run the controllers on a Kubernetes cluster.

    In a pod it uses the pod's service account, elsewhere the kubeconfig. `fairlead install` puts
    it on a cluster. Logs are JSON unless stderr is a terminal.
    """
    from fairlead.app.configuration.controller_settings import load_settings
    from fairlead.app.configuration.settings import parse_listen
    from fairlead.app.operator import OperatorSettings
    from fairlead.app.operator_process import (
        identity_of,
        run_operator,
    )
    from fairlead.app.replica import ReplicaSettings
    from fairlead.cli.cluster.archive import direct_store
    from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
    from fairlead.decide.leader_election import LeaseTimes
    from fairlead.decide.pinning import Binding
    from fairlead.runtime.leading.leader import LeaderOptions

    host, port = parse_listen(listen)
    naming = PeerNaming.DNS if peer_naming == "dns" else PeerNaming.ADDRESS
    jobs = JobsPolicy(peer_naming=naming, binding=Binding(binding), checkpoint_root=checkpoint_root)
    given = load_settings(settings_file)
    jobs = replace(jobs, preflight_image=given.health.test_image or None)
    policies = given.policies(jobs)
    choice = Choice(common_.kubeconfig, common_.context)
    connection = replica_connection(choice, os.environ)
    namespace = common_.namespace or os.environ.get("POD_NAMESPACE") or OWN_NAMESPACE
    policies = policies.with_balloons(namespace, Binding(binding))
    settings = OperatorSettings(
        ReplicaSettings(
            identity_of(os.environ),
            LeaderOptions(lease, namespace, LeaseTimes.of(float(lease_seconds))),
            policies,
        ),
        host=host,
        port=port,
        webhook=_webhook(
            webhook_listen, webhook_cert_dir, namespace, policies, converts=webhook_convert
        ),
        notices=given.notices,
        audit=given.audit,
    )
    store = direct_store(history, os.environ)
    run_operator(settings, connection, store=store, verbosity=common_.verbosity)
    return Exit.OK


def _webhook(
    listen: str, directory: Path | None, namespace: str, policies: Policies, *, converts: bool
) -> WebhookOptions | None:
    """Return how the webhook is to be served; None when it is not."""
    from fairlead.app.configuration.settings import parse_listen
    from fairlead.webhook.service import WebhookOptions

    if not listen:
        if directory is not None or converts:
            option = "--webhook-convert" if converts else "--webhook-cert-dir"
            raise fail(
                Code.BAD_COMBINATION, f"{option} takes --webhook-listen",
                help=("--webhook-listen 0.0.0.0:9443",),
            )  # fmt: skip
        return None
    host, port = parse_listen(listen, "--webhook-listen")
    is_in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    return WebhookOptions(
        host=host, port=port, namespace=namespace, directory=directory, converts=converts,
        system_namespaces=policies.teams.system_namespaces, terms=policies.terms,
        linger_seconds=WEBHOOK_LINGER_SECONDS if is_in_pod else 0.0,
    )  # fmt: skip
