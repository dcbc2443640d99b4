"""The daemons of the control plane and of a node: their commands and configuration files.

Settings that are there for a reason that the daemons' own manuals do not give have it beside them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.cluster.credentials import kubeconfig_path
from tools.cluster.layout import (
    CONTROL_PLANE,
    DNS_DOMAIN,
    NODE_DIRECTORIES,
    NODE_RUN_DIRECTORIES,
    Layout,
)
from tools.cluster.machine import PLUGINS

PAUSE_IMAGE = "docker.io/library/pause:fairlead"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
#: Part of this machine's memory that all nodes together offer.
MEMORY_SHARE = 0.75
_SYSCTLS = {
    "net.ipv4.ip_forward": "1",
    "net.ipv4.conf.all.route_localnet": "1",
    "net.bridge.bridge-nf-call-iptables": "1",
}


def _write(path: Path, content: str | dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    return str(path)


# --- the control plane


def write_control_plane(layout: Layout, binaries: Path) -> Path:
    """Write what the control plane's first process reads; return its home."""
    home = layout.home(CONTROL_PLANE)
    images = home / "registry"
    images.mkdir(parents=True, exist_ok=True)
    commands = {
        "etcd": _etcd(home),
        "kube-apiserver": _api_server(layout),
        "kube-controller-manager": _controller_manager(layout),
        "kube-scheduler": _scheduler(layout),
        "coredns": ["-conf", _write(home / "Corefile", _corefile(layout))],
        # The API server calls webhooks by the addresses of their Services.
        "kube-proxy": [f"--config={_kube_proxy(layout, CONTROL_PLANE)}"],
        "crane": [
            "registry", "serve", f"--address={layout.registry}", f"--disk={images}",
        ],
    }  # fmt: skip
    _write(home / "node.json", {
        "name": f"fairlead-{CONTROL_PLANE}", "directories": [], "runDirectories": [],
        "sysctls": {"net.ipv4.ip_forward": "1"},
        "daemons": {name: [str(binaries / name), *flags] for name, flags in commands.items()},
    })  # fmt: skip
    return home


def _etcd(home: Path) -> list[str]:
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    return [
        "--name=fairlead", f"--data-dir={home / 'etcd'}",
        f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=fairlead={peer}", "--log-level=warn",
        "--unsafe-no-fsync",  # a power cut of this machine costs the cluster, which is for trying
    ]  # fmt: skip


def _api_server(layout: Layout) -> list[str]:
    pki = layout.directory / "pki"
    return [
        "--etcd-servers=http://127.0.0.1:2379", "--secure-port=6443",
        f"--bind-address={layout.address(CONTROL_PLANE)}",
        f"--advertise-address={layout.address(CONTROL_PLANE)}",
        f"--service-cluster-ip-range={layout.services}",
        f"--cert-dir={layout.home(CONTROL_PLANE) / 'certificates'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={layout.ca}",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--token-auth-file={pki / 'tokens.csv'}",
        f"--service-account-key-file={pki / 'service-accounts.key'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    ]  # fmt: skip


def _controller_manager(layout: Layout) -> list[str]:
    home = layout.home(CONTROL_PLANE)
    return [
        f"--kubeconfig={kubeconfig_path(layout, 'kube-controller-manager')}",
        "--bind-address=127.0.0.1", "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={layout.directory / 'pki/service-accounts.key'}",
        # Kubelets renew their leases every 10 s; the default of 50 s suits slow networks.
        "--node-monitor-grace-period=20s",
        # Without it no pod starts: each namespace needs kube-root-ca.crt.
        f"--root-ca-file={layout.ca}",
        f"--cert-dir={home / 'kube-controller-manager'}",
        # It makes that directory; the default is outside of the cluster's, and would stay.
        f"--flex-volume-plugin-dir={home / 'flex-volumes'}",
    ]  # fmt: skip


def _scheduler(layout: Layout) -> list[str]:
    home = layout.home(CONTROL_PLANE)
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig_path(layout, "kube-scheduler"))},
    }
    return [
        f"--config={_write(home / 'kube-scheduler.json', config)}", "--bind-address=127.0.0.1",
        f"--cert-dir={home / 'kube-scheduler'}",
    ]  # fmt: skip


def _corefile(layout: Layout) -> str:
    """Names of the cluster, and NXDOMAIN for all others.

    The second zone matters: with SERVFAIL for `NAME.default.svc` resolvers retry for seconds.
    """
    return f"""{DNS_DOMAIN}:53 in-addr.arpa:53 {{
  bind {layout.address(CONTROL_PLANE)}
  errors
  kubernetes {DNS_DOMAIN} in-addr.arpa {{
    kubeconfig {kubeconfig_path(layout, "coredns")} fairlead
    pods insecure
    ttl 30
  }}
  cache 30 {{
    disable success {DNS_DOMAIN}
    disable denial {DNS_DOMAIN}
  }}
}}
.:53 {{
  bind {layout.address(CONTROL_PLANE)}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
"""


def _kube_proxy(layout: Layout, machine: str) -> str:
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": layout.pods,
        "hostnameOverride": machine if machine in layout.nodes else layout.nodes[0],
        "bindAddress": layout.address(machine),
        "healthzBindAddress": f"{layout.address(machine)}:10256",
        "clientConnection": {"kubeconfig": str(kubeconfig_path(layout, "kube-proxy"))},
        # The limits of connection tracking are the machine's, not a namespace's.
        "conntrack": {
            "maxPerCore": 0, "min": 0,
            "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
        },
        "oomScoreAdj": 0,
    }  # fmt: skip
    return _write(layout.home(machine) / "kube-proxy.json", config)


# --- a node


def write_node(layout: Layout, node: str, binaries: Path) -> Path:
    """Write what a node's first process reads; return its home."""
    home = layout.home(node)
    _write(home / "cni" / "10-pods.conflist", _pod_network(layout, node))
    _write(home / "registries" / "_default" / "hosts.toml", _registries(layout))
    kubelet = [
        str(binaries / "kubelet"), f"--config={_kubelet(layout, node)}",
        f"--kubeconfig={kubeconfig_path(layout, node)}", f"--hostname-override={node}",
        f"--node-ip={layout.address(node)}", "--cert-dir=/var/lib/kubelet/pki",
        "--root-dir=/var/lib/kubelet",
    ]  # fmt: skip
    _write(home / "node.json", {
        "name": node, "sysctls": _SYSCTLS,
        "directories": NODE_DIRECTORIES, "runDirectories": NODE_RUN_DIRECTORIES,
        "daemons": {
            "containerd": ["containerd", "-c", _write(home / "containerd.toml", _containerd(home))],
            "kubelet": kubelet,
            "kube-proxy": [str(binaries / "kube-proxy"), f"--config={_kube_proxy(layout, node)}"],
        },
    })  # fmt: skip
    return home


def _pod_network(layout: Layout, node: str) -> dict[str, Any]:
    addresses = {
        "type": "host-local", "dataDir": "/var/lib/cni/addresses",
        "ranges": [[{"subnet": layout.pods_of(node)}]], "routes": [{"dst": "0.0.0.0/0"}],
    }  # fmt: skip
    bridge = {
        "type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True,
        "ipMasq": False, "ipam": addresses,
    }  # fmt: skip
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}


def _registries(layout: Layout) -> str:
    """Send all pulls to the cluster's own registry: there is no other that nodes can reach."""
    url = f"http://{layout.registry}"
    return f'''server = "{url}"
[host."{url}"]
  capabilities = ["pull", "resolve"]
'''


def _containerd(home: Path) -> str:
    return f'''version = 2
root = "{home / "containerd"}"
state = "/run/containerd/state"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{home / "opt"}"
[plugins."io.containerd.grpc.v1.cri"]
  # runc ends with a broken pipe where it may not lower the score, as without CAP_SYS_RESOURCE.
  restrict_oom_score_adj = true
  # Pods' network namespaces stay out of the machine's /run/netns.
  netns_mounts_under_state_dir = true
  sandbox_image = "{PAUSE_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{home / "cni"}"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{home / "registries"}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
'''


def memory_kibibytes() -> int:
    """Return the memory of this machine."""
    return int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0])


def _kubelet(layout: Layout, node: str) -> str:
    total = memory_kibibytes()
    others = total - int(total * MEMORY_SHARE / layout.size)
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.address(node),
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.ca)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        # Kubelets that share a root delete the groups of each other's pods.
        "cgroupRoot": f"/{layout.cgroup}/{node}",
        "clusterDNS": [layout.dns],
        "clusterDomain": DNS_DOMAIN,
        "resolvConf": _write(
            layout.home(node) / "resolv.conf", f"nameserver {layout.address(CONTROL_PLANE)}\n"
        ),
        # The disk is shared with all else on this machine: its fill level is none of the nodes'.
        "evictionHard": {
            "nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "50Mi",
        },
        "imageGCHighThresholdPercent": 100,
        # As IMG-01 of the doctor asks: else each image waits for all that began before.
        "serializeImagePulls": False,
        "maxParallelImagePulls": 5,
        # Each node sees the memory of the whole machine, and offers its part.
        "systemReserved": {"memory": f"{others}Ki"},
        "enforceNodeAllocatable": ["pods"],
        "volumePluginDir": "/var/lib/kubelet/plugins/volume",
    }  # fmt: skip
    return _write(layout.home(node) / "kubelet.json", config)
