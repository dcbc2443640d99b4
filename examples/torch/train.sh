#!/bin/sh
# Train with PyTorch: two nodes, two processes on each, started by torchrun. Submit it from the root of
# the checkout, where `python3` has torch:
#
#     fairlead submit examples/torch/train.sh -- --steps 300
#
#FAIRLEAD --nodes 2
#FAIRLEAD --cpus 100m
#FAIRLEAD --memory 1Gi
#FAIRLEAD --time 10m
set -eu
export OMP_NUM_THREADS=1
exec "${PYTHON:-python3}" -m torch.distributed.run --nproc_per_node 2 --max_restarts 0 examples/torch/train.py "$@"
