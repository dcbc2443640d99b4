#!/usr/bin/env bash
# Build the control plane that the tests run against, once per version, into a cache outside the source
# tree. Prints the directory of the binaries, and nothing else, on standard output.
#
# --nodes builds what whole nodes need as well: kubelet and kube-proxy, and what provides volumes and devices. --operators builds the managers of other
# gang tools, and puts the manifests of their modules beside them. --where builds nothing.
# With KUBEBUILDER_ASSETS set, that directory is taken as it is.
set -euo pipefail
cd "$(dirname "$0")"

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  echo "$KUBEBUILDER_ASSETS"
  exit 0
fi
if ! command -v go >/dev/null; then
  echo "no Go here: install Go 1.26, or set KUBEBUILDER_ASSETS to a directory with kube-apiserver and etcd" >&2
  exit 3
fi

version=$(sed -n 's/^\tk8s.io\/kubernetes \(v.*\)$/\1/p' go.mod)
minor=${version#v1.}; minor=${minor%%.*}
commands="etcd kube-apiserver kube-controller-manager kube-scheduler kubectl pki"
node_commands="kubelet kube-proxy pause"
digest=$(cat go.mod go.sum $(printf 'cmd/%s/main.go ' $commands $node_commands) | sha256sum | cut -c1-12)
target=${FAIRLEAD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fairlead}/kubernetes-$version-$digest
stamp="-X k8s.io/component-base/version.gitVersion=$version"
stamp="$stamp -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor"

if [ "${1:-}" = --where ]; then
  echo "$target"
  exit 0
fi
[ "${1:-}" = --nodes ] && commands="$commands $node_commands"

mkdir -p "$target"
# informers is a client of ours, not part of the control plane: built again when its source is newer.
for command in $commands informers; do
  [ -x "$target/$command" ] && ! { [ $command = informers ] && [ cmd/informers/main.go -nt "$target/$command" ]; } && continue
  echo "building $command $version" >&2
  CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $stamp" -o "$target/$command.new" "./cmd/$command" >&2
  mv "$target/$command.new" "$target/$command"
done

# build_module COMMAND PACKAGE [TAGS]: a command of a module of its own (../COMMAND), whose digest is in the file's name.
build_module() {
  local command=$1 package=$2 tags=${3:-} name
  name=$command-$(cat "../$command"/go.* $(ls "../$command"/*.go 2>/dev/null) | sha256sum | cut -c1-12)
  if [ ! -x "$target/$name" ]; then
    echo "building $command" >&2
    (cd "../$command" && CGO_ENABLED=0 go build -trimpath -tags "$tags" -ldflags "-s -w" -o "$target/$name.new" "$package") >&2
    mv "$target/$name.new" "$target/$name"
  fi
  ln -sfn "$name" "$target/$command"
}
build_module helm helm.sh/helm/v4/cmd/helm
build_module promql .
build_module prometheus github.com/prometheus/prometheus/cmd/prometheus remove_all_sd
build_module coredns .
build_module dex .
if [ "${1:-}" = --nodes ]; then
  build_module crane github.com/google/go-containerregistry/cmd/crane
  # Beside Kubernetes, for tests: volumes and devices of nodes. Their modules name the versions of tools/kubernetes, as far
  # as they share any, so that what is compiled for that is not compiled again.
  build_module local-path-provisioner github.com/rancher/local-path-provisioner
  build_module dra-driver .
fi

# build_operator GRAPH NAME PACKAGE MODULE KINDS WEBHOOKS [FILE SED]: the manager of a tool of a graph (../GRAPH), the
# definitions of its kinds (a directory of its module) and its webhook configurations (a directory, or -), into
# $operators. SED is for what a manager has no option for: an address or a path outside the directory that it runs in.
build_operator() {
  local graph=$1 name=$2 package=$3 module=$4 kinds=$5 webhooks=$6 file=${7:-} source changed=()
  [ -x "$operators/$name" ] && return
  echo "building $name" >&2
  cd "../$graph"
  go mod download "$module" >&2  # its directory is nowhere before
  source=$(go list -m -f '{{.Dir}}' "$module")
  if [ -n "$file" ]; then
    rm -rf "$operators/$name.source"
    cp -r --no-preserve=mode "$source" "$operators/$name.source"
    sed -i "$8" "$operators/$name.source/$file"
    cp go.mod "$operators/$name.mod"
    cp go.sum "$operators/$name.sum"
    go mod edit -replace "$module=$operators/$name.source" "$operators/$name.mod"
    changed=(-modfile "$operators/$name.mod")
  fi
  CGO_ENABLED=0 go build -trimpath "${changed[@]}" -ldflags "-s -w" -o "$operators/$name.new" "$package" >&2
  cat "$source/$kinds"/*.*_*.yaml >"$operators/$name-kinds.yaml"
  [ "$webhooks" = - ] || cp "$source/$webhooks/manifests.yaml" "$operators/$name-webhooks.yaml"
  mv "$operators/$name.new" "$operators/$name"
  rm -rf "$operators/$name.source"
  cd ../kubernetes
}
if [ "${1:-}" = --operators ]; then
  operators=$target/operators-$(cat ../operators/go.* ../kubeflow/go.* build.sh | sha256sum | cut -c1-12)
  mkdir -p "$operators"
  ln -sfn "$(basename "$operators")" "$target/operators"
  kubeflow=github.com/kubeflow kuberay=github.com/ray-project/kuberay/ray-operator
  build_operator operators jobset sigs.k8s.io/jobset sigs.k8s.io/jobset \
    config/components/crd/bases config/components/webhook
  build_operator operators lws sigs.k8s.io/lws/cmd sigs.k8s.io/lws config/crd/bases config/webhook
  build_operator operators kuberay $kuberay $kuberay config/crd/bases -
  build_operator kubeflow trainer $kubeflow/trainer/v2/cmd/trainer-controller-manager $kubeflow/trainer/v2 \
    manifests/base/crds manifests/base/webhook
  build_operator kubeflow mpi-operator $kubeflow/mpi-operator/cmd/mpi-operator $kubeflow/mpi-operator \
    manifests/base - cmd/mpi-operator/app/server.go 's/fmt.Sprintf(":%d", healthCheckPort)/"127.0.0.1:0"/'
  build_operator kubeflow kueue sigs.k8s.io/kueue/cmd/kueue sigs.k8s.io/kueue \
    config/components/crd/bases config/components/webhook \
    cmd/kueue/main.go 's/"\/etc\/kueue\/metrics\/certs"/"k8s-webhook-server\/serving-certs"/'
fi
echo "$target"
