"""An OpenID provider of the tests: it publishes its keys, and signs what the test has it sign."""

from __future__ import annotations

import base64
import hashlib
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from fairlead.webhook.certificates import Times, make
from fairlead.webhook.tls import load_pair, server_context

CLIENT, SECRET = "fairlead page", "p@ss/w:rd"


@dataclass
class OpenIdProvider:
    """`claims` replace those of the next token; `sign` makes it, by default with the own key."""

    authority: str
    issuer: str = ""
    claims: dict[str, Any] = field(default_factory=dict[str, Any])
    described: dict[str, Any] = field(default_factory=dict[str, Any])
    codes: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    key: rsa.RSAPrivateKey = field(
        default_factory=lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048)
    )
    kid: str = "one"
    #: What is sent in place of a token that is signed as it should be; "": nothing.
    token: str = ""
    asked: list[str] = field(default_factory=list[str])

    def authorize(self, url: str) -> str:
        """Return the code for a browser that was sent here, whose user agrees."""
        assert url.startswith(f"{self.issuer}/authorize?")
        asked = dict(parse_qsl(urlsplit(url).query))
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert asked["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        return code

    def signed(self, claims: dict[str, Any]) -> str:
        """Return a token with these claims."""
        return jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": self.kid})

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer as a provider does."""
        self.asked.append(request.path)
        match request.path:
            case "/.well-known/openid-configuration":
                return web.json_response({
                    "issuer": self.issuer, "authorization_endpoint": f"{self.issuer}/authorize",
                    "token_endpoint": f"{self.issuer}/token", "jwks_uri": f"{self.issuer}/keys",
                    **self.described,
                })  # fmt: skip
            case "/keys":
                public = RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
                key = {**public, "kid": self.kid, "use": "sig", "alg": "RS256"}
                return web.json_response({"keys": [key]})
            case "/token":
                return self._token(request, dict(parse_qsl((await request.read()).decode())))
            case _:
                return web.Response(status=404)

    def _token(self, request: web.BaseRequest, form: dict[str, str]) -> web.Response:
        asked = self.codes.pop(form["code"], None)
        challenge = hashlib.sha256(form["code_verifier"].encode()).digest()
        pair = base64.b64decode(request.headers["Authorization"].removeprefix("Basic "))
        if (
            asked is None
            or base64.urlsafe_b64encode(challenge).decode().rstrip("=") != asked["code_challenge"]
            or form["redirect_uri"] != asked["redirect_uri"]
            or pair != b"fairlead%20page:p%40ss%2Fw%3Ard"
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        now = int(time.time())
        claims = {
            "iss": self.issuer, "sub": "ada", "aud": CLIENT, "iat": now, "exp": now + 300,
            "nonce": asked["nonce"], "groups": ["lab"], **self.claims,
        }  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        return web.json_response({"id_token": self.token or self.signed(claims)})


@asynccontextmanager
async def openid_provider() -> AsyncIterator[OpenIdProvider]:
    """Yield a provider that listens over TLS."""
    authority, pair = make(("127.0.0.1",), now=time.time(), times=Times(), name="provider")
    context: ssl.SSLContext = server_context()
    load_pair(context, pair)
    provider = OpenIdProvider(authority.decode())
    runner = web.ServerRunner(web.Server(provider.handle, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    (address, *_) = runner.addresses
    provider.issuer = f"https://127.0.0.1:{address[1]}"
    try:
        yield provider
    finally:
        await runner.cleanup()
