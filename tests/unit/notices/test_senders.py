"""Notices on their way out: what receivers get, and where hostile targets do not lead."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from dataclasses import replace as replaced
from email import message_from_string, policy
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.notices.http_sink import HttpSink, SmtpSink

from fairlead.api.jobs.notify import NoticeEvent, NoticeForm, Notify
from fairlead.app.local.server_tls import server_tls
from fairlead.decide.notices import (
    Delivery,
    Letter,
    MailServer,
    Post,
    SmtpTls,
    TryOutcome,
    TryReason,
    parse_networks,
    post_of,
)
from fairlead.notices import CommandNotices, HttpNotices, MailNotices, Senders, command_notices
from fairlead.notices.http_notices import outcome_of, signature
from fairlead.runtime.clock import SystemClock

LOOPBACK = parse_networks(("127.0.0.0/8",))
LETTER = Letter(
    "0af1-0-fail-2", NoticeEvent.FAIL, "2026-11-20T08:15:30Z", "vision", "train", "0af1", 7, 2,
    "Failed", "ExitCode", "worker-0 exited with 1", 8, 90,
)  # fmt: skip
URL = Notify((NoticeEvent.FAIL,), url="unused")


def to_url(url: str, key: str = "", form: NoticeForm | None = None) -> Delivery:
    return Delivery(replace(URL, form=form), LETTER, url, key)


def http(*, open_to: tuple[object, ...] = (), answers: dict[str, list[str]] | None = None):
    async def resolve(host: str, port: int) -> list[str]:
        assert answers is not None
        return answers[host]

    return HttpNotices(
        open_to, clock=SystemClock(), resolve=None if answers is None else resolve  # type: ignore[arg-type]
    )  # fmt: skip


async def test_a_receiver_gets_signed_json_that_it_can_verify() -> None:
    async with HttpSink().listening() as sink:
        sender = http(open_to=LOOPBACK)
        url = f"http://127.0.0.1:{sink.port}/hook?a=%2Fb"
        assert await sender.post(post_of(to_url(url, "s3cret"))) == TryOutcome(
            TryReason.DELIVERED, 204
        )
    ((line, headers, body),) = sink.requests
    assert line == "POST /hook?a=%2Fb HTTP/1.1"
    assert headers["host"] == f"127.0.0.1:{sink.port}"
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(b"s3cret", signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    assert json.loads(body)["job"]["name"] == "train"
    assert json.loads(body)["type"] == "job.fail"


def test_a_key_may_be_written_as_standard_webhooks_has_it() -> None:
    secret = base64.b64encode(b"s3cret").decode()
    assert signature(f"whsec_{secret}", "i", "1", b"{}") == signature("s3cret", "i", "1", b"{}")
    # The example of that specification's reference libraries.
    key, at = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "1614265330"
    body = b'{"test": 2432232314}'
    expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", at, body) == expected


@pytest.mark.parametrize("host", [
    "127.0.0.1", "localhost", "0x7f000001", "2130706433", "127.1", "0177.0.0.1", "[::1]",
    "[::ffff:127.0.0.1]", "0", "169.254.169.254", "[fd00:ec2::254]", "10.0.0.1",
])  # fmt: skip
async def test_no_spelling_of_an_inner_address_is_connected_to(host: str) -> None:
    """Both by TLS and without; the sink that listens there sees no connection."""
    async with HttpSink().listening() as sink:
        for scheme in ("http", "https"):
            outcome = await http().post(post_of(to_url(f"{scheme}://{host}:{sink.port}/")))
            assert outcome.reason in (TryReason.ADDRESS_REFUSED, TryReason.NOT_RESOLVED)
        good = await http(open_to=LOOPBACK).post(post_of(to_url(f"http://127.0.0.1:{sink.port}/")))
    assert good.reason is TryReason.DELIVERED
    assert len(sink.requests) == 1


async def test_a_name_with_one_inner_address_among_others_is_refused() -> None:
    answers = {"two.example": ["8.8.8.8", "127.0.0.1"], "none.example": []}
    for host in answers:
        outcome = await http(answers=answers).post(post_of(to_url(f"https://{host}/")))
        assert outcome.reason is TryReason.ADDRESS_REFUSED


async def test_a_name_is_resolved_once_and_the_connection_goes_to_that_address() -> None:
    """DNS rebinding: a second look-up would lead elsewhere; there is none."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    async with HttpSink().listening() as sink:
        sender = HttpNotices(LOOPBACK, clock=SystemClock(), resolve=resolve)
        outcome = await sender.post(post_of(to_url(f"http://rebind.example:{sink.port}/x")))
    assert outcome.reason is TryReason.DELIVERED
    assert asked == ["rebind.example"]
    assert sink.requests[0][1]["host"] == f"rebind.example:{sink.port}"


async def test_plain_http_leads_to_listed_networks_alone() -> None:
    answers = {"public.example": ["8.8.8.8"]}
    outcome = await http(answers=answers).post(post_of(to_url("http://public.example/")))
    assert outcome.reason is TryReason.ADDRESS_REFUSED


async def test_redirects_are_not_followed_and_proxies_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with HttpSink().listening() as inner, HttpSink().listening() as sink:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{inner.port}")
        sink.answers = [f"307 Go\r\nLocation: http://127.0.0.1:{inner.port}/"]
        sender = http(open_to=LOOPBACK)
        outcome = await sender.post(post_of(to_url(f"http://127.0.0.1:{sink.port}/")))
    assert outcome == TryOutcome(TryReason.REJECTED, 307)
    assert (len(sink.requests), len(inner.requests)) == (1, 0)


async def test_a_receiver_proves_its_name_by_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    tls = server_tls(tmp_path, "127.0.0.1", time.time())
    authority = tmp_path / "ca.crt"
    authority.write_bytes(tls.authority)
    outcomes: list[TryReason] = []

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with HttpSink(tls=tls.context).listening() as sink:
        for trusted, host in ((authority, "127.0.0.1"), (None, "127.0.0.1"), (authority, "a.b")):
            sender = HttpNotices(LOOPBACK, clock=SystemClock(), authority=trusted, resolve=resolve)
            outcome = await sender.post(post_of(to_url(f"https://{host}:{sink.port}/")))
            outcomes.append(outcome.reason)
    assert outcomes == [TryReason.DELIVERED, TryReason.TLS_FAILED, TryReason.TLS_FAILED]
    assert len(sink.requests) == 1


async def test_answers_and_their_absence_say_whether_to_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finals = {200: True, 204: True, 301: True, 400: True, 404: True, 410: True}
    again = {408: False, 425: False, 429: False, 500: False, 503: False}
    for status, is_final in (finals | again).items():
        assert outcome_of(status).reason.is_final is is_final
    monkeypatch.setattr("fairlead.notices.http_notices.POST_SECONDS", 0.2)
    async with HttpSink(delay_seconds=2.0).listening() as sink:
        slow = await http(open_to=LOOPBACK).post(post_of(to_url(f"http://127.0.0.1:{sink.port}/")))
    assert slow.reason is TryReason.TIMEOUT
    gone = await http(open_to=LOOPBACK).post(post_of(to_url(f"http://127.0.0.1:{sink.port}/")))
    assert gone.reason is TryReason.UNREACHABLE


@pytest.mark.parametrize(
    "text", ["", "ftp://x/", "https://u:p@x/", "https://x/\r\nA: b", "x" * 9000]
)
async def test_a_url_of_the_secret_is_held_to_the_same_rules(text: str) -> None:
    outcome = await http().post(post_of(to_url(text)))
    assert outcome.reason is TryReason.BAD_URL


def test_no_delivery_shows_its_url_or_its_key() -> None:
    shown = repr(to_url("https://hooks.slack.com/services/T/B/token", "s3cret"))
    assert "token" not in shown
    assert "s3cret" not in shown


# Mail


def mail_to(sink: SmtpSink, directory: Path, tls: SmtpTls = SmtpTls.NONE) -> MailNotices:
    server = MailServer("127.0.0.1", sink.port, tls, "fairlead@example.com", str(directory))
    return MailNotices(server, clock=SystemClock())


MAIL = Delivery(Notify((NoticeEvent.FAIL,), mail="ada@example.com"), LETTER)


async def test_mail_has_one_recipient_and_says_that_it_is_automatic(tmp_path: Path) -> None:
    (tmp_path / "login").write_text("user:pass:word\n")
    async with SmtpSink().listening() as sink:
        assert (await mail_to(sink, tmp_path).send(MAIL)).reason is TryReason.DELIVERED
    ((sender, to, text),) = sink.mails
    assert sender.upper().startswith("MAIL FROM:<FAIRLEAD@EXAMPLE.COM>")
    assert to.upper() == "RCPT TO:<ADA@EXAMPLE.COM>"
    message = message_from_string(text, policy=policy.default)
    assert message["Subject"] == "Job vision/train has failed: ExitCode, after 1m30s"
    assert message["Message-ID"] == "<0af1-0-fail-2@example.com>"
    assert message["Auto-Submitted"] == "auto-generated"
    assert base64.b64decode(sink.logins[0].split()[-1]) == b"\0user\0pass:word"


@pytest.mark.parametrize(("answer", "reason"), [
    ("550 no such user", TryReason.REJECTED), ("450 later", TryReason.BUSY),
])  # fmt: skip
async def test_a_refused_recipient_is_refused_for_good_or_for_now(
    answer: str, reason: TryReason, tmp_path: Path
) -> None:
    async with SmtpSink(rcpt=answer).listening() as sink:
        outcome = await mail_to(sink, tmp_path).send(MAIL)
    assert outcome == TryOutcome(reason, int(answer[:3]))


async def test_credentials_are_not_sent_where_the_server_has_no_tls(tmp_path: Path) -> None:
    (tmp_path / "login").write_text("user:word")
    async with SmtpSink().listening() as sink:
        outcome = await mail_to(sink, tmp_path, SmtpTls.START_TLS).send(MAIL)
    assert outcome.reason is TryReason.TLS_FAILED
    assert (sink.logins, sink.mails) == ([], [])


@pytest.mark.parametrize("address", ["a@b.c\r\nBcc: d@e.f", "a@b.c>\r\nDATA", "a@b.c, d@e.f"])
async def test_an_address_that_got_past_admission_injects_nothing(
    address: str, tmp_path: Path
) -> None:
    async with SmtpSink().listening() as sink:
        delivery = Delivery(replace(MAIL.target, mail=address), LETTER)
        assert (await mail_to(sink, tmp_path).send(delivery)).reason is TryReason.REJECTED
    assert sink.mails == []


# Commands


def run(*command: str) -> Delivery:
    return Delivery(Notify((NoticeEvent.FAIL,), command=command), LETTER)


async def test_a_command_gets_the_letter_and_its_exit_code_counts(tmp_path: Path) -> None:
    file = tmp_path / "seen"
    script = 'cat > "$0"; echo "$FAIRLEAD_NOTICE_EVENT $FAIRLEAD_JOB" >> "$0"'
    outcome = await CommandNotices().send(run("/bin/sh", "-c", script, str(file)))
    assert outcome == TryOutcome(TryReason.DELIVERED, 0)
    body, line = file.read_text().rsplit("}", 1)
    assert json.loads(body + "}")["id"] == LETTER.id
    assert line == "fail train\n"
    failed = await CommandNotices().send(run("/bin/sh", "-c", "cat >/dev/null; exit 3"))
    assert failed == TryOutcome(TryReason.COMMAND_FAILED, 3)
    missing = await CommandNotices().send(run("/no/such/program"))
    assert missing.reason is TryReason.COMMAND_FAILED


async def test_a_command_that_hangs_is_killed_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_notices, "COMMAND_SECONDS", 0.5)
    file = tmp_path / "pid"
    outcome = await CommandNotices().send(
        run("/bin/sh", "-c", 'sleep 60 & echo $! > "$0"; wait', str(file))
    )
    assert outcome.reason is TryReason.TIMEOUT
    pid = int(file.read_text())
    for _ in range(100):
        if not _runs(pid):
            break
        await asyncio.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


async def test_a_way_that_the_cluster_lacks_is_not_offered() -> None:
    only_urls = Senders(http())
    for delivery in (run("/bin/true"), MAIL):
        assert (await only_urls.send(delivery)).reason is TryReason.NOT_OFFERED


async def test_a_ticket_is_signed_with_the_key_of_a_file_and_goes_where_notices_may(
    tmp_path: Path,
) -> None:
    async with HttpSink().listening() as sink:
        post = Post("uid-1-desk-opened", f"http://127.0.0.1:{sink.port}/hook", lambda _: b"{}")
        assert (await Senders(http()).post_ticket(post)).reason is TryReason.ADDRESS_REFUSED
        assert sink.requests == []
        sender = Senders(http(open_to=LOOPBACK), tickets=tmp_path)
        assert await sender.post_ticket(post) == TryOutcome(TryReason.DELIVERED, 204)
        assert "webhook-signature" not in sink.requests[0][1]
        secret = replaced(post, url="")
        assert (await sender.post_ticket(secret)).reason is TryReason.SECRET_MISSING
        (tmp_path / "tickets-url").write_text(f"http://127.0.0.1:{sink.port}/t0ken\n")
        (tmp_path / "tickets-key").write_text("s3cret\n")
        assert await sender.post_ticket(secret) == TryOutcome(TryReason.DELIVERED, 204)
        line, headers, body = sink.requests[1]
        assert line == "POST /t0ken HTTP/1.1"
        at = headers["webhook-timestamp"]
        assert headers["webhook-signature"] == signature("s3cret", "uid-1-desk-opened", at, body)
        assert "s3cret" not in repr(post)
        assert "t0ken" not in repr(replaced(post, url="https://desk.example/t0ken"))
