"""Names of container images as they are compared: each image has one, however it is written.

A job says `pytorch/pytorch`, a node that has pulled it `docker.io/pytorch/pytorch:latest`.
kube-scheduler's ImageLocality adds the tag and no more, so it misses that one
(`pkg/scheduler/framework/plugins/imagelocality`, `normalizedImageName`, which says so itself). The
registry and `library/` follow the rule of container runtimes (`distribution/reference`,
`ParseNormalizedNamed`).
"""

from __future__ import annotations

from functools import lru_cache

from fairlead.api.kubernetes.core import PodSpec

_REGISTRY, _OFFICIAL, _TAG = "docker.io", "library/", "latest"
#: Thousands of jobs share a few; the nodes of a large cluster report some ten thousand names,
#: each of them many times, and what is kept of a node holds these texts.
NAMES_CACHED_MAX = 65_536


@lru_cache(maxsize=NAMES_CACHED_MAX)
def full_image_name(name: str) -> str:
    """Return the name with its registry and a tag; with a digest, which says more, without a tag.

    >>> full_image_name("pytorch/pytorch")
    'docker.io/pytorch/pytorch:latest'
    """
    path, at, digest = name.partition("@")
    first, slash, rest = path.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, rest = _REGISTRY, path
    if first == _REGISTRY and "/" not in rest:
        rest = _OFFICIAL + rest
    folder, slash, last = rest.rpartition("/")
    image, _, tag = last.partition(":")
    version = f"@{digest}" if at else f":{tag or _TAG}"
    return f"{first}/{folder}{slash}{image}{version}"


def images_of(spec: PodSpec) -> tuple[str, ...]:
    """Return the full names of the images of a pod's containers, each once, in order."""
    names = {each.image for each in (*spec.init_containers, *spec.containers) if each.image}
    return tuple(sorted(set(map(full_image_name, names))))
