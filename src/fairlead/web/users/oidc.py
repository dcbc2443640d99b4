"""Sign-in at an OpenID provider: authorization code with PKCE, state and nonce.

What has to be remembered until the browser is back is in a cookie of that browser, signed with a
key of this process; so strangers who begin many sign-ins fill nothing. The token's signature,
issuer, audience, times and nonce are checked (by PyJWT) with keys that the provider publishes.

Sources: OpenID Connect Core 1.0, 3.1; Discovery 1.0, 4; RFC 7636 (PKCE); RFC 9207 (`iss`);
RFC 9700 (best practice for OAuth 2.0).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote, urlencode

import aiohttp
import jwt
import msgspec

from fairlead.api.reviews import UserInfo
from fairlead.app.configuration.web_settings import OidcSettings
from fairlead.runtime.clock import Clock
from fairlead.web.responses import Refused
from fairlead.web.session import is_token
from fairlead.web.users.identity import named_user

ATTEMPT_SECONDS = 600
#: What the provider publishes is read again after so long; its keys sooner for one that is not
#: known, but no more often than that.
KNOWN_SECONDS, KEYS_SECONDS_MIN = 3600.0, 10.0
ANSWER_SECONDS_MAX, ANSWER_BYTES_MAX = 10.0, 1 << 20
SKEW_SECONDS = 60
#: Signatures with a key that the provider publishes; none with a shared secret, and not "none".
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512",
               "EdDSA")  # fmt: skip
_REQUIRED = ("iss", "sub", "aud", "exp", "iat", "nonce")


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Who has signed in at the provider, his token, and where he goes on."""

    user: UserInfo
    token: str
    to: str


@dataclass(frozen=True, slots=True)
class _Known:
    """What the provider publishes of itself, when that was read."""

    authorization: str
    token: str
    keys: str
    at: float


class OidcProvider:
    """A provider, as the settings name it."""

    def __init__(
        self, settings: OidcSettings, *, url: str, secret: str, authority: str, clock: Clock
    ) -> None:
        """`url` is the page's; `secret` the client's, "" for none; `authority`, in PEM, signs the
        provider's certificate, "": one of the system's.
        """
        self._settings, self._clock = settings, clock
        self._url, self._secret = f"{url}/login/oidc/return", secret
        self._tls = ssl.create_default_context(cadata=authority or None)
        self._signing = secrets.token_bytes(32)
        self._known: _Known | None = None
        self._keys: jwt.PyJWKSet | None = None
        self._keys_at = 0.0
        self._reading = asyncio.Lock()

    async def begin(self, to: str) -> tuple[str, str]:
        """Return the provider's URL for a browser, and the cookie to come back with; Refused."""
        known = await self._discovered()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        asked = {
            "response_type": "code", "client_id": self._settings.client_id,
            "redirect_uri": self._url, "scope": " ".join(("openid", *self._settings.scopes)),
            "state": state, "nonce": nonce, "code_challenge": challenge.decode().rstrip("="),
            "code_challenge_method": "S256",
        }  # fmt: skip
        attempt = {
            "state": state, "nonce": nonce, "verifier": verifier, "to": to,
            "exp": int(self._clock.now()) + ATTEMPT_SECONDS,
        }  # fmt: skip
        joint = "&" if "?" in known.authorization else "?"
        cookie = jwt.encode(attempt, self._signing, algorithm="HS256")
        return f"{known.authorization}{joint}{urlencode(asked)}", cookie

    async def finish(self, code: str, state: str, cookie: str, *, error: str = "") -> SignedIn:
        """Return who has come back from the provider; Refused."""
        attempt = self._attempt(cookie)
        if not state or not is_token(state, attempt["state"]):
            raise Refused(401, "This sign-in was not begun in this browser: sign in again.")
        if error or not code:
            raise Refused(401, f"The provider has not signed you in: {error or 'it sent no code'}.")
        token = await self._token(code, attempt["verifier"])
        claims = await self._verified(token)
        if not is_token(str(claims["nonce"]), attempt["nonce"]):
            raise Refused(401, "The provider's token is of another sign-in: sign in again.")
        return SignedIn(self._user(claims), token, attempt["to"])

    def _attempt(self, cookie: str) -> dict[str, str]:
        found: dict[str, Any] = {"exp": 0}
        with suppress(jwt.PyJWTError):
            found = jwt.decode(
                cookie, self._signing, algorithms=["HS256"], options={"verify_exp": False}
            )
        if found["exp"] <= self._clock.now():
            raise Refused(401, "This sign-in was not begun in this browser, or too long ago.")
        return found

    async def _token(self, code: str, verifier: str) -> str:
        known, settings = await self._discovered(), self._settings
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": self._url,
            "code_verifier": verifier, "client_id": settings.client_id,
        }  # fmt: skip
        headers = {"Accept": "application/json"}
        if self._secret:  # RFC 6749, 2.3.1: both are form-encoded first
            pair = f"{quote(settings.client_id, safe='')}:{quote(self._secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        answer = await self._asked("POST", known.token, form=form, headers=headers)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise Refused(401, "The provider has sent no ID token.")
        return token

    async def _verified(self, token: str) -> dict[str, Any]:
        """Return the claims of an ID token; Refused for one that does not hold."""
        try:
            header = jwt.get_unverified_header(token)
            key = await self._key(str(header.get("kid", "")), str(header.get("alg", "")))
            claims = jwt.decode(
                token, key, algorithms=[key.algorithm_name], audience=self._settings.client_id,
                issuer=self._settings.issuer, leeway=SKEW_SECONDS,
                options={"require": list(_REQUIRED)},
            )  # fmt: skip
        except jwt.PyJWTError as error:
            raise Refused(401, f"The provider's token does not hold: {error}.") from error
        audience = claims["aud"]
        is_shared = isinstance(audience, list) and len(cast("list[object]", audience)) > 1
        if claims.get("azp", self._settings.client_id) != self._settings.client_id or (
            is_shared and "azp" not in claims
        ):
            raise Refused(401, "The provider's token is for another client.")
        return claims

    async def _key(self, kid: str, algorithm: str) -> jwt.PyJWK:
        """Return the provider's key for a token; jwt.PyJWTError."""
        if algorithm not in _ALGORITHMS:
            raise jwt.InvalidAlgorithmError(f"its algorithm is '{algorithm[:32]}'")
        now = self._clock.now()
        key = _chosen(self._keys, kid) if now - self._keys_at < KNOWN_SECONDS else None
        if key is None and now - self._keys_at >= KEYS_SECONDS_MIN:
            known = await self._discovered()
            self._keys = jwt.PyJWKSet.from_dict(await self._asked("GET", known.keys))
            self._keys_at = now
            key = _chosen(self._keys, kid)
        if key is None or key.algorithm_name != algorithm:
            raise jwt.InvalidKeyError("its key is not one that the provider publishes")
        return key

    def _user(self, claims: Mapping[str, Any]) -> UserInfo:
        settings = self._settings
        name = claims.get(settings.username_claim)
        if settings.username_claim == "email" and claims.get("email_verified") is not True:
            raise Refused(403, "The provider has not verified your address.")
        groups = claims.get(settings.groups_claim, [])
        groups = [groups] if isinstance(groups, str) else groups
        if not isinstance(name, str) or not isinstance(groups, list):
            raise Refused(403, f"The provider's token has no {settings.username_claim}.")
        texts = [each for each in cast("list[object]", groups) if isinstance(each, str)]
        return named_user(
            name, texts, prefix=settings.username_prefix, groups_prefix=settings.groups_prefix
        )

    async def _discovered(self) -> _Known:
        async with self._reading:
            known, now = self._known, self._clock.now()
            if known is not None and now - known.at < KNOWN_SECONDS:
                return known
            issuer = self._settings.issuer
            where = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
            found = await self._asked("GET", where)
            urls = [
                found.get(name) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")
            ]
            if found.get("issuer") != issuer or not all(
                isinstance(url, str) and url.startswith("https://") for url in urls
            ):
                raise Refused(503, f"{where} does not describe the provider {issuer}")
            self._known = _Known(*cast("list[str]", urls), at=now)
            return self._known

    async def _asked(
        self, method: str, url: str, *, form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return what the provider answers; Refused."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
        connector = aiohttp.TCPConnector(ssl=self._tls, force_close=True)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.request(
                    method, url, data=form, headers=headers, allow_redirects=False
                ) as answer,
            ):
                body = await answer.content.read(ANSWER_BYTES_MAX)
                if not answer.content.at_eof():
                    raise Refused(503, "the provider's answer is too long")
                if answer.status == 400 and form is not None:
                    raise Refused(401, "The provider does not take this sign-in: sign in again.")
                if answer.status != 200:
                    raise Refused(503, f"the provider answers with {answer.status}")
                return msgspec.json.decode(body, type=dict[str, Any])
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise Refused(503, f"the provider does not answer: {error or 'in time'}") from error


def _chosen(keys: jwt.PyJWKSet | None, kid: str) -> jwt.PyJWK | None:
    """Return the key of a name; without one the only key."""
    found = [] if keys is None else keys.keys
    usable = [each for each in found if each.public_key_use in (None, "sig")]
    if not kid and len(usable) == 1:
        return usable[0]
    return next((each for each in usable if each.key_id == kid), None)
