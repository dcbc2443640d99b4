"""Certificates: what is made can be verified, and when the next step of a rotation is due."""

from __future__ import annotations

import itertools
import random
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from fairlead.webhook.certificates import (
    BadCertificate,
    Material,
    Observed,
    Pair,
    Step,
    Times,
    check_pair,
    from_secret,
    make,
    next_step,
    take_step,
    to_secret,
    validity_of,
)

NOW = 1_800_000_000.0
HOSTS = ("fairlead-webhook.ours.svc", "127.0.0.1")
TIMES = Times()
NEVER = Observed(NOW - 1e9, NOW - 1e9)


def step_of(
    material: Material | None, *, at: float = NOW, observed: Observed = NEVER,
    hosts: tuple[str, ...] = HOSTS,
) -> Step:  # fmt: skip
    return next_step(material, observed, hosts, now=at, times=TIMES)


def take(step: Step, material: Material | None, at: float = NOW) -> Material:
    return take_step(step, material, HOSTS, now=at, times=TIMES)


FIRST = take(Step.MAKE, None)
DUE = NOW + TIMES.renew_at * TIMES.life_seconds + TIMES.skew_seconds


def authorities(bundle: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(bundle)


def trusts(bundle: bytes, pair: Pair) -> bool:
    """True when one of the authorities has signed the pair."""
    leaf = x509.load_pem_x509_certificate(pair.certificate)
    issuers = [a.subject for a in authorities(bundle)]
    return leaf.issuer in issuers


def handshake(material: Material, host: str, directory: Path) -> None:
    """Shake hands in memory; SSLError when the client does not trust what is shown."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    crt, key = directory / "crt", directory / "key"
    crt.write_bytes(material.serving.certificate)
    key.write_bytes(material.serving.key)
    server_context.load_cert_chain(crt, key)
    client_context = ssl.create_default_context(cadata=material.bundle.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)


@pytest.mark.parametrize("host", HOSTS)
def test_a_client_that_trusts_the_bundle_takes_the_certificate(host: str, tmp_path: Path) -> None:
    # its time is the real one: make one that is valid now
    material = take_step(Step.MAKE, None, HOSTS, now=tmp_path.stat().st_mtime, times=TIMES)
    handshake(material, host, tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"ismatch|not valid for"):
        handshake(material, "elsewhere.svc", tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(replace(material, bundle=FIRST.bundle), host, tmp_path)


def test_the_authoritys_key_is_not_in_the_secret_and_it_can_sign_no_further_authority() -> None:
    (authority,) = authorities(FIRST.bundle)
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    data = to_secret(FIRST)
    assert sorted(name for name, text in data.items() if text) == ["ca.crt", "tls.crt", "tls.key"]
    leaf = x509.load_pem_x509_certificate(FIRST.serving.certificate)
    assert leaf.public_key() != authority.public_key()


def test_a_secret_gives_back_what_it_was_given() -> None:
    for material in (FIRST, take(Step.BEGIN, FIRST, DUE)):
        data = {name: text for name, text in to_secret(material).items() if text is not None}
        assert from_secret(data) == material


@pytest.mark.parametrize(
    ("data", "said"),
    [({}, "tls.crt is missing"), ({"tls.crt": "aGk=", "tls.key": "%"}, "tls.key is not base64")],
)
def test_a_secret_that_cannot_be_read_is_told_apart(data: dict[str, str], said: str) -> None:
    with pytest.raises(BadCertificate, match=said):
        from_secret(data)


def test_a_key_of_another_certificate_is_refused() -> None:
    _, other = make(HOSTS, now=NOW, times=TIMES)
    with pytest.raises(BadCertificate, match="not the certificate's"):
        check_pair(Pair(FIRST.serving.certificate, other.key))
    with pytest.raises(BadCertificate, match="cannot be read"):
        check_pair(Pair(b"hello", b"world"))


@pytest.mark.parametrize(
    "material",
    [
        None,
        replace(FIRST, bundle=b""),
        replace(FIRST, bundle=take(Step.MAKE, None).bundle),
        replace(FIRST, serving=Pair(FIRST.serving.certificate, b"no key")),
    ],
)
def test_what_nobody_could_use_is_made_anew(material: Material | None) -> None:
    assert step_of(material) is Step.MAKE
    made = take(Step.MAKE, material)
    assert trusts(made.bundle, made.serving)


def test_a_certificate_for_other_names_is_made_anew_and_the_old_one_stays_trusted() -> None:
    assert step_of(FIRST, hosts=("renamed.svc",)) is Step.MAKE
    assert step_of(FIRST, hosts=(*HOSTS, "added.svc")) is Step.MAKE
    made = take(Step.MAKE, FIRST)
    assert trusts(made.bundle, made.serving)
    assert trusts(made.bundle, FIRST.serving), "another replica may show it for a while"


def test_a_rotation_is_over_before_two_thirds_of_the_life() -> None:
    assert step_of(FIRST, at=DUE - 2 * TIMES.skew_seconds) is Step.KEEP
    assert step_of(FIRST, at=DUE) is Step.BEGIN
    life = validity_of(FIRST.serving)
    ended_at = DUE + 3 * TIMES.overlap_seconds
    assert ended_at < life.began_at + (life.ends_at - life.began_at) * 2 / 3


def test_at_every_instant_of_a_rotation_everything_shown_is_trusted_by_all_who_lag_behind() -> None:
    """Servers may know the bundle of the step before, and replicas show the pair of it."""
    begun = take(Step.BEGIN, FIRST, DUE)
    promoted = take(Step.PROMOTE, begun, DUE)
    settled = take(Step.SETTLE, promoted, DUE)
    course = [FIRST, begun, promoted, settled]
    for before, now in itertools.pairwise(course):
        for bundle, shown in itertools.product((before, now), (before, now)):
            assert trusts(bundle.bundle, shown.serving)
    assert settled.serving == begun.next
    assert len(authorities(settled.bundle)) == 1
    assert settled.serving != FIRST.serving


def test_the_next_pair_is_served_once_its_authority_has_been_known_for_long_enough() -> None:
    begun = take(Step.BEGIN, FIRST, DUE)
    overlap = TIMES.overlap_seconds

    def after(bundle_since: float | None) -> Step:
        return step_of(begun, at=DUE + 5 * overlap, observed=Observed(DUE, bundle_since))

    assert after(None) is Step.KEEP, "a configuration still has the old bundle"
    assert after(DUE + 5 * overlap - 1) is Step.KEEP
    assert after(DUE + 4 * overlap) is Step.PROMOTE
    ended = Observed(DUE, None)
    assert step_of(begun, at=validity_of(FIRST.serving).ends_at, observed=ended) is Step.PROMOTE


def test_the_old_authority_goes_once_every_replica_had_time_to_see_the_new_pair() -> None:
    promoted = take(Step.PROMOTE, take(Step.BEGIN, FIRST, DUE), DUE)
    at = DUE + 10 * TIMES.overlap_seconds
    just_seen = Observed(at - TIMES.overlap_seconds + 1, NOW)
    assert step_of(promoted, at=at, observed=just_seen) is Step.KEEP
    seen = Observed(at - TIMES.overlap_seconds, NOW)
    assert step_of(promoted, at=at, observed=seen) is Step.SETTLE


def test_after_a_long_sleep_it_begins_afresh() -> None:
    late = validity_of(FIRST.serving).ends_at
    assert step_of(FIRST, at=late) is Step.MAKE
    begun = take(Step.BEGIN, FIRST, DUE)
    assert step_of(begun, at=DUE + TIMES.life_seconds) is Step.MAKE
    made = take(Step.MAKE, FIRST, late)
    assert len(authorities(made.bundle)) == 1, "nobody needs an authority that has ended"
    spoilt = replace(begun, next=Pair(b"spoilt", b""))
    assert step_of(spoilt, at=DUE) is Step.BEGIN


def test_no_course_of_steps_at_any_time_serves_what_the_bundle_does_not_trust() -> None:
    for seed in range(4):
        rng = random.Random(seed)
        now, material = NOW, None
        for _ in range(25):
            observed = Observed(now - rng.choice((0.0, 700.0)), rng.choice((None, now, now - 700)))
            step = step_of(material, at=now, observed=observed)
            if step is not Step.KEEP:
                material = take(step, material, now)
            assert material is not None
            assert trusts(material.bundle, material.serving)
            assert len(authorities(material.bundle)) <= 4
            now += rng.choice((60.0, 700.0, 10 * 86_400.0, 80 * 86_400.0))
