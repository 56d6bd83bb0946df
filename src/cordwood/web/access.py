"""Who gets an answer: a browser on this machine that meant this server, or a client that has the token.

A page of another site can make a browser send requests here, or bring a name of its own to lead here (DNS rebinding)
and then read the answers as its own. So the Host that a request names must be ours, and an Origin, if it has one, too.
From outside of this machine a token is needed besides: a link with it sets a cookie, and the link forgets it.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, urlencode

from cordwood.web.http_server import Answer, Request

#: What a page may do: show itself and its style sheet, and lead to other pages of this server. It runs nothing.
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
#: Addresses that stand for all of this machine's.
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
    """The rule of one server.

    Attributes:
        host: the address that it listens on.
        token: what a client must show; None: nothing.
    """

    host: str
    port: int
    token: str | None = None

    def refuse(self, request: Request) -> Answer | None:
        """The answer to a request that gets no other; None: it may be answered."""
        host = request.headers.get("host", "")
        if not self._is_ours(host):
            return _refusal("This server does not answer for that name.")
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return _refusal("This server does not answer to pages of others.")
        return None if self.token is None else self._ask_for_token(request, self.token)

    def _is_ours(self, host: str) -> bool:
        if self.host in _ANY and self.token is not None:
            return True  # by whatever name this machine is known; a page of another site has no token for it
        name = f"[{self.host}]" if ":" in self.host else self.host
        names = {*_LOOPBACK, name} if is_loopback(self.host) else {name}
        return host.lower() in {f"{one}:{self.port}" for one in names} or (self.port == 80 and host.lower() in names)

    def _ask_for_token(self, request: Request, token: str) -> Answer | None:
        given = request.query.get("token")
        if given is not None and _is_same(given, token):
            rest = {name: value for name, value in request.query.items() if name != "token"}
            # One slash, so that it is a path of this server, and nothing that a header could not hold.
            path = "/" + quote(request.path.lstrip("/"), safe="/.")
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
