"""One module per group; each has `run(report)`."""
