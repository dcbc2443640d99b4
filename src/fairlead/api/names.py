"""Every label, annotation, taint, finalizer and condition name that Fairlead reads or writes."""

from __future__ import annotations

GROUP = "fairlead.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
# Served where it is asked for, and never stored.
BETA_VERSION = "v1beta1"
BETA_API_VERSION = f"{GROUP}/{BETA_VERSION}"
#: How the version of an API server of `fairlead up` ends.
EMBEDDED_BUILD = "+fairlead"

# Labels on pods (and on ConfigMaps and Services that belong to a job).
JOB_NAME = f"{GROUP}/job-name"
JOB_UID = f"{GROUP}/job-uid"
ROLE = f"{GROUP}/role"
INDEX = f"{GROUP}/index"
RANK = f"{GROUP}/rank"
ATTEMPT = f"{GROUP}/attempt"
TEAM = f"{GROUP}/team"

# Label on jobs, for selectors; what counts is the number in the status.
JOB_NUMBER = f"{GROUP}/job-number"

# Labels on the jobs of an array's elements, for selectors; what decides is their owner.
ARRAY = f"{GROUP}/array"
ARRAY_INDEX = f"{GROUP}/array-index"
ARRAY_NUMBER = f"{GROUP}/array-number"

# Label on the pods of tests of nodes: the suite.
NODE_TEST = f"{GROUP}/node-test"
# Label on those of them that leave as soon as work comes to their node.
NODE_TEST_YIELDS = f"{GROUP}/node-test-yields"

# Label on the pods that pull an image onto a node: the uid of the object that they do it for.
IMAGE_PULL = f"{GROUP}/image-pull"

# Annotations.
HELD_BY_ARRAY = f"{GROUP}/held-by-array"  # on an element's job: the array holds it, no person does
STOPPED_EARLY = f"{GROUP}/stopped-early"  # on jobs that a rule cancels: what it says of it
PROGRESS = f"{GROUP}/progress"  # on pods: JSON of api.job.Progress, written by the node
USE = f"{GROUP}/use"  # on pods that have ended: JSON of api.use.MemberUse, written by the node
RUN = f"{GROUP}/run"  # on pods: JSON of api.run_facts.RunFacts, written by the node
WORK = f"{GROUP}/work"  # on pods: JSON of decide.jobs.own_work.OwnWork, written by the node
RUN_TAGS = f"{GROUP}/run-tags"  # on jobs and arrays: tags, with commas between them
RUN_NOTE = f"{GROUP}/run-note"
RUN_SOURCE = f"{GROUP}/run-source"  # JSON of api.run_facts.RunSource
INTERNET_INGRESS = f"{GROUP}/internet-ingress"  # the same for what they receive
INTERNET_EGRESS = f"{GROUP}/internet-egress"  # on pods: bits per second, such as 200M
MPI = f"{GROUP}/mpi"  # on templates of roles: "true" has a key made for `fairlead.member.mpirun`
SLURM_TASKS = f"{GROUP}/slurm-tasks"  # on templates of batch scripts: PER_NODE, PER_NODE/TOTAL
HOSTFILE = f"{GROUP}/hostfile"  # on the pod of a lone member: its host file
SUBMITTED_BY = f"{GROUP}/submitted-by"
CORDONED_BY = f"{GROUP}/cordoned-by"
MAINTENANCE = f"{GROUP}/maintenance"  # on a node: START/END, two RFC 3339 times
MAINTENANCE_ANNOUNCED = (
    f"{GROUP}/maintenance-announced"  # on a node: MAINTENANCE as its provider announced it
)
UNREACHABLE = f"{GROUP}/unreachable"  # on a node: SINCE, or SINCE/UNTIL, when no one reached it
DRAIN = f"{GROUP}/drain"  # on a node: SINCE/DEADLINE, a person empties it
HEALTH_DRAIN = f"{GROUP}/health-drain"  # the same for a fault, written with HEALTH
HEALTH = f"{GROUP}/health"  # on a node: what is done about its faults, JSON of model.node_record
TICKETS = f"{GROUP}/tickets"  # on a node: where its faults were reported, JSON of model.health
REPAIRED = f"{GROUP}/repaired"  # on a node: when a person said that its faults are mended
RETIRE = f"{GROUP}/retire"  # on a node: why a person wants its machine to go for good
#: On pods: what network plugins limit, or do not; bits per second, such as 200M.
EGRESS_BANDWIDTH = "kubernetes.io/egress-bandwidth"
INGRESS_BANDWIDTH = "kubernetes.io/ingress-bandwidth"
MIRROR_POD = "kubernetes.io/config.mirror"  # on pods that a kubelet runs by itself
REMOVAL = f"{GROUP}/removal"  # on nodes: why the fleet controller will remove it
DEFRAGMENT = f"{GROUP}/defragment"  # on jobs: "true" has running gangs moved for it
DEFAULTS = f"{GROUP}/defaults"  # on jobs: what admission filled in, and by whose defaults
NUDGE = f"{GROUP}/nudge"  # on definitions that are deleted: how often the API server was reminded
RECORD_CUT = f"{GROUP}/record-cut"  # in records of jobs: the fields that are left out
FENCE = f"{GROUP}/fence"  # on jobs: the term that outdated all earlier placements
GROUP_SIZE = (
    f"{GROUP}/size"  # on pods of others: how many belong to their group, where no owner says
)

# On pods of others and their namespaces: "enabled" has them placed as gangs, "disabled" on a pod
# excepts it. Their gate keeps kube-scheduler off until the gang has its place.
GANG_SCHEDULING = f"{GROUP}/gang-scheduling"
GANG_GATE = f"{GROUP}/gang"
GANG_NAME = f"{GROUP}/gang-name"  # label on pods of others: the group, where no tool makes one

# On nodes: "direct" or "pinned", how members are bound there.
BINDING = f"{GROUP}/binding"

# Finalizers.
JOB_FINALIZER = f"{GROUP}/job"
POOL_FINALIZER = f"{GROUP}/pool"  # until it is said or done what becomes of the pool's machines

# Taints.
TAINT_NOT_READY = "node.kubernetes.io/not-ready"
TAINT_UNREACHABLE = "node.kubernetes.io/unreachable"
TAINT_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
TAINT_LOCAL = f"{GROUP}/local"
#: On pods of virtual nodes: how long they run, and how they end.
SIMULATE_SECONDS = f"{GROUP}/simulate-seconds"
SIMULATE_EXIT_CODE = f"{GROUP}/simulate-exit-code"
TAINT_JOINING = f"{GROUP}/joining"  # a new node takes no work before Fairlead lifts it
TAINT_RETURNING = f"{GROUP}/returning"  # nor does one that comes back after an outage
TAINT_UNHEALTHY = f"{GROUP}/unhealthy"  # a fault keeps new work off the node
TAINT_PREFLIGHT = f"{GROUP}/preflight"  # a new node takes no work before it passed a test
TAINT_SPARE = f"{GROUP}/spare"  # the node replaces lost nodes of running gangs, and takes no others

# Well-known labels of others.
HOSTNAME = "kubernetes.io/hostname"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
ZONE = "topology.kubernetes.io/zone"
ROLE_LABEL_PREFIX = "node-role.kubernetes.io/"
BLOCK = f"{GROUP}/block"
RACK = f"{GROUP}/rack"
BALLOON = f"{GROUP}/balloon"  # on balloons: a digest of what they were made from
NODE_TYPE = f"{GROUP}/node-type"  # "local" or "virtual" on the embedded cluster
TUNING_PROFILE = f"{GROUP}/tuning-profile"  # on nodes: the profile that their agents use
POOL = f"{GROUP}/pool"
#: The same on a group of GCP or Azure, whose labels and tags have no slashes.
CLOUD_POOL = "fairlead-pool"
#: Tags of machines that are launched through EC2 Fleet: the cluster, and the token of the launch.
CLOUD_CLUSTER = f"{GROUP}/cluster"
CLOUD_LAUNCH = f"{GROUP}/launch"
MANAGED_BY = "app.kubernetes.io/managed-by"

#: Made by the installation: a negative priority, but not below what autoscalers take for expendable
#: (the option expendable-pods-priority-cutoff of cluster-autoscaler, -10 by default).
BALLOON_PRIORITY_CLASS = "fairlead-balloon"
BALLOON_IMAGE = (
    "registry.k8s.io/pause:3.10"
    "@sha256:ee6521f290b2168b6e0935a181d4cff9be1ac3f505666ef0e3c98fae8199917a"
)

# Conditions.
ADMITTED = "Admitted"
PLACED = "Placed"
RUNNING = "Running"
SUCCEEDED = "Succeeded"
FAILED = "Failed"
#: The job is going to fail; its pods are on their way out (the condition of batch/v1 Jobs).
FAILURE_TARGET = "FailureTarget"
READY = "Ready"
COMPLETE, PASSED = "Complete", "Passed"
FROZEN = "Frozen"
SET_ASIDE = "SetAside"

# Job environment (set on every container of every member).
ENV_JOB = "FAIRLEAD_JOB"
ENV_JOB_UID = "FAIRLEAD_JOB_UID"
ENV_ATTEMPT = "FAIRLEAD_ATTEMPT"
#: The number of the job, under the names that scripts for Slurm read.
ENV_NUMBER = ("SLURM_JOB_ID", "SLURM_JOBID")
ENV_ROLE = "FAIRLEAD_ROLE"
ENV_NODE = "FAIRLEAD_NODE"  # of the test before a program alone
ENV_INDEX = "FAIRLEAD_INDEX"
ENV_HOSTFILE = "FAIRLEAD_HOSTFILE"
ENV_CHECKPOINT_DIR = "FAIRLEAD_CHECKPOINT_DIR"
ENV_PROGRESS_FILE = "FAIRLEAD_PROGRESS_FILE"
ENV_RUN_FILE = "FAIRLEAD_RUN_FILE"
ENV_RESUME_STEP = "FAIRLEAD_RESUME_STEP"
ENV_MPI_KEY_FILE = "FAIRLEAD_MPI_KEY_FILE"
# Of the members of an array's elements.
ENV_ARRAY = "FAIRLEAD_ARRAY"
ENV_ARRAY_INDEX = "FAIRLEAD_ARRAY_INDEX"
PEERS_MOUNT = "/etc/fairlead"
MPI_KEY_MOUNT = "/etc/fairlead-mpi"
MPI_KEY = "key"
#: The container that tests the nodes of a gang before its program.
PREFLIGHT_CONTAINER = "fairlead-preflight"
MPIRUN = "fairlead.member.mpirun"
BATCH = "fairlead.member.batch"
CHECKPOINT_MOUNT = "/var/lib/fairlead/checkpoint"
MASTER_PORT = 29500

#: Exit code of a member that was stopped because another one ended; what runs in the members
#: (`fairlead.member.mpirun.EXIT_STOPPED`) imports nothing of ours and has it by itself.
EXIT_STOPPED = 75
#: A member could not reach the others, or find their names, in time (EX_UNAVAILABLE).
EXIT_UNAVAILABLE = 69

DEFAULT_NAMESPACE = "default"
#: Where Fairlead's own pods are, unless another namespace was chosen.
OWN_NAMESPACE = "fairlead-system"
#: Where kubelets renew the leases of their nodes.
NODE_LEASES_NAMESPACE = "kube-node-lease"
