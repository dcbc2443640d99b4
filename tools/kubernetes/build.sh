#!/usr/bin/env bash
# Build the control plane that the tests run against, once per version, into a cache outside the source
# tree. Prints the directory of the binaries, and nothing else, on standard output.
#
# --nodes builds what whole nodes need as well: kubelet and kube-proxy. --where builds nothing.
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
[ "${1:-}" = --nodes ] && build_module crane github.com/google/go-containerregistry/cmd/crane
echo "$target"
