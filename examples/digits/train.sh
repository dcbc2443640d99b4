#!/bin/sh
# Train on digits over MPI. Every member of the job runs this script; mpirun makes one communicator
# of them. Submit it from the root of the checkout, in the environment that `make setup` made:
#
#     fairlead submit examples/digits/train.sh -- --steps 600
#
#FAIRLEAD --nodes 4
#FAIRLEAD --cpus 100m
#FAIRLEAD --memory 256Mi
#FAIRLEAD --time 10m
set -eu
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
python=${PYTHON:-python}
exec "$python" -m fairlead.member.mpirun -- "$python" examples/digits/train.py "$@"
