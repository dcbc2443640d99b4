#!/usr/bin/env bash
# Build Kubernetes' own end-to-end tests of its API machinery, once per version, into a cache outside the
# source tree. Takes about 12 minutes of CPU time. Prints the path of the binary on standard output.
#
# With --where nothing is built.
set -euo pipefail
cd "$(dirname "$0")"

digest=$(cat go.mod go.sum suite_test.go | sha256sum | cut -c1-12)
target=${FAIRLEAD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fairlead}/kubernetes-e2e-$digest/e2e.test
if [ "${1:-}" != --where ] && [ ! -x "$target" ]; then
  if ! command -v go >/dev/null; then
    echo "no Go here: install Go 1.26" >&2
    exit 3
  fi
  echo "building Kubernetes' end-to-end tests" >&2
  mkdir -p "$(dirname "$target")"
  CGO_ENABLED=0 go test -c -vet=off -trimpath -ldflags "-s -w" -o "$target.new" . >&2
  mv "$target.new" "$target"
fi
echo "$target"
