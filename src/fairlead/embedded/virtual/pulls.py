"""Pulls of images by virtual nodes: how long they take, and what the nodes have afterwards.

A model of rates: a node and a registry each have so many bytes a second, which the pulls there
share alike, and a pull gets the lesser of its two shares. What a node has of an image's layers is
not pulled again, and two pods that need one image on one node wait for one pull, as with
containerd. Whenever a pull begins or ends, the bytes that are left are counted anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from fairlead.api.kubernetes.core import ContainerImage
from fairlead.api.kubernetes.image_names import full_image_name
from fairlead.embedded.virtual.profile import ImagesSpec
from fairlead.embedded.virtual.stages.records import SIMULTANEOUS_SECONDS

#: What every node has: the sandbox image of pods.
_SANDBOX, _SANDBOX_BYTES = "registry.k8s.io/pause:3.10", 300_000
#: What is left of a pull that is over: a timer may be due so much early, and floats round.
_OVER_BYTES, _EARLY_SECONDS = 1.0, 2 * SIMULTANEOUS_SECONDS

Done = Callable[[str], None]


@dataclass(slots=True)
class _Transfer:
    """A pull under way, and the pods that wait for it."""

    node: str
    image: str
    registry: str
    left: float
    waiting: dict[str, None] = field(default_factory=dict[str, None])


@dataclass(slots=True)
class _Pod:
    """A pod that waits for images; `done` is called with what went wrong, or ""."""

    node: str
    images: dict[str, None]
    done: Done


class ImagePulls:
    """The images of all virtual nodes, and the pulls under way. Without rates nothing is pulled."""

    def __init__(
        self,
        spec: ImagesSpec | None,
        *,
        now: Callable[[], float],
        timer: Callable[[float, Callable[[], None]], None],
        changed: Callable[[str], None],
    ) -> None:
        """`changed(node)` is called when a node has one image more."""
        self._spec, self._now, self._timer, self._changed = spec, now, timer, changed
        self._images = {
            full_image_name(name): dict(layers)
            for name, layers in (spec.layers if spec else {}).items()
        }
        self._has: dict[str, dict[str, None]] = {}
        self._layers: dict[str, dict[str, int]] = {}
        self._transfers: dict[tuple[str, str], _Transfer] = {}
        self._pods: dict[str, _Pod] = {}
        self._at, self._generation = 0.0, 0

    def register(self, node: str, images: Iterable[ContainerImage]) -> None:
        """Take in a node, with the images that it reported before."""
        if self._spec is None:
            return
        self._has[node], self._layers[node] = {}, {}
        for name in (name for image in images for name in image.names or ()):
            self._keep(node, full_image_name(name))
        self._changed(node)

    def report(self, node: str) -> list[dict[str, Any]]:
        """Return the images of a node as its status has them, the largest first."""
        sizes = {name: sum(self._images[name].values()) for name in self._has.get(node, ())}
        sizes[_SANDBOX] = _SANDBOX_BYTES
        ordered = sorted(sizes.items(), key=lambda each: (-each[1], each[0]))
        return [{"names": [name], "sizeBytes": size} for name, size in ordered]

    def lacks(self, node: str, images: Iterable[str]) -> list[str]:
        """Return the images, by full names, that a node does not have."""
        if self._spec is None:
            return []
        has = self._has.get(node, {})
        return [name for name in images if name not in has and name != _SANDBOX]

    def pull(self, node: str, images: Iterable[str], uid: str, done: Done) -> None:
        """Pull images for a pod whose node lacks them; `done` is called unless it leaves before."""
        self.leave(uid)
        pod = _Pod(node, dict.fromkeys(images), done)
        unknown = next((name for name in pod.images if name not in self._images), None)
        if unknown is not None:
            text = f'failed to pull and unpack image "{unknown}": not found'
            self._timer(self._now(), lambda: done(text))
            return
        self._pods[uid] = pod
        self._advance()
        present = self._layers.setdefault(node, {})
        for image in pod.images:
            layers = self._images[image]
            left = sum(size for name, size in layers.items() if name not in present)
            registry = image.partition("/")[0]
            new = _Transfer(node, image, registry, left)
            self._transfers.setdefault((node, image), new).waiting[uid] = None
        self._plan()

    def leave(self, uid: str) -> None:
        """Take in that a pod does not wait any more: a pull that nobody waits for ends."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        self._advance()
        for image in pod.images:
            transfer = self._transfers.get((pod.node, image))
            if transfer is not None:
                transfer.waiting.pop(uid, None)
                if not transfer.waiting:
                    del self._transfers[pod.node, image]
        self._plan()

    def _rates(self) -> dict[tuple[str, str], float]:
        """Return bytes per second by pull."""
        spec = self._spec
        assert spec is not None
        on_node = Counter(each.node for each in self._transfers.values())
        of_registry = Counter(each.registry for each in self._transfers.values())
        return {
            key: min(
                spec.node_bytes_per_second / on_node[each.node],
                spec.registry_bytes_per_second / of_registry[each.registry],
            )
            for key, each in self._transfers.items()
        }

    def _advance(self) -> None:
        """Count what was pulled since the last change."""
        now = self._now()
        for key, rate in self._rates().items() if now > self._at else ():
            self._transfers[key].left -= rate * (now - self._at)
        self._at = now

    def _plan(self) -> None:
        """Set the timer of the next end."""
        self._generation += 1
        generation, rates = self._generation, self._rates()
        ends = [each.left / rates[key] for key, each in self._transfers.items()]
        if ends:
            self._timer(self._now() + max(min(ends), 0.0), lambda: self._due(generation))

    def _due(self, generation: int) -> None:
        if generation != self._generation:
            return
        rates = self._rates()
        self._advance()
        over = [
            each for key, each in self._transfers.items()
            if each.left <= max(_OVER_BYTES, rates[key] * _EARLY_SECONDS)
        ]  # fmt: skip
        for transfer in over:
            del self._transfers[transfer.node, transfer.image]
            self._keep(transfer.node, transfer.image)
            self._changed(transfer.node)
        self._plan()
        for transfer in over:
            for uid in transfer.waiting:
                pod = self._pods[uid]
                del pod.images[transfer.image]
                if not pod.images:
                    del self._pods[uid]
                    pod.done("")

    def _keep(self, node: str, image: str) -> None:
        layers = self._images.get(image)
        if layers is not None:
            self._has.setdefault(node, {})[image] = None
            self._layers.setdefault(node, {}).update(layers)
