"""The key queue: each key once, deterministic order, timers."""

from __future__ import annotations

import random

from fairlead.runtime.queue import KeyQueue


def test_keys_come_out_once_each_in_the_order_they_went_in() -> None:
    queue = KeyQueue[str]()
    for key in "banana":
        queue.add(key)
    assert len(queue) == 3
    assert queue.pop(0.0) == ["b", "a", "n"]
    assert queue.pop(0.0) == []


def test_a_limited_pop_leaves_the_rest_in_order() -> None:
    queue = KeyQueue[int]()
    for key in range(5):
        queue.add(key)
    assert queue.pop(0.0, 2) == [0, 1]
    queue.add(0)
    assert queue.pop(0.0) == [2, 3, 4, 0]


def test_timers_come_due_in_the_order_of_their_instants_then_of_setting() -> None:
    queue = KeyQueue[str]()
    queue.add_at("late", 20.0)
    queue.add_at("second", 10.0)
    queue.add_at("third", 10.0)
    queue.add_at("first", 5.0)
    queue.add("ready")
    assert queue.wake_at() == 5.0
    assert queue.pop(10.0) == ["ready", "first", "second", "third"]
    assert queue.wake_at() == 20.0


def test_of_several_instants_the_earliest_holds() -> None:
    queue = KeyQueue[str]()
    queue.add_at("a", 10.0)
    queue.add_at("a", 5.0)
    queue.add_at("a", 7.0)
    assert queue.pop(6.0) == ["a"]
    assert queue.wake_at() is None
    assert queue.pop(100.0) == []


def test_a_discarded_key_is_gone_with_its_timer() -> None:
    queue = KeyQueue[str]()
    queue.add("a")
    queue.add_at("a", 5.0)
    queue.discard("a")
    assert queue.wake_at() is None
    assert queue.pop(10.0) == []


def test_moving_timers_for_ever_does_not_fill_memory() -> None:
    queue = KeyQueue[int]()
    for step in range(10_000):
        queue.add_at(step % 10, 1e6 - step)
    assert len(queue._heap) < 200


def test_the_earliest_timer_is_known_however_often_timers_move() -> None:
    queue = KeyQueue[int]()
    for step in range(1000):
        queue.add_at(step % 10, 1e6 - step)
        assert queue.wake_at() == 1e6 - step
    assert queue.pop(1e6) == [*range(9, -1, -1)]


def test_it_agrees_with_a_simple_model_over_random_histories() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        queue = KeyQueue[int]()
        ready: list[int] = []
        timers: list[tuple[float, int]] = []  # in order of setting
        now = 0.0
        for _ in range(200):
            key, roll = rng.randrange(8), rng.random()
            if roll < 0.3:
                queue.add(key)
                ready += [] if key in ready else [key]
            elif roll < 0.7:
                at = now + rng.randrange(5)
                queue.add_at(key, at)
                held = [timer for timer in timers if timer[1] == key]
                if not held or held[0][0] > at:
                    timers = [timer for timer in timers if timer[1] != key] + [(at, key)]
            elif roll < 0.8:
                queue.discard(key)
                ready = [k for k in ready if k != key]
                timers = [timer for timer in timers if timer[1] != key]
            else:
                now += rng.randrange(4)
                due = sorted((t for t in timers if t[0] <= now), key=lambda t: t[0])
                timers = [t for t in timers if t[0] > now]
                for _, due_key in due:
                    ready += [] if due_key in ready else [due_key]
                assert queue.pop(now) == ready
                ready = []
            assert queue.wake_at() == min((t[0] for t in timers), default=None)
