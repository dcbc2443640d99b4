"""What a site of Slurm has written down, as objects and settings of Fairlead, and compared with it.

`conf` reads lines of slurm.conf, `fleet` its nodes and partitions, `options` the rest of it;
`accounts` reads sacctmgr's and scontrol's output, `manifests` makes objects of all of it, and
`nodes_check` compares what a running Slurm says of its nodes with those of the cluster.
"""
