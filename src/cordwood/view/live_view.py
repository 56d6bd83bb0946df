"""The pages of `run --view`: current cleaner activity on live logs, and its history.

/                current activity; ?span= sets the time span of the charts        /live.json
/partitions      all logs, filtered, sorted and limited                           /partitions.json

The pages show the last look at the logs, so no request waits for a log or a disk. No page changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cordwood.common.clock import Clock, monotonic_clock
from cordwood.live.clean_runner import CleanTraffic
from cordwood.live.history import SampleHistory, Tally
from cordwood.live.log_manager import LogManager
from cordwood.live.report import Health, LiveLook, PartitionStatus, Sample, Span
from cordwood.live.status import thread_statuses
from cordwood.view.pages import live
from cordwood.view.web.access import Access
from cordwood.view.web.answers import html, json_document, not_yet, style_sheet, wanted
from cordwood.view.web.http_server import Answer, Guard, Request, Route


class LiveView:
    """The data of the pages: the last look, and samples of earlier looks."""

    def __init__(
        self,
        directories: Sequence[str],
        health: Callable[[], Health],
        waiting: Callable[[], str],
        clock: Clock = monotonic_clock,
    ) -> None:
        """Begin without a look.

        Args:
            health: returns the current health, because the health of the last look is too old if a look hangs.
            waiting: returns in words what the look waits for.
        """
        self._directories = tuple(directories)
        self._health = health
        self._waiting = waiting
        self._clock = clock
        self._started_ms = clock()
        self._history = SampleHistory()
        self._appended, self._deleted = Tally(), Tally()
        self._look: LiveLook | None = None

    def note(self, manager: LogManager, partitions: Sequence[PartitionStatus], health: Health, now_ms: int) -> None:
        """Store the results of a look; only one thread calls this."""
        self._appended.note({one.partition: one.appended_bytes for one in partitions})
        self._deleted.note({one.partition: one.deleted_bytes for one in partitions})
        traffic = CleanTraffic() if manager.cleaner is None else manager.cleaner.runner.traffic
        sample = Sample(
            time_ms=now_ms,
            uptime_ms=self._clock() - self._started_ms,
            size_bytes=sum(one.size_bytes for one in partitions),
            appended_bytes=self._appended.total,
            deleted_bytes=self._deleted.total,
            removed_bytes=traffic.removed,
            read_bytes=traffic.read,
            written_bytes=traffic.written,
            new_bytes=traffic.new,
            dirtiest_ratio=max((one.cleanable_ratio or 0.0 for one in partitions), default=0.0),
            due=sum(one.is_due for one in partitions),
            failed=sum(bool(one.failures) for one in partitions),
        )
        self._history.add(sample)
        threads = thread_statuses(manager.cleaner)
        self._look = LiveLook(self._directories, sample, health, tuple(partitions), threads)

    def routes(self) -> Mapping[str, Route]:
        """Return the handlers by path."""
        return {
            "/": self._live,
            "/live.json": self._live_json,
            "/partitions": self._partitions,
            "/partitions.json": self._partitions_json,
            "/style.css": style_sheet,
        }

    def _latest(self) -> LiveLook | None:
        return None if self._look is None else replace(self._look, health=self._health())

    def _live(self, request: Request) -> Answer:
        look = self._latest()
        if look is None:
            return html(live.loading_page(self._health(), self._waiting()))
        span = _span(request)
        return html(live.live_page(look, self._history.over(span), span, request.query.get("refresh", "")))

    def _live_json(self, request: Request) -> Answer:
        look, span = self._latest(), _span(request)
        return not_yet() if look is None else json_document(live.document(look, self._history.over(span), span))

    def _partitions(self, request: Request) -> Answer:
        look = self._latest()
        if look is None:
            return html(live.loading_page(self._health(), self._waiting()))
        return html(live.partitions_page(look, wanted(request)))

    def _partitions_json(self, request: Request) -> Answer:
        look = self._latest()
        return not_yet() if look is None else json_document(live.partitions_document(look, wanted(request)))


def _span(request: Request) -> Span:
    """Return the span in a request, or the default."""
    asked = request.query.get("span", "")
    return next((span for span in Span if span == asked), Span.MINUTES)


def guard(port: int, host: str, unguarded: Mapping[str, Route]) -> Guard:
    """Serve pages only to browsers on this machine, and only if the request names this server.

    Args:
        unguarded: paths that any host may read, under any name of this machine, such as Prometheus behind a proxy.
    """
    access = Access(host, port)
    return lambda request: None if request.path in unguarded else access.refuse(request)
