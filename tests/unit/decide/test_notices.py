"""What a job owes to its targets, how often it is tried, and whose turn it is."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.attempt import Attempt
from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.job_defaults import NoticeTerms
from fairlead.api.jobs.notify import (
    NoticeEvent,
    NoticeForm,
    NoticeRecord,
    NoticeState,
    Notify,
)
from fairlead.api.meta import Condition, to_wire
from fairlead.api.values.times import format_time
from fairlead.decide.admission.jobs import judge_job
from fairlead.decide.admission.notices import refused_target
from fairlead.decide.attempts.notices import HOLD_SECONDS_MAX, held_until, occurrences
from fairlead.decide.notices import (
    Action,
    NoticesPolicy,
    NoticeView,
    SendNotice,
    SettleNotice,
    TryOutcome,
    TryReason,
    Turns,
    body_of,
    decide_notices,
    form_of,
    headline,
    is_listed,
    is_public,
    key_of_try,
    letter_of,
    mail_text,
    parse_networks,
    wants_turn,
    with_record,
)
from fairlead.decide.notices.decide import TryKey
from fairlead.testing.builders import EPOCH, make_job

POLICY = NoticesPolicy()
ALL = tuple(NoticeEvent)
URL = Notify(ALL, url="https://example.com/hook")


def job_of(*targets: Notify, **status: object) -> Job:
    job = make_job("train", namespace="vision")
    spec = replace(job.spec, notify=targets)
    return replace(job, spec=spec, status=replace(job.status, attempt=1, **status))


def ended(job: Job, *, failed: bool = False, state: JobState | None = None) -> Job:
    type_ = names.FAILED if failed else names.SUCCEEDED
    state = state or (JobState.FAILED if failed else JobState.SUCCEEDED)
    condition = Condition(type_, "True", reason="ExitCode", message="worker-0 exited with 1")
    at = format_time(EPOCH + 100)
    status = replace(job.status, conditions=(condition,), state=state.value, finished_at=at)
    return replace(job, status=status)


class Delivery:
    """One job, decided on again and again, as the controller does; its clock is `now`."""

    def __init__(self, job: Job) -> None:
        self.job, self.now = job, EPOCH + 200.0
        self.outcomes: dict[TryKey, TryOutcome] = {}
        self.sent: list[tuple[float, NoticeRecord]] = []

    def step(self, outcome: TryOutcome | None) -> Action | None:
        """Take one step; a try that is sent ends by `outcome`, None: the process ends in it."""
        view = NoticeView(self.job, self.outcomes)
        decision = decide_notices(view, POLICY, self.now, has_turn=True)
        if not decision.actions:
            if decision.wake_at is not None:
                self.now = decision.wake_at
                return self.step(outcome)
            return None
        (action,) = decision.actions
        notices = with_record(self.job.status.notices, action.record)
        self.job = replace(self.job, status=replace(self.job.status, notices=notices))
        if isinstance(action, SendNotice):
            self.sent.append((self.now, action.record))
            if outcome is not None:
                self.outcomes[key_of_try(action.record)] = outcome
        return action


DELIVERED = TryOutcome(TryReason.DELIVERED, 204)


def events_of(job: Job, *on: NoticeEvent) -> list[tuple[int, str]]:
    found = occurrences(job, Notify(on, url="https://example.com"))
    return [(each.attempt, each.event.value) for each in found]


def test_what_is_owed_follows_from_the_status() -> None:
    preempted = tuple(Attempt(number, reason="Preempted") for number in (1, 2))
    started = format_time(EPOCH)
    job = job_of(URL, started_at=started, attempts=preempted)
    assert events_of(job, *ALL) == [(1, "Start"), (1, "Preempt"), (2, "Preempt")]
    assert events_of(job, NoticeEvent.END) == []
    assert events_of(ended(job_of()), *ALL) == [(1, "End")]
    failed = ended(job_of(), failed=True)
    assert events_of(failed, *ALL) == [(1, "Fail")]
    assert events_of(failed, NoticeEvent.END) == [(1, "End")]
    assert events_of(ended(job_of()), NoticeEvent.FAIL) == []
    cancelled = ended(job_of(), failed=True, state=JobState.CANCELLED)
    assert events_of(cancelled, NoticeEvent.FAIL) == []
    assert events_of(cancelled, *ALL) == [(1, "End")]


def test_a_notice_that_is_delivered_is_sent_once() -> None:
    delivery = Delivery(ended(job_of(URL), failed=True))
    assert isinstance(delivery.step(DELIVERED), SendNotice)
    assert isinstance(delivery.step(DELIVERED), SettleNotice)
    assert delivery.step(DELIVERED) is None
    (record,) = delivery.job.status.notices
    assert (record.state, record.tries, record.code) == (NoticeState.DELIVERED, 1, 204)
    assert record.next_try_at is None


@pytest.mark.parametrize("outcome", [None, TryOutcome(TryReason.BUSY, 503)])
def test_a_notice_is_tried_a_bounded_number_of_times_whatever_happens(
    outcome: TryOutcome | None,
) -> None:
    """None: each process ends in the middle of the try, and another one goes on."""
    delivery = Delivery(ended(job_of(URL)))
    for _ in range(50):
        delivery.step(outcome)
    assert len(delivery.sent) == POLICY.tries_max
    (record,) = delivery.job.status.notices
    assert record.state is NoticeState.GIVEN_UP
    assert record.reason == ("" if outcome is None else "Busy")
    gaps = [then[0] - at[0] for at, then in zip(delivery.sent, delivery.sent[1:], strict=False)]
    # No two processes are in one try at once, and the pauses grow.
    assert min(gaps) >= POLICY.try_seconds_max
    assert gaps == sorted(gaps)
    assert 3000 < delivery.sent[-1][0] - delivery.sent[0][0] < 2 * HOLD_SECONDS_MAX


def test_what_no_try_can_mend_is_not_repeated() -> None:
    delivery = Delivery(ended(job_of(URL)))
    for _ in range(3):
        delivery.step(TryOutcome(TryReason.ADDRESS_REFUSED))
    assert len(delivery.sent) == 1
    assert delivery.job.status.notices[0].state is NoticeState.REFUSED


def test_a_target_gets_its_notices_one_after_the_other_and_each_attempt_has_its_own() -> None:
    started = format_time(EPOCH)
    preempted = tuple(Attempt(number, reason="Preempted") for number in (1, 2))
    delivery = Delivery(ended(job_of(URL, started_at=started, attempts=preempted)))
    while delivery.step(DELIVERED) is not None:
        pass
    order = [(each.event.value, each.attempt) for _, each in delivery.sent]
    assert order == [("Start", 1), ("Preempt", 1), ("Preempt", 2), ("End", 1)]
    # One row for each target and event, however many attempts there were.
    assert [each.event.value for each in delivery.job.status.notices] == ["Start", "End", "Preempt"]


def test_a_dead_target_delays_no_other_target_of_the_job() -> None:
    dead, live = replace(URL, url="https://dead.example"), URL
    delivery = Delivery(ended(job_of(dead, live)))
    first = delivery.step(TryOutcome(TryReason.TIMEOUT))
    at, second = delivery.now, delivery.step(DELIVERED)
    assert isinstance(first, SendNotice)
    assert isinstance(second, SendNotice)
    assert (first.record.target, second.record.target) == (0, 1)
    assert delivery.now == at


def test_nothing_is_sent_for_a_job_that_is_deleted_or_without_a_turn() -> None:
    job = ended(job_of(URL))
    gone = replace(job, metadata=replace(job.metadata, deletion_timestamp=format_time(EPOCH)))
    assert wants_turn(NoticeView(job, {}), POLICY, EPOCH)
    assert not wants_turn(NoticeView(gone, {}), POLICY, EPOCH)
    assert not wants_turn(NoticeView(job, {}, is_sending=True), POLICY, EPOCH)
    assert decide_notices(NoticeView(job, {}), POLICY, EPOCH, has_turn=False).actions == ()


def test_an_ended_job_is_kept_for_its_notices_and_not_for_ever() -> None:
    assert held_until(ended(job_of()), EPOCH) is None
    delivery = Delivery(ended(job_of(URL)))
    assert held_until(delivery.job, EPOCH) == EPOCH + HOLD_SECONDS_MAX
    while delivery.step(DELIVERED) is not None:
        pass
    assert held_until(delivery.job, EPOCH) is None


# Turns


def test_a_namespace_that_floods_delays_its_own_notices_and_no_others() -> None:
    policy = NoticesPolicy(namespace_per_minute=10, per_minute=1000, sending_max=1000)
    turns, now = Turns(policy), 0.0
    flood = [("bad", f"j{i}") for i in range(500)]
    begun = [key for key in flood if turns.take(key, now)]
    assert len(begun) == policy.namespace_sending_max
    assert turns.take(("good", "one"), now) or ("good", "one") in [*turns.granted(now)]
    began: list[tuple[float, tuple[str, str]]] = [(now, key) for key in begun]
    while now < 600:
        for key in began[-policy.namespace_sending_max :]:
            turns.release(key[1])
        began += [(now, key) for key in turns.granted(now)]
        now += 1
    within = [key for at, key in began if at < 600]
    assert len(within) <= 10 + 10 * 10 + 1  # a full bucket, and ten minutes of it
    assert len(within) > 90  # the bound did not just stop them
    assert len(set(within)) == len(within)


def test_namespaces_take_turns_where_all_turns_are_taken() -> None:
    policy = NoticesPolicy(sending_max=2, namespace_sending_max=2)
    turns = Turns(policy)
    assert turns.take(("a", "0"), 0.0)
    assert turns.take(("a", "1"), 0.0)
    for i in range(2, 50):
        assert not turns.take(("a", str(i)), 0.0)
    assert not turns.take(("b", "0"), 0.0)
    assert [*turns.granted(0.0)] == []
    assert turns.wake_at(0.0) is None  # a release must
    turns.release(("a", "0"))
    turns.release(("a", "1"))
    assert sorted(namespace for namespace, _ in turns.granted(0.0)) == ["a", "b"]


def test_turns_are_neither_lost_nor_given_twice() -> None:
    rng, policy = random.Random(5), NoticesPolicy(
        sending_max=5, namespace_sending_max=2, per_minute=600, namespace_per_minute=60
    )  # fmt: skip
    turns, held, now = Turns(policy), set[tuple[str, str]](), 0.0
    keys = [(f"n{i % 4}", f"j{i}") for i in range(40)]
    for _ in range(5000):
        now += rng.random()
        key = rng.choice(keys)
        if rng.random() < 0.5:
            turns.release(key)
            held.discard(key)
        elif turns.take(key, now):
            held.add(key)
        for granted in turns.granted(now):
            assert granted not in held
            held.add(granted)
        assert len(held) <= 5
        assert all(sum(1 for n, _ in held if n == each) <= 2 for each in ("n0", "n1", "n2", "n3"))
    for key in keys:
        turns.release(key)
    now += 120
    fresh = [(f"x{i}", "j") for i in range(6)]
    assert [turns.take(key, now) for key in fresh] == [True] * 5 + [False]


# Words


def letter(job: Job, event: NoticeEvent = NoticeEvent.FAIL):
    record = NoticeRecord(0, event, 1, 1, NoticeState.SENDING)
    return letter_of(job, record, EPOCH + 100)


def test_forms_follow_from_the_host_unless_the_target_says_it() -> None:
    assert form_of(URL.form, "example.com") is NoticeForm.JSON
    assert form_of(URL.form, "HOOKS.slack.com.") is NoticeForm.SLACK
    assert form_of(URL.form, "contoso.webhook.office.com") is NoticeForm.TEAMS
    assert form_of(URL.form, "hooks.slack.com.evil.example") is NoticeForm.JSON
    assert form_of(NoticeForm.SLACK, "chat.example") is NoticeForm.SLACK


def test_free_text_is_inert_in_every_form_and_absent_from_mail() -> None:
    job = ended(job_of(URL, started_at=format_time(EPOCH)), failed=True)
    evil = "<!channel> [x](http://e) \r\nBcc: x@y\x1b[2J" + "A" * 5000
    condition = replace(job.status.conditions[0], message=evil)
    job = replace(job, status=replace(job.status, conditions=(condition,)))
    told = letter(job)
    assert headline(told) == "Job vision/train has failed: ExitCode, after 1m40s"
    slack = body_of(told, NoticeForm.SLACK)
    assert b"<!channel>" not in slack
    assert b"&lt;!channel&gt;" in slack
    teams = body_of(told, NoticeForm.TEAMS)
    assert b'"TextRun"' in teams
    assert b'"TextBlock"' not in teams
    for form in NoticeForm:
        assert len(body_of(told, form)) < 2000
        assert b"\\u001b" not in body_of(told, form)
    assert "channel" not in mail_text(told)
    assert "channel" not in headline(told)


# Addresses


@pytest.mark.parametrize("address", [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "192.0.0.192", "198.18.0.1", "224.0.0.1", "255.255.255.255",
    "240.0.0.1", "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1", "2002:7f00:1::", "2001:0:1::1", "2001:db8::1", "192.88.99.1", "fe80::1%eth0",
    "::127.0.0.1", "168.63.129.16", "100.100.100.200", "3fff::1", "not-an-address", "",
])  # fmt: skip
def test_no_address_inside_is_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


def test_a_list_opens_its_networks_and_no_others() -> None:
    listed = parse_networks(("10.20.0.0/16", "fd12::/32"))
    assert is_listed("10.20.3.4", listed)
    assert is_listed("::ffff:10.20.3.4", listed)
    assert is_listed("fd12::9", listed)
    assert not is_listed("10.21.0.1", listed)
    assert not is_listed("169.254.169.254", listed)
    with pytest.raises(ValueError, match="host bits"):
        parse_networks(("10.20.0.1/16",))


# Who is served


COMMAND = Notify((NoticeEvent.END,), command=("/bin/true",))
MAIL = Notify((NoticeEvent.END,), mail="ada@Example.com")


def test_a_shared_cluster_runs_no_commands_and_says_why() -> None:
    why = refused_target(COMMAND, NoticeTerms())
    assert why is not None
    assert "in the controllers, with their rights" in why
    assert refused_target(COMMAND, NoticeTerms(has_commands=True)) is None
    assert refused_target(COMMAND, NoticeTerms(is_enabled=False, has_commands=True)) is not None


def test_mail_goes_to_listed_domains_alone() -> None:
    assert refused_target(MAIL, NoticeTerms()) is not None
    terms = NoticeTerms(mail_domains=("example.com",))
    assert refused_target(MAIL, terms) is None
    for mail in ("a@evil.example", "a@sub.example.com", "a@notexample.com"):
        assert refused_target(replace(MAIL, mail=mail), terms) is not None


def causes(*targets: Notify) -> list[tuple[str, str]]:
    job = to_wire(job_of(*targets))
    return [(each.field, each.message) for each in judge_job(job)]


@pytest.mark.parametrize(("target", "field", "words"), [
    (Notify((NoticeEvent.END,)), "spec.notify[0]", "one of url"),
    (replace(MAIL, url="https://a.b"), "spec.notify[0]", "one of url"),
    (Notify((), url="https://a.b"), "spec.notify[0].on", "Start, End"),
    (Notify((NoticeEvent.END,) * 2, url="https://a.b"), "spec.notify[0].on", "Duplicate"),
    (replace(URL, url="https://user:pw@example.com/"), "spec.notify[0].url", "no user"),
    (replace(URL, url="https://exa mple.com/"), "spec.notify[0].url", "without spaces"),
    (replace(URL, url="https://example.com/\r\nHost: x"), "spec.notify[0].url", "without spaces"),
    (replace(URL, url="file:///etc/passwd"), "spec.notify[0].url", "https://host"),
    (replace(URL, url="gopher://example.com/"), "spec.notify[0].url", "https://host"),
    (replace(URL, url="https://example.com:99999/"), "spec.notify[0].url", "https://host"),
    (replace(URL, url="https://[::1"), "spec.notify[0].url", "https://host"),
    (replace(URL, url="https:///x"), "spec.notify[0].url", "https://host"),
    (replace(URL, url="https://a.b\\@c.d/"), "spec.notify[0].url", "must"),
    (Notify(ALL, url_key="../other"), "spec.notify[0].urlKey", "key of a Secret"),
    (replace(MAIL, mail="a@b.c\nBcc: d@e.f"), "spec.notify[0].mail", "one address"),
    (replace(MAIL, mail="a@b.c,d@e.f"), "spec.notify[0].mail", "one address"),
    (replace(MAIL, mail="<a@b.c> SIZE=1"), "spec.notify[0].mail", "one address"),
    (replace(MAIL, mail="root"), "spec.notify[0].mail", "one address"),
    (replace(COMMAND, form=NoticeForm.SLACK), "spec.notify[0].form", "URLs alone"),
    (replace(COMMAND, command=("",)), "spec.notify[0].command[0]", "name a program"),
])  # fmt: skip
def test_a_hostile_or_mistaken_target_is_refused_at_its_field(
    target: Notify, field: str, words: str
) -> None:
    assert any(at == field and words in message for at, message in causes(target))


def test_good_targets_are_accepted() -> None:
    assert causes(URL, Notify(ALL, url_key="slack-1.x"), replace(URL, form=NoticeForm.TEAMS)) == []
