"""Requests to object stores: the URLs of objects, clients for their buckets, and retries when a server fails.

A request is retried, with increasing pauses, if the server answers with an internal error (5xx), does not answer, or
sends an incomplete body. If the store still fails, StoreError is raised. It is not an OSError, as handlers of missing
or unreadable files must not catch it.

Each request runs in its own thread, and its caller waits for that thread. When the process has to end, the caller waits
only a few seconds more; otherwise a signal would have no effect until the library gives up.
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

from cordwood.common.errors import NotFoundError, RequestError, StoreAccessError, StoreError, UnsupportedError
from cordwood.common.threads import ending, in_background

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

T = TypeVar("T")

#: Error codes with which S3 refuses access.
_REFUSALS = frozenset(["AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"])
#: More retries than fit into the time limit.
_RETRIES_MAX = 1_000_000

#: Environment variables with the URL of an S3-compatible server other than Amazon's.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

#: A user or password before the bucket, or a query parameter that grants access. Bucket names contain no colon.
_SECRET = re.compile(
    r"^[a-z0-9]+://[^/]*@|^(s3|s3a|s3n|gs|az):/+[^/]*:|^[a-z0-9]+://.*[?&][^=&/]*(secret|token|sig|key|credential|password)[^=&/]*=",
    re.DOTALL | re.IGNORECASE,
)
_URL = re.compile(r"(s3|gs|az|memory):(?:/{0,2}|//([^/]+)(?:/(.*))?)", re.DOTALL)


class ObjectPlace(NamedTuple):
    """The position of an object: its bucket as a URL (`s3://bucket`), and its key, which is empty for the bucket."""

    bucket: str
    key: str


def is_object_url(path: str) -> bool:
    """Return whether a path is in an object store."""
    return _URL.fullmatch(path) is not None


def refuse_secrets(path: str) -> None:
    """Raise RequestError for a URL that contains credentials, without repeating them: paths are printed and logged."""
    if _SECRET.match(path):
        raise RequestError(
            f"{path.partition(':')[0]}://…: a URL must not hold credentials, because paths are printed and logged. "
            "Give them in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and take those in this "
            "URL for known to others"
        )


def place_of(path: str) -> ObjectPlace:
    """Split a URL into bucket and key.

    Raises:
        NotFoundError: the URL names no bucket.
        RequestError: the URL contains credentials.
    """
    refuse_secrets(path)
    match = _URL.fullmatch(path)
    if match is None or match[2] is None:
        raise NotFoundError(f"{path} names no bucket: write it as s3://BUCKET/PATH, gs://BUCKET/PATH or az://…")
    return ObjectPlace(f"{match[1]}://{match[2]}", "/".join(part for part in (match[3] or "").split("/") if part))


def normal_url(path: str) -> str:
    """Return the URL without empty path components and trailing slashes."""
    bucket, key = place_of(path)
    return f"{bucket}/{key}" if key else bucket


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits for requests, and for retries after failures of the server.

    Attributes:
        first_pause_ms: pause before the first retry; each later pause is at most twice as long as the previous one.
        retry_seconds: time after which no attempt starts.
        timeout_seconds: limit of one attempt, from the connection to the last byte.
    """

    first_pause_ms: int = 100
    longest_pause_ms: int = 15_000
    retry_seconds: int = 180
    timeout_seconds: float = 60


#: How long to wait for an answer when the process has to end, and the interval for checking that.
_LAST_SECONDS, _LOOK_SECONDS = 3, 0.2


# ---- requests --------------------------------------------------------------------------------------------------------

#: The stores of `memory://` URLs, which last as long as the process.
_memory: dict[str, Client] = {}


def client_of(bucket: str, patience: Patience) -> Client:
    """Return a client for a bucket, cached per process as long as its environment names the same server."""
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
            # Allow unencrypted HTTP only if the endpoint is an http:// URL, or the usual variable permits it.
            client_options={
                "timeout": timedelta(seconds=patience.timeout_seconds),
                "allow_http": plain or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"),
            },
            retry_config={
                "max_retries": _RETRIES_MAX,  # only the time limits retries
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
    """Turn the library's errors into Python's own, with the path and one line of the server's message."""
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
        if _code(error) in _REFUSALS:  # the library recognizes these only in requests for one object
            raise StoreAccessError(f"the object store refuses access: {_code(error)}", path) from None
        if _code(error) == "NoSuchBucket":
            raise FileNotFoundError(errno.ENOENT, "there is no such bucket", path) from None
        if _code(error) == "NotImplemented":
            raise UnsupportedError(f"the object store failed: {_brief(error)}", path) from None
        raise StoreError(f"the object store failed: {_brief(error)}", path) from None


def _code(error: BaseException) -> str | None:
    """Return the error code in an S3 response; the library has exceptions for only some of the codes."""
    found = re.search("<Code>([A-Za-z]+)</Code>", str(error))
    return None if found is None else found[1]


def _brief(error: BaseException) -> str:
    """Return the first line of an error, without the queries of URLs: they may contain a signature."""
    lines = str(error).splitlines()
    words = re.sub(r"(://[^\s?]*)\?\S*|, max_retries: \S+ retry_timeout: \S+", r"\1", lines[0] if lines else "")
    return words.strip()[:300] or type(error).__name__


def answer(path: str, request: Callable[[], T]) -> T:
    """Run a request and return its answer; errors of the server become Python's own.

    Raises:
        StoreError: the request failed, or the process has to end before the server answers.
    """
    future = in_background(request, "cordwood-request")
    with explained(path):
        return result_of(future, path)


def result_of(future: Future[T], path: str) -> T:
    """Wait for a request and return its result; see `answer`."""
    gives_up = math.inf
    while not wait([future], _LOOK_SECONDS).done:
        if ending.is_set():
            gives_up = min(gives_up, time.monotonic() + _LAST_SECONDS)
        if time.monotonic() > gives_up:
            raise StoreError("the run was stopped before the object store answered", path)
    return future.result()


def patiently(patience: Patience, path: str, request: Callable[[], T]) -> T:
    """Run a request; retry it if the body of its answer is incomplete, which the library retries for reads only."""
    ends, pause = time.monotonic() + patience.retry_seconds, patience.first_pause_ms / 1000
    while True:
        try:
            return answer(path, request)
        except StoreError as error:
            if "response body" not in str(error) or time.monotonic() + pause > ends:
                raise
        time.sleep(pause)
        pause = min(2 * pause, patience.longest_pause_ms / 1000)
