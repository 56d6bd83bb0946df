"""Decides who gets an answer: a browser on this machine that meant this server, or a client that has the token.

A page of another site can make a browser send requests here. It can also resolve its own domain name to this address
(DNS rebinding), so that the browser lets it read the answers. So the Host header must name this server, and so must an
Origin header if there is one. Clients on other machines also need a token: a link with the token sets a cookie and
redirects to the same address without the token.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, urlencode

from cordwood.view.web.http_server import Answer, Request

#: Pages may display themselves and the style sheet and link to pages of this server. They run no scripts.
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
#: Listening addresses that cover all addresses of this machine.
_ANY = ("0.0.0.0", "::")
_COOKIE = "cordwood"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Access:
    """The access rule of one server.

    Attributes:
        host: the address that the server listens on.
        token: secret that a client must present, or None if it needs no secret.
    """

    host: str
    port: int
    token: str | None = None

    def refuse(self, request: Request) -> Answer | None:
        """Return a refusal, or None if the request may be answered."""
        host = request.headers.get("host", "")
        if not self._is_ours(host):
            return _refusal("This server does not answer for that name.")
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return _refusal("This server does not answer to pages of others.")
        return None if self.token is None else self._ask_for_token(request, self.token)

    def _is_ours(self, host: str) -> bool:
        if self.host in _ANY and self.token is not None:
            return True  # this machine may have any name; a page of another site has no token
        name = f"[{self.host}]" if ":" in self.host else self.host
        names = {*_LOOPBACK, name} if is_loopback(self.host) else {name}
        return host.lower() in {f"{one}:{self.port}" for one in names} or (self.port == 80 and host.lower() in names)

    def _ask_for_token(self, request: Request, token: str) -> Answer | None:
        given = request.query.get("token")
        if given is not None and _is_same(given, token):
            rest = {name: value for name, value in request.query.items() if name != "token"}
            # Exactly one leading slash, so that this is a path on this server; quoting makes it a valid header value.
            path = "/" + quote(request.path.lstrip("/"), safe="/.", encoding="latin-1")
            target = path + (f"?{urlencode(rest, errors='surrogateescape')}" if rest else "")
            cookie = f"{_COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/"
            return Answer(HTTPStatus.SEE_OTHER, b"", headers={"Location": target, "Set-Cookie": cookie})
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if any(_is_same(one, token) for one in (bearer, _cookie_of(request))):
            return None
        return _refusal("Open the address with the token that cordwood view has printed.", HTTPStatus.UNAUTHORIZED)


def _cookie_of(request: Request) -> str:
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(_COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


def _refusal(why: str, status: HTTPStatus = HTTPStatus.FORBIDDEN) -> Answer:
    return Answer(status, f"{why}\n".encode())
