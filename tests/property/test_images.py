"""What holds of pulls whatever is wished, whatever fails, and whenever the controller dies."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.kubernetes.core import Pod
from fairlead.decide.images.book import PullBook
from fairlead.decide.images.plan import EndPull, PullEnding, StartPull, plan
from fairlead.decide.images.pods import Taken, pull_pod
from fairlead.decide.images.policy import RATE_SECONDS, ImagesPolicy
from fairlead.decide.images.view import ImageNode, ImagesView, Owner, SeenPull, Wish
from fairlead.model.asks.image_pulls import is_pull

REGISTRIES = ("a.example", "b.example")
POLICY = ImagesPolicy(
    pulls_per_registry_max=3, pulls_per_namespace_max=2, pulls_max=5, starts_per_registry_max=4,
    namespace="own",
)  # fmt: skip


@dataclass
class Pulls:
    """A cluster that carries out what is decided: each pull lasts, fails, or ends well."""

    nodes: dict[str, ImageNode]
    wishes: list[Wish]
    policy: ImagesPolicy = POLICY
    instant: float = 1000.0
    book: PullBook = field(default_factory=lambda: PullBook(1000.0 - RATE_SECONDS))
    pods: dict[str, Pod] = field(default_factory=dict[str, Pod])
    starting: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    starts: list[tuple[float, StartPull]] = field(default_factory=list[tuple[float, StartPull]])

    def step(self) -> list[EndPull]:
        """Decide once, and carry it out."""
        seen = [SeenPull.of(pod) for pod in self.pods.values()]
        view = ImagesView(self.nodes, self.wishes, seen, self.starting)
        ends: list[EndPull] = []
        for action in plan(view, self.book, self.policy, self.instant).actions:
            if isinstance(action, EndPull):
                ends.append(action)
                del self.pods[action.pod.metadata.name]
                continue
            body = pull_pod(action, Taken({}), self.policy)
            body["metadata"]["uid"] = f"{len(self.starts)}"
            pod = msgspec.convert(body, Pod)
            assert is_pull(pod)
            assert pod.metadata.name not in self.pods, "the same pull twice"
            self.pods[pod.metadata.name] = pod
            self.starts.append((self.instant, action))
        self.check()
        return ends

    def check(self) -> None:
        """Check the bounds of what is under way and of what began in any window."""
        registry, space, node = Counter[str](), Counter[str](), Counter[str]()
        for pod in self.pods.values():
            registry[pod.spec.containers[0].image.partition("/")[0]] += 1
            space[pod.metadata.namespace] += 1
            node[pod.spec.node_name] += 1
        policy = self.policy
        assert len(self.pods) <= policy.pulls_max
        assert max(registry.values(), default=0) <= policy.pulls_per_registry_max
        space.pop("own", None)
        assert max(space.values(), default=0) <= policy.pulls_per_namespace_max
        assert max(node.values(), default=0) <= policy.pulls_per_node_max
        for name in REGISTRIES:
            times = [at for at, each in self.starts if each.image.startswith(name)]
            for first, last in zip(times, times[policy.starts_per_registry_max :], strict=False):
                assert last - first >= RATE_SECONDS, (name, first, last)

    def end(self, name: str, *, well: bool) -> None:
        """Let the kubelet say how a pull went."""
        pod = self.pods[name]
        image, node = pod.spec.containers[0].image, self.nodes[pod.spec.node_name]
        if well:
            images = {**node.images, image: 10**9}
            self.nodes[node.name] = with_images(node, images)
        waiting = {"reason": "ImagePullBackOff", "message": "no"}
        ended = {"exitCode": 128, "reason": "StartError"}
        state = {"terminated": ended} if well else {"waiting": waiting}
        status: dict[str, Any] = {"name": "pull", "imageID": image if well else "", "state": state}
        self.pods[name] = msgspec.structs.replace(
            pod, status=msgspec.convert({"containerStatuses": [status]}, type(pod.status))
        )


def with_images(node: ImageNode, images: dict[str, int]) -> ImageNode:
    return ImageNode(
        node.name, node.uid, images, len(images), sum(images.values()), node.disk_bytes,
        node.is_open,
    )  # fmt: skip


def a_node(
    name: str, images: dict[str, int] | None = None, *, disk: int = 0, is_open: bool = True
) -> ImageNode:
    images = images or {}
    return ImageNode(name, f"uid-{name}", images, len(images), sum(images.values()), disk, is_open)


def a_wish(owner: str, image: str, nodes: list[str], *, namespace: str = "") -> Wish:
    kind = "Job" if namespace else "ImageSet"
    return Wish(Owner(kind, namespace, owner, f"uid-{owner}"), image, tuple(nodes))


IMAGES = [f"{registry}/i{i}:1" for registry in REGISTRIES for i in range(3)]
NODES = [f"n{i}" for i in range(8)]
WISHES = st.lists(
    st.builds(
        a_wish, st.sampled_from(["x", "y", "z"]), st.sampled_from(IMAGES),
        st.lists(st.sampled_from(NODES), unique=True, max_size=8),
        namespace=st.sampled_from(["", "one", "two"]),
    ),
    max_size=6, unique_by=lambda wish: (wish.owner.uid, wish.image),
)  # fmt: skip
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(0, 40)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("fail"), st.integers(0, 9)),
        st.tuples(st.just("die"), st.just(0)),
        st.tuples(st.just("start"), st.integers(0, 7)),
        st.tuples(st.just("run"), st.integers(0, 7)),
        st.tuples(st.just("close"), st.integers(0, 7)),
        st.tuples(st.just("drop"), st.integers(0, 5)),
    ),
    max_size=60,
)  # fmt: skip


@given(WISHES, EVENTS)
@settings(max_examples=150, deadline=None)
def test_the_rates_hold_over_every_window_and_no_one_is_pulled_for_beyond_his_nodes(
    wishes: list[Wish], events: list[tuple[str, int]]
) -> None:
    world = Pulls({name: a_node(name) for name in NODES}, wishes)
    world.step()
    for what, number in events:
        node, names = NODES[number % len(NODES)], sorted(world.pods)
        if what == "wait":
            world.instant += number
        elif what in ("end", "fail") and names:
            world.end(names[number % len(names)], well=what == "end")
        elif what == "die":
            world.book = PullBook(world.instant)
        elif what == "start":
            world.starting[node] = frozenset({IMAGES[0]})
        elif what == "run":
            world.starting.pop(node, None)
        elif what == "close":
            known = world.nodes[node]
            world.nodes[node] = a_node(node, dict(known.images), is_open=not known.is_open)
        elif what == "drop" and world.wishes:
            world.wishes = [w for i, w in enumerate(world.wishes) if i != number]
        world.step()
        wished = {(w.owner.uid, w.image, n) for w in world.wishes for n in w.nodes}
        for pod in world.pods.values():
            seen = SeenPull.of(pod)
            assert seen.key in wished, "what nobody wishes any more is pulled"
            busy = world.starting.get(pod.spec.node_name)
            assert busy is None or seen.key[1] in busy, "a pull is in the way of work"
            assert world.nodes[pod.spec.node_name].is_open
    assert {(a.owner.uid, a.image, a.node) for _, a in world.starts} <= {
        (w.owner.uid, w.image, n) for w in wishes for n in w.nodes
    }


@given(WISHES)
@settings(max_examples=80, deadline=None)
def test_whatever_is_wished_is_there_in_the_end_once_nothing_fails(wishes: list[Wish]) -> None:
    world = Pulls({name: a_node(name) for name in NODES}, wishes)
    for _ in range(400):
        world.step()
        for name in sorted(world.pods):
            world.end(name, well=True)
        world.instant += 5.0
    world.step()
    assert world.pods == {}
    for wish in wishes:
        for node in wish.nodes:
            assert wish.image in world.nodes[node].images


def test_a_thousand_nodes_that_pull_one_image_keep_to_the_rate_of_its_registry() -> None:
    nodes = {f"n{i:04}": a_node(f"n{i:04}") for i in range(1000)}
    policy = ImagesPolicy(namespace="own")
    world = Pulls(nodes, [a_wish("all", IMAGES[0], sorted(nodes))], policy)
    most = 0
    for _ in range(200):
        world.step()
        most = max(most, len(world.pods))
        for name in sorted(world.pods):
            world.end(name, well=True)
        world.instant += 10.0
        if all(IMAGES[0] in node.images for node in world.nodes.values()):
            break
    world.step()
    assert world.pods == {}
    assert most == policy.pulls_per_registry_max
    assert len(world.starts) == 1000


def test_one_node_that_cannot_pull_holds_up_no_other() -> None:
    world = Pulls({name: a_node(name) for name in NODES}, [a_wish("x", IMAGES[0], NODES)])
    for _ in range(100):
        world.step()
        for name in sorted(world.pods):
            world.end(name, well=world.pods[name].spec.node_name != "n0")
        world.instant += 10.0
    assert [n for n in NODES if IMAGES[0] not in world.nodes[n].images] == ["n0"]
    assert sum(each.node == "n0" for _, each in world.starts) <= 6


def test_a_job_with_a_thousand_images_leaves_room_for_others() -> None:
    many = [a_wish("x", f"{REGISTRIES[0]}/j{i}:1", NODES, namespace="one") for i in range(1000)]
    world = Pulls({name: a_node(name) for name in NODES}, [*many, a_wish("y", IMAGES[0], NODES)])
    world.step()
    owners = Counter(each.owner.name for _, each in world.starts)
    assert owners == {"x": POLICY.pulls_per_namespace_max, "y": 1}


def test_a_node_without_room_pulls_nothing_and_says_so() -> None:
    node = a_node("n0", {"a.example/known:1": 9 * 10**9}, disk=40 * 10**9)
    known = a_node("n1", {IMAGES[0]: 2 * 10**9})
    wish = a_wish("x", IMAGES[0], ["n0"])
    world = Pulls({"n0": node, "n1": known}, [wish])
    world.step()
    assert world.starts == []
    view = ImagesView(world.nodes, [wish])
    tally = plan(view, world.book, POLICY, world.instant).tallies[wish.owner.uid, IMAGES[0]]
    assert tally.words == "1 node: has no room on its disk"


def test_a_failure_of_one_namespace_says_nothing_of_another_one() -> None:
    wishes = [
        a_wish("x", IMAGES[0], ["n0"], namespace="one"),
        a_wish("y", IMAGES[0], ["n1"], namespace="two"),
    ]
    world = Pulls({name: a_node(name) for name in NODES}, wishes)
    world.step()
    assert {each.owner.name for _, each in world.starts} == {"x", "y"}
    (refused,) = [name for name, pod in world.pods.items() if pod.metadata.namespace == "one"]
    world.end(refused, well=False)
    (ended,) = world.step()
    assert ended.why is PullEnding.FAILED
    (left,) = world.pods.values()
    assert left.metadata.namespace == "two"
