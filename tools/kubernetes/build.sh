#!/usr/bin/env bash
# Build the control plane that the tests run against, once per version, into a cache outside the source
# tree. Prints the directory of the binaries, and nothing else, on standard output.
#
# With KUBEBUILDER_ASSETS set, that directory is taken as it is. With --where nothing is built.
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
digest=$(cat go.mod go.sum $(printf 'cmd/%s/main.go ' $commands) | sha256sum | cut -c1-12)
target=${FAIRLEAD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fairlead}/kubernetes-$version-$digest
stamp="-X k8s.io/component-base/version.gitVersion=$version"
stamp="$stamp -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor"

if [ "${1:-}" = --where ]; then
  echo "$target"
  exit 0
fi

mkdir -p "$target"
# informers is a client of ours, not part of the control plane: built anew when its source is newer.
for command in $commands informers; do
  [ -x "$target/$command" ] && ! { [ $command = informers ] && [ cmd/informers/main.go -nt "$target/$command" ]; } && continue
  echo "building $command $version" >&2
  CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $stamp" -o "$target/$command.new" "./cmd/$command" >&2
  mv "$target/$command.new" "$target/$command"
done
# helm is a client too, of another module: its version stands in tools/helm/go.mod, and in its name here.
helm=$(cat ../helm/go.mod ../helm/go.sum | sha256sum | cut -c1-12)
if [ ! -x "$target/helm-$helm" ]; then
  echo "building helm" >&2
  (cd ../helm && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$target/helm-$helm.new" helm.sh/helm/v4/cmd/helm) >&2
  mv "$target/helm-$helm.new" "$target/helm-$helm"
fi
ln -sfn "helm-$helm" "$target/helm"
echo "$target"
