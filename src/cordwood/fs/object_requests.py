"""Requests to object stores: the URLs of objects, clients for their buckets, and what is done when a server fails.

A request is repeated, with pauses that get longer, when the server answers with an error of its own (5xx), does not
answer at all, or cuts a body off. A store that failed is a StoreError, which is no OSError: a handler for missing or
unreadable files must not catch it.

A request is done by a thread of its own. Its caller waits only a few seconds more once the process is told to end; a
signal would otherwise have no effect until the library gives up.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cordwood.errors import NotFoundError, RequestError, StoreAccessError, StoreError
from cordwood.threads import ending, in_background

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

T = TypeVar("T")

#: Codes with which S3 refuses access.
_REFUSALS = frozenset(["AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"])
#: More than fit into any time.
_RETRIES_MAX = 1_000_000

#: The usual variables for an S3-like server other than Amazon's.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

#: A user's name or a password before the bucket, or a parameter that grants access. No name of a bucket has a colon.
_SECRET = re.compile(
    r"^[a-z0-9]+://[^/]*@|^(s3|s3a|s3n|gs|az):/+[^/]*:|^[a-z0-9]+://.*[?&][^=&/]*(secret|token|sig|key|credential|password)[^=&/]*=",
    re.DOTALL | re.IGNORECASE,
)
_URL = re.compile(r"(s3|gs|az|memory):(?:/{0,2}|//([^/]+)(?:/(.*))?)", re.DOTALL)


class Place(NamedTuple):
    """Where an object is: its bucket as a URL (`s3://bucket`), and its key there, which is empty for the bucket."""

    bucket: str
    key: str


def is_object_url(path: str) -> bool:
    """Whether a path is in an object store."""
    return _URL.fullmatch(path) is not None


def refuse_secrets(path: str) -> None:
    """Refuse a URL that holds credentials, and do not repeat them: paths are printed, logged and seen by others."""
    if _SECRET.match(path):
        raise RequestError(
            f"{path.partition(':')[0]}://…: a URL must not hold credentials, because paths are printed and logged. "
            "Give them in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and take those in this "
            "URL for known to others"
        )


def place_of(path: str) -> Place:
    """The bucket and the key of a URL.

    Raises:
        NotFoundError: the URL names no bucket.
        RequestError: it holds credentials.
    """
    refuse_secrets(path)
    match = _URL.fullmatch(path)
    if match is None or match[2] is None:
        raise NotFoundError(f"{path} names no bucket: write it as s3://BUCKET/PATH, gs://BUCKET/PATH or az://…")
    return Place(f"{match[1]}://{match[2]}", "/".join(part for part in (match[3] or "").split("/") if part))


def normal_url(path: str) -> str:
    """The URL without slashes that have no name between or behind them."""
    bucket, key = place_of(path)
    return f"{bucket}/{key}" if key else bucket


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request is repeated that fails for the server's sake.

    Attributes:
        first_pause_ms: before the first of them; each later pause is up to twice as long as the one before.
        retry_seconds: no attempt starts later than that.
        timeout_seconds: of one attempt, from the connection to the last byte.
    """

    first_pause_ms: int = 100
    longest_pause_ms: int = 15_000
    retry_seconds: int = 180
    timeout_seconds: float = 60


#: How long an answer is waited for once the process is told to end, and how soon that is noticed.
_LAST_SECONDS, _LOOK_SECONDS = 3, 0.2


# ---- requests --------------------------------------------------------------------------------------------------------

#: The stores of `memory://` URLs, which last as long as the process.
_memory: dict[str, Client] = {}


def client_of(bucket: str, patience: Patience) -> Client:
    """What speaks to a bucket; the same one for a process, as long as its environment names the same server."""
    endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
    return _client_of(os.getpid(), bucket, endpoint, patience)


@functools.lru_cache(maxsize=64)
def _client_of(_process: int, bucket: str, endpoint: str, patience: Patience) -> Client:
    # Imported late: it starts threads of its own, which a process that forks must not have.
    from obstore.store import MemoryStore, from_url

    if bucket.startswith("memory:"):
        return _memory.setdefault(bucket, MemoryStore())
    plain = endpoint.startswith("http://")
    with explained(bucket):
        return from_url(
            bucket,
            # Without encryption only if such an address was given, or the usual variable asks for it.
            client_options={
                "timeout": timedelta(seconds=patience.timeout_seconds),
                "allow_http": plain or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"),
            },
            retry_config={
                "max_retries": _RETRIES_MAX,  # the time is what counts
                "retry_timeout": timedelta(seconds=patience.retry_seconds),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=patience.first_pause_ms),
                    "max_backoff": timedelta(milliseconds=patience.longest_pause_ms),
                    "base": 2,
                },
            },
        )


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn the library's errors into Python's own, with the path and one line of what the server said."""
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    except exceptions.PreconditionError:
        raise StoreError("was replaced while it was read. Do it again once nothing writes there", path) from None
    except exceptions.AlreadyExistsError:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise StoreAccessError(f"the object store refuses access: {_brief(error)}", path) from None
    except exceptions.BaseError as error:
        if _code(error) in _REFUSALS:  # the library knows only those of requests for one object
            raise StoreAccessError(f"the object store refuses access: {_code(error)}", path) from None
        if _code(error) == "NoSuchBucket":
            raise FileNotFoundError(errno.ENOENT, "there is no such bucket", path) from None
        raise StoreError(f"the object store failed: {_brief(error)}", path) from None


def _code(error: BaseException) -> str | None:
    """The code in the body of an answer of S3; the library has an exception of its own for some of them only."""
    found = re.search("<Code>([A-Za-z]+)</Code>", str(error))
    return None if found is None else found[1]


def _brief(error: BaseException) -> str:
    """The first line of an error, without the queries of URLs: they may hold a signature."""
    lines = str(error).splitlines()
    words = re.sub(r"(://[^\s?]*)\?\S*|, max_retries: \S+ retry_timeout: \S+", r"\1", lines[0] if lines else "")
    return words.strip()[:300] or type(error).__name__


def answer(path: str, request: Callable[[], T]) -> T:
    """What a server answers; its errors are Python's own.

    Raises:
        StoreError: it failed, or the process is told to end before it answers.
    """
    future = in_background(request, "cordwood-request")
    with explained(path):
        return result_of(future, path)


def result_of(future: Future[T], path: str) -> T:
    """The result of a request; see `answer`."""
    gives_up = math.inf
    while not wait([future], _LOOK_SECONDS).done:
        if ending.is_set():
            gives_up = min(gives_up, time.monotonic() + _LAST_SECONDS)
        if time.monotonic() > gives_up:
            raise StoreError("the run was told to end before the object store answered", path)
    return future.result()


def patiently(patience: Patience, path: str, request: Callable[[], T]) -> T:
    """Do a request, again and again if the body of its answer is cut off: the library repeats only reads for that."""
    ends, pause = time.monotonic() + patience.retry_seconds, patience.first_pause_ms / 1000
    while True:
        try:
            return answer(path, request)
        except StoreError as error:
            if "response body" not in str(error) or time.monotonic() + pause > ends:
                raise
        time.sleep(pause)
        pause = min(2 * pause, patience.longest_pause_ms / 1000)
