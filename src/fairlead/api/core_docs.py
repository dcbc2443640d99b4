"""One sentence for each field of the structs in `api.core`, shown by `kubectl explain`.

Keyed by the struct's name, then by the field's name on the wire. A unit test fails when a field
has no sentence here. Fields that Fairlead only stores (`api.core_more`) share `KEPT`.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.api import webhooks

KEPT = "Kept as written and handed back; nothing on the embedded cluster acts on it."
KIND = "Name of the kind, in CamelCase."
API_VERSION = "Group and version of the kind, such as fairlead.dev/v1alpha1."
METADATA = "Name, labels, annotations and what else every object carries."

_META = {
    "OwnerReference": {
        "apiVersion": "Group and version of the owner.",
        "kind": "Kind of the owner.",
        "name": "Name of the owner.",
        "uid": "Identity of the owner; another object of the same name is no owner.",
        "controller": "True for the one owner that manages this object.",
        "blockOwnerDeletion": "True: the owner, deleted in the foreground, waits for this object.",
    },
    "ObjectMeta": {
        "name": "Name of the object, unique in its kind and namespace.",
        "generateName": "Prefix from which the server makes a unique name when none is given.",
        "namespace": "Namespace of the object; empty for cluster-scoped kinds.",
        "uid": "Identity of the object, set by the server, never used again.",
        "resourceVersion": "Version of the object; a write that names an old one is refused.",
        "generation": "Counts changes of the spec.",
        "creationTimestamp": "When the object was created.",
        "deletionTimestamp": "When the object is to be gone; set once deletion was asked for.",
        "deletionGracePeriodSeconds": "Seconds that the object has to end in good order.",
        "labels": "Short keys and values by which objects are selected.",
        "annotations": "Keys and values for tools and people; not selectable.",
        "ownerReferences": "Objects that this one belongs to; it is deleted after the last one.",
        "finalizers": "Who must still do something before the object may go.",
        "selfLink": "No longer used.",
        "managedFields": "Which writer owns which field.",
    },
    "Condition": {
        "type": "The aspect that is observed, unique in the list.",
        "status": "True, False or Unknown.",
        "reason": "One CamelCase word for why.",
        "message": "Why, for people.",
        "observedGeneration": "The metadata.generation that this was observed at.",
        "lastTransitionTime": "When the status changed last.",
    },
}

_NODE = {
    "Taint": {
        "key": "Key of the taint.",
        "effect": "NoSchedule, PreferNoSchedule or NoExecute.",
        "value": "Value of the taint; may be empty.",
        "timeAdded": "When a NoExecute taint was added.",
    },
    "NodeSpec": {
        "unschedulable": "True while the node is cordoned: no new pods are placed on it.",
        "taints": "What keeps pods away that do not tolerate it.",
        "providerID": "Name of the machine at the cloud provider.",
        "podCIDR": "Address range of the node's pods.",
    },
    "NodeAddress": {
        "type": "InternalIP, ExternalIP, Hostname, InternalDNS or ExternalDNS.",
        "address": "The address itself.",
    },
    "NodeCondition": {
        "type": "The aspect that is observed, such as Ready or DiskPressure.",
        "status": "True, False or Unknown.",
        "reason": "One CamelCase word for why.",
        "message": "Why, for people.",
        "lastHeartbeatTime": "When the node reported last.",
        "lastTransitionTime": "When the status changed last.",
    },
    "NodeSystemInfo": {
        "machineID": "Identity of the installation.",
        "systemUUID": "Identity of the hardware.",
        "bootID": "Identity of the running boot.",
        "kernelVersion": "Version of the kernel.",
        "osImage": "Name of the operating system's image.",
        "containerRuntimeVersion": "Container runtime and its version.",
        "kubeletVersion": "Version of the node's agent.",
        "kubeProxyVersion": "Version of the node's proxy.",
        "operatingSystem": "Operating system, such as linux.",
        "architecture": "Processor architecture, such as amd64.",
    },
    "NodeStatus": {
        "capacity": "All that the node has, by resource.",
        "allocatable": "What the node offers to pods, by resource.",
        "conditions": "Observed aspects, such as Ready.",
        "addresses": "Addresses of the node.",
        "nodeInfo": "What the node says of its software.",
    },
    "Node": {"spec": "What the node is to be.", "status": "What the node is and has."},
}

_CONTAINER = {
    "ResourceRequirements": {
        "requests": "Amounts that are set aside; what is not given equals the limit.",
        "limits": "Amounts that the container may use at most.",
    },
    "KeySelector": {
        "name": "Name of the ConfigMap or Secret, in the pod's namespace.",
        "key": "Key whose value is taken.",
        "optional": "True: start even if the key is not there.",
    },
    "FieldSelector": {
        "fieldPath": "Field of the pod, such as status.podIP.",
        "apiVersion": "Version of the API that the path is of.",
    },
    "EnvVarSource": {
        "configMapKeyRef": "A key of a ConfigMap.",
        "secretKeyRef": "A key of a Secret.",
        "fieldRef": "A field of the pod.",
        "resourceFieldRef": "A request or limit of the container.",
        "fileKeyRef": "A key of a file of variables.",
    },
    "ResourceFieldSelector": {
        "resource": "What is taken, such as limits.cpu.",
        "containerName": "Container that it is taken from; by default this one.",
        "divisor": "Unit in which the amount is given.",
    },
    "FileKeySelector": {
        "key": "Key whose value is taken.",
        "path": "Path of the file within the volume.",
        "volumeName": "Name of the volume that holds the file.",
        "optional": "True: start even if it is not there.",
    },
    "EnvironmentReference": {
        "name": "Name of the ConfigMap or Secret, in the pod's namespace.",
        "optional": "True: start even if it is not there.",
    },
    "EnvFromSource": {
        "prefix": "Put before each key.",
        "configMapRef": "A ConfigMap whose keys become variables.",
        "secretRef": "A Secret whose keys become variables.",
    },
    "ContainerPort": {
        "containerPort": "Number of the port.",
        "name": "Name of the port, unique in the pod.",
        "protocol": "TCP, UDP or SCTP.",
        "hostPort": "Port of the node that leads to it.",
        "hostIP": "Address of the node that leads to it.",
    },
    "EnvVar": {
        "name": "Name of the variable.",
        "value": "Value of the variable; $(NAME) names an earlier one.",
        "valueFrom": "Where the value comes from instead.",
    },
    "VolumeMount": {
        "name": "Name of the volume.",
        "mountPath": "Path in the container.",
        "subPath": "Path within the volume to mount instead of its root.",
        "readOnly": "True: the container can't write to it.",
    },
    "Container": {
        "name": "Name of the container, unique in the pod.",
        "image": "Image to run.",
        "command": "Program and first arguments, in the place of the image's entrypoint.",
        "args": "Further arguments.",
        "workingDir": "Directory to start in.",
        "env": "Environment variables.",
        "envFrom": "ConfigMaps and Secrets whose keys all become variables; `env` wins.",
        "ports": "Ports that the container listens on, for information.",
        "resources": "Resources that the container needs and may use.",
        "volumeMounts": "Where volumes appear in the container.",
        "restartPolicy": "Always makes an init container one that runs beside the others.",
    },
    "ContainerStateRunning": {"startedAt": "Since when it runs."},
    "ContainerStateTerminated": {
        "exitCode": "Exit code; 128 and more mean a signal.",
        "signal": "Signal that ended it; 0 for none.",
        "reason": "One word for why.",
        "message": "Why, for people.",
        "startedAt": "When it started.",
        "finishedAt": "When it ended.",
    },
    "ContainerStateWaiting": {
        "reason": "One word for what it waits for.",
        "message": "What it waits for, for people.",
    },
    "ContainerState": {
        "waiting": "Set while the container does not run yet.",
        "running": "Set while the container runs.",
        "terminated": "Set once the container has ended.",
    },
    "ContainerStatus": {
        "name": "Name of the container.",
        "ready": "True when it is ready for work.",
        "restartCount": "How often it was started again.",
        "image": "Image that it runs.",
        "imageID": "Identity of that image.",
        "containerID": "Identity of the container.",
        "state": "What it does now.",
        "lastState": "How it ended before its last restart.",
        "started": "True once it has started.",
    },
}

_POD = {
    "Toleration": {
        "key": "Key of the taint; empty with operator Exists for every taint.",
        "operator": "Equal or Exists.",
        "value": "Value of the taint, for Equal.",
        "effect": "Effect of the taint; empty for all.",
        "tolerationSeconds": "How long a NoExecute taint is tolerated; absent for ever.",
    },
    "ConfigMapVolumeSource": {
        "name": "Name of the ConfigMap.",
        "optional": "True: start even if it is not there.",
    },
    "HostPathVolumeSource": {
        "path": "Path on the host.",
        "type": "What must be there, such as Directory; empty for anything.",
    },
    "EmptyDirVolumeSource": {"medium": "Memory keeps the directory in memory; empty on disk."},
    "ClaimVolumeSource": {
        "claimName": "Name of the claim.",
        "readOnly": "True: mount it read-only.",
    },
    "Volume": {
        "name": "Name of the volume, unique in the pod.",
        "configMap": "A ConfigMap as files.",
        "hostPath": "A path of the host.",
        "emptyDir": "A directory that lives as long as the pod.",
        "persistentVolumeClaim": "A claim of the pod's namespace.",
    },
    "SchedulingGate": {"name": "Name of the gate."},
    "PodSchedulingGroup": {"podGroupName": "PodGroup that the pod is placed with."},
    "NodeSelectorRequirement": {
        "key": "Label of the node, or the field metadata.name.",
        "operator": "In, NotIn, Exists, DoesNotExist, Gt or Lt.",
        "values": "Values to compare with.",
    },
    "NodeSelectorTerm": {
        "matchExpressions": "Conditions on labels; all must hold.",
        "matchFields": "Conditions on fields; all must hold.",
    },
    "NodeSelector": {"nodeSelectorTerms": "Terms, of which one must hold."},
    "NodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": "What a node must fulfil.",
    },
    "Affinity": {"nodeAffinity": "Which nodes the pod may go to."},
    "PodSpec": {
        "containers": "The containers of the pod; at least one.",
        "initContainers": "Containers that run one after the other before the others start.",
        "volumes": "Volumes that containers may mount.",
        "nodeName": "Node that the pod is on; empty until it is placed.",
        "nodeSelector": "Labels that the node must have.",
        "affinity": "Further conditions on the node.",
        "tolerations": "Taints that the pod may be placed in spite of.",
        "restartPolicy": "Always, OnFailure or Never. Members of a Fairlead job run with Never.",
        "terminationGracePeriodSeconds": "Seconds from the request to stop to the kill.",
        "activeDeadlineSeconds": "Seconds that the pod may run.",
        "priorityClassName": "Name of a PriorityClass.",
        "priority": "Priority, set from the class.",
        "schedulerName": "Scheduler that places the pod.",
        "schedulingGates": "The pod is not scheduled while there are any.",
        "schedulingGroup": "The group that kube-scheduler places the pod with.",
        "hostname": "Host name of the pod.",
        "subdomain": "Subdomain of the pod's host name.",
        "overhead": "Resources that running the pod costs beside its containers.",
    },
    "PodCondition": {
        "type": "The aspect that is observed, such as Ready.",
        "status": "True, False or Unknown.",
        "reason": "One CamelCase word for why.",
        "message": "Why, for people.",
        "lastProbeTime": "When it was looked at last.",
        "lastTransitionTime": "When the status changed last.",
    },
    "PodStatus": {
        "phase": "Pending, Running, Succeeded, Failed or Unknown.",
        "conditions": "Observed aspects, such as Ready.",
        "reason": "One word for why the pod is in this phase.",
        "message": "Why, for people.",
        "hostIP": "Address of the node.",
        "podIP": "Address of the pod.",
        "startTime": "When the node took the pod on.",
        "containerStatuses": "State of each container.",
        "initContainerStatuses": "State of each init container.",
    },
    "Pod": {"spec": "What the pod is to be.", "status": "What the pod does."},
    "PodTemplate": {"spec": "What the pods are to be."},
}

_OTHERS = {
    "ConfigMap": {"data": "The values, by key."},
    "Secret": {"data": "The values, by key, in base64."},
    "NamespaceStatus": {"phase": "Active, or Terminating while its objects are deleted."},
    "Namespace": {"status": "Whether it is in use."},
    "ServicePort": {
        "port": "Port of the service.",
        "name": "Name of the port.",
        "protocol": "TCP, UDP or SCTP.",
    },
    "ServiceSpec": {
        "clusterIP": "Address of the service; None makes it headless.",
        "selector": "Labels of the pods that are behind it.",
        "ports": "Ports of the service.",
        "publishNotReadyAddresses": "True: names resolve to pods that are not ready too.",
    },
    "Service": {"spec": "What the service is to be."},
    "ObjectReference": {
        "kind": "Kind of the object.",
        "namespace": "Namespace of the object.",
        "name": "Name of the object.",
        "uid": "Identity of the object.",
        "apiVersion": "Group and version of the object.",
        "resourceVersion": "Version of the object that is meant.",
        "fieldPath": "Part of the object that is meant.",
    },
    "EventSource": {"component": "Program that reports.", "host": "Node that it runs on."},
    "Event": {
        "involvedObject": "What the event is about.",
        "reason": "One CamelCase word for what happened.",
        "message": "What happened, for people.",
        "source": "Who reports it.",
        "firstTimestamp": "When it happened first.",
        "lastTimestamp": "When it happened last.",
        "count": "How often it happened.",
        "type": "Normal or Warning.",
        "eventTime": "When it happened, to the microsecond.",
        "reportingComponent": "Controller that reports it.",
        "reportingInstance": "Instance of that controller.",
        "action": "What was done or failed.",
    },
    "PriorityClass": {
        "value": "The priority; higher goes first.",
        "globalDefault": "True: pods without a class get this one.",
        "preemptionPolicy": "PreemptLowerPriority or Never.",
        "description": "When to use the class, for people.",
    },
    "LeaseSpec": {
        "holderIdentity": "Who holds the lease.",
        "leaseDurationSeconds": "Seconds after which a lease that was not renewed is free.",
        "acquireTime": "When the holder took it.",
        "renewTime": "When the holder renewed it last.",
        "leaseTransitions": "How often the holder changed.",
    },
    "Lease": {"spec": "The lease itself."},
    "CustomResourceDefinition": {
        "spec": "Group, names, scope and versions of the kind, with a schema for each version.",
        "status": "Which names were accepted and whether the kind is served.",
    },
}

DOCS: Mapping[str, Mapping[str, str]] = {
    **_META, **_NODE, **_CONTAINER, **_POD, **_OTHERS, **webhooks.DOCS,
}  # fmt: skip
