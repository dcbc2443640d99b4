"""Which virtual pods wait for which ConfigMaps."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.api.kubernetes.core import ConfigMap
from fairlead.embedded.virtual.stages.records import PodRecord
from fairlead.embedded.virtual.stages.status import config_needs
from fairlead.runtime.watching.mirror import Mirror

Key = tuple[str, str]


class ConfigWaits:
    """The pods that wait, by ConfigMap."""

    def __init__(self, maps: Mirror[ConfigMap]) -> None:
        self._maps = maps
        self._waiting: dict[Key, dict[str, None]] = {}

    def waiting_for(self, key: Key) -> Sequence[str]:
        """Return the uids of the pods that wait for a ConfigMap."""
        return list(self._waiting.get(key, ()))

    def missing(self, record: PodRecord) -> str:
        """Return what config the pod waits for, "" when nothing; and note that it waits for it."""
        needs = config_needs(record.pod)
        namespace = record.pod.metadata.namespace
        for name in needs.maps:
            if self._maps.get(namespace, name) is None:
                self._waiting.setdefault((namespace, name), {})[record.uid] = None
                return f'configmap "{name}" not found'
        for name, key in needs.keys:
            found = self._maps.get(namespace, name)
            if found is not None and key not in found.data:
                self._waiting.setdefault((namespace, name), {})[record.uid] = None
                return f"couldn't find key {key} in ConfigMap {namespace}/{name}"
        return ""

    def leave(self, record: PodRecord) -> None:
        """Take in that the pod waits for nothing any more."""
        namespace = record.pod.metadata.namespace
        for name in config_needs(record.pod).maps:
            uids = self._waiting.get((namespace, name))
            if uids is not None:
                uids.pop(record.uid, None)
                if not uids:
                    del self._waiting[namespace, name]
