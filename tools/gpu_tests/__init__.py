"""All tests of GPUs on one GPU, with faults that are planted: `make test-gpu`."""
