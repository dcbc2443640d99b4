#!/bin/sh
# Writes the facts of this node as `key = value`. It only reads; what a node lacks is left out.
fact() { [ -z "$2" ] || printf 'fairlead.%s = %s\n' "$1" "$2"; }
{
  (
    cd /proc/sys && grep -s . kernel/* fs/* fs/inotify/* vm/max_map_count net/core/* \
      net/netfilter/* net/ipv4/* net/ipv4/conf/all/* net/ipv4/neigh/default/* \
      net/ipv6/neigh/default/* | sed 's/:/ = /'
  )

  # Neighbour tables: how often each was full. TCP: segments sent, and sent again.
  for table in arp ndisc; do
    fulls=0
    { read -r line; while read -r line; do set -- $line; fulls=$((fulls + 0x${13})); done; } \
      < /proc/net/stat/${table}_cache && fact ${table}_table_fulls "$fulls"
  done
  fact tcp_sent "$(awk '$1 == "Tcp:" && $2 + 0 { print $12 }' /proc/net/snmp)"
  fact tcp_retransmitted "$(awk '$1 == "Tcp:" && $2 + 0 { print $13 }' /proc/net/snmp)"

  # The interface of the default route, packet sizes, tunnels, shaping, rules, RDMA.
  nic=$(ip -o -4 route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)
  if [ -n "$nic" ]; then
    fact nic_mtu "$(cat "/sys/class/net/$nic/mtu")"
    fact nic_speed_mbps "$(cat "/sys/class/net/$nic/speed")"
    fact nic_tx_queues "$(ls "/sys/class/net/$nic/queues" | grep -c '^tx-')"
  fi
  if veths=$(ip -o link show type veth); then
    fact pod_mtu "$(echo "$veths" | sed -n 's/.* mtu \([0-9]*\).*/\1/p' | sort -n | tail -n 1)"
    fact tunnels "$(for type in vxlan geneve ipip; do ip -o link show up type $type; done |
      grep -c .)"
  fi
  if qdiscs=$(tc qdisc show); then fact tbf_qdiscs "$(echo "$qdiscs" | grep -c '^qdisc tbf')"; fi
  if rules=$(iptables-save); then fact iptables_rules "$(echo "$rules" | grep -c '^-A')"; fi
  fact rdma_devices "$(ls /sys/class/infiniband | grep -c .)"

  # The container runtime: settings, limits, the disk of its images, pinned images of sandboxes.
  # Of pulls the transfer service has its own, where the section of Kubernetes hands them to it.
  if config=$(containerd config dump); then
    config=$(echo "$config" | tr -d "\"' ")
    setting() {
      echo "$config" | awk -F= -v name="$1" '
        /^\[/ { cri = /cri/; service = /io\.containerd\.transfer/ }
        cri && $1 == name && own == "" { own = $2 }
        service && $1 == name { other = $2 }
        cri && /^use_local_image_pull=false/ { hands = 1 }
        cri && /^(disable_snapshot_annotations=false|discard_unpacked_layers=true)/ { keeps = 1 }
        cri && /^image_pull_with_sync_fs=true/ { keeps = 1 }
        cri && $1 == "max_concurrent_downloads" && $2 != 3 { keeps = 1 }
        END { print hands && !keeps && other != "" ? other : own }'
    }
    for name in max_concurrent_downloads image_pull_progress_timeout \
      concurrent_layer_fetch_buffer; do
      fact containerd.$name "$(setting $name)"
    done
    pid=$(pidof containerd) && fact containerd_memlock \
      "$(awk '/^Max locked memory/ { print $4 }' "/proc/${pid%% *}/limits")"
    root=$(echo "$config" | awk -F= '$1 == "root" { print $2; exit }')
    fact containerd_disk "$(findmnt -no SOURCE,FSTYPE -T "$root" | tr -s ' ')"
    source=$(findmnt -no SOURCE -T "$root")
    if [ -b "$source" ]; then
      fact containerd_disk_model "$(lsblk -sno MODEL "$source" | grep -m 1 .)"
      fact containerd_disk_rotational "$(lsblk -sno ROTA "$source" | tail -n 1 | tr -d ' ')"
    fi
  fi
  if [ -n "$config" ]; then sandbox=$(setting sandbox)$(setting sandbox_image); fi
  if [ -n "$sandbox" ] && images=$(ctr -n k8s.io images ls); then
    fact pinned_sandbox_images "$(echo "$images" | grep -F "$sandbox" | grep -c pinned=pinned)"
  fi
} 2>/dev/null
