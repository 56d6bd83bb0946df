"""The pages of live logs, from a real manager on a real disk: their contents, and their access control."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from cordwood.cleaning.rules.plan import Reason
from cordwood.common.types import TopicPartition
from cordwood.live.report import SPANS, Health, LiveLook, PartitionStatus, Sample, SampleHistory, Span, Tally
from cordwood.view.live_view import LiveView
from cordwood.view.pages import live
from cordwood.view.pages.frame import Wanted
from cordwood.view.running import LiveNode
from cordwood.view.web.http_server import HEADERS, Request
from tests.live.live_logs import batch
from tests.live.nodes import ONE, made, made_damaged, running, until, wait
from tests.logs import append
from tests.view.web.view_client import NAMES, Client, check_harmless

pytestmark = pytest.mark.more

COMPACT = "t:cleanup.policy=compact"


def client_of(node: LiveNode) -> Client:
    return Client(f"http://127.0.0.1:{node.port}/")


def row_of(client: Client, topic: str) -> dict[str, Any]:
    (found,) = [one for one in client.get("/partitions.json").document["partitions"] if one["topic"] == topic]
    return dict(found)


# ---- Contents of the pages -------------------------------------------------------------------------------------------


def test_the_page_shows_what_came_what_went_and_what_each_log_is(tmp_path: Path) -> None:
    cleans = []
    retention = ("u:cleanup.policy=delete", "u:retention.bytes=1000")
    with running(made(tmp_path, t=50, u=50), COMPACT, *retention, view=True, retention=True) as node:
        assert node.manager.cleaner is not None
        node.manager.cleaner.on_clean = lambda _, stats: cleans.append(stats)
        wait(node, "t")
        batches = [batch(f"a{number}", f"b{number}") for number in range(30)]
        for data in batches:
            node.manager.logs[ONE].append_as_leader(data, 0)
        node.manager.logs[ONE].update_high_watermark(node.manager.logs[ONE].log_end_offset)
        wait(node, "t")
        node.manager.cleanup_logs()
        until(lambda: node.manager.cleaner is not None and node.manager.cleaner.threads[0].record.running is None)
        node.look()
        client = client_of(node)
        found, page = client.get("/live.json").document, check_harmless(client.get("/").text)
        sizes = {topic: row_of(client, topic)["size_bytes"] for topic in ("t", "u")}
        assert sizes == {name.topic: log.size_bytes for name, log in node.manager.logs.items()}
        assert found["size_bytes"] == sum(sizes.values()) and found["healthy"] and found["failed"] == 0
        assert found["appended_bytes"] == sum(map(len, batches)) == row_of(client, "t")["appended_bytes"]
        assert found["removed_bytes"] >= sum(one.bytes_read - one.bytes_written for one in cleans) > 0
        assert found["deleted_bytes"] == row_of(client, "u")["deleted_bytes"] > 0
        assert row_of(client, "u")["size_bytes"] < 1_500
        traffic = node.manager.cleaner.runner.traffic
        assert (found["written_bytes"], found["new_bytes"]) == (traffic.written, traffic.new)
        for words in ("t-0", "u-0", "waits", "cleaned t-0: dirty offsets", "No problem was seen.", "compact"):
            assert words in page.text
        assert f"{traffic.written / traffic.new:.3g}" in page.text


def test_the_page_shows_what_a_thread_cleans_and_how_far_it_is(tmp_path: Path) -> None:
    slow = "log.cleaner.io.max.bytes.per.second=8000"
    with running(made(tmp_path, t=300), COMPACT, slow, view=True) as node:
        client = client_of(node)

        def look() -> Any:
            node.look()
            return client.get("/live.json").document["threads"][0]

        until(lambda: 0 < look()["bytes_read"] < look()["bytes_max"])
        thread, page = look(), check_harmless(client.get("/").text)
        assert (thread["state"], thread["topic"], thread["partition"]) == ("cleans", "t", 0)
        assert thread["seconds"] > 0 and "kafka-log-cleaner-thread-0" in page.text and " of up to " in page.text
        assert row_of(client, "t")["state"] == "in progress"


def test_a_log_that_cannot_be_cleaned_is_named_with_the_reason(tmp_path: Path) -> None:
    path = made_damaged(tmp_path)
    with running(path, COMPACT, view=True) as node:
        cleaner = node.manager.cleaner
        assert cleaner is not None
        until(lambda: cleaner.manager.uncleanable(ONE) is not None)
        node.look()
        found, page = client_of(node).get("/live.json").document, check_harmless(client_of(node).get("/").text)
        (failed,) = found["cannot_be_cleaned"]
        assert (failed["topic"], failed["failures"], found["failed"]) == ("t", 1, 1)
        assert failed["why"].startswith("the last clean failed: ") and "CRC" in failed["why"]
        assert not found["healthy"] and found["problems"][0] in page.text
        assert failed["why"].partition(";")[0] in page.text and "1 problem" in page.text


def test_while_the_logs_are_loaded_the_page_says_so() -> None:
    view = LiveView(["/data"], lambda: Health(("the logs are being loaded",)), lambda: "the logs of /data <b>")
    page = check_harmless(view.routes()["/"](Request("GET", "/", {}, {})).body.decode())
    assert "The logs are being loaded." in page.text and "the logs of /data <b>" in page.text
    assert any(tag == "meta" and one.get("http-equiv") == "refresh" for tag, one in page.tags)
    assert view.routes()["/live.json"](Request("GET", "/live.json", {}, {})).status == 503


def test_the_page_loads_again_unless_somebody_reads(tmp_path: Path) -> None:
    with running(made(tmp_path, t=3), view=True) as node:

        def refreshed(target: str) -> str | None:
            tags = check_harmless(client_of(node).get(target).text).tags
            return next((one["content"] for tag, one in tags if one.get("http-equiv") == "refresh"), None)

        assert [refreshed(f"/?refresh={one}") for one in ("", "5s", "30s", "never", "<b>")] == [
            "5",
            "5",
            "30",
            None,
            "5",
        ]


# ---- over time -------------------------------------------------------------------------------------------------------


def sample(uptime_ms: int, **more: Any) -> Sample:
    zero = dict.fromkeys(Sample.__dataclass_fields__, 0)
    return Sample(**{**zero, "time_ms": 1_795_000_000_000 + uptime_ms, "uptime_ms": uptime_ms, **more})


def test_samples_are_bounded_and_reach_back_as_far_as_their_span() -> None:
    history = SampleHistory()
    assert history.over(Span.DAY) == ()
    for at_ms in range(0, 40 * 86_400_000, 120_000):
        history.add(sample(at_ms))
    for span, (_, length_ms, period_ms) in SPANS.items():
        found = history.over(span)
        times = [one.uptime_ms for one in found]
        assert times == sorted(set(times)) and times[-1] == at_ms
        assert at_ms - times[0] <= length_ms < at_ms - times[0] + period_ms + 120_000
        assert len(found) <= 161


def test_a_span_shows_the_newest_sample_even_between_two_that_are_kept() -> None:
    history = SampleHistory()
    for at_ms in (0, 2_000, 4_000, 5_000):
        history.add(sample(at_ms))
    assert [one.uptime_ms for one in history.over(Span.MINUTES)] == [0, 4_000, 5_000]
    assert [one.uptime_ms for one in history.over(Span.HOUR)] == [0, 5_000]


def test_counters_of_logs_that_go_or_begin_again_still_add_up() -> None:
    tally, other = Tally(), TopicPartition("other", 0)
    for counts in ({ONE: 5}, {ONE: 7, other: 1}, {other: 3}, {ONE: 2, other: 3}):
        tally.note(counts)
    assert tally.total == 7 + 3 + 2


def look(samples: list[Sample], partitions: int = 0) -> LiveLook:
    found = [
        PartitionStatus(
            *(TopicPartition(f"topic-{number}", 0), f"/data/topic-{number}-0", "compact", 1, number, 0, 0, 0, 1, 1),
            *((number % 100) / 100, None, False, 0, Reason("why")),
        )
        for number in range(partitions)
    ]
    return LiveLook(("/data",), samples[-1], Health(()), tuple(found), ())


def test_charts_draw_what_their_table_has() -> None:
    samples = [sample(at * 4_000, appended_bytes=at * at * 4_000, size_bytes=at) for at in range(20)]
    text = live.live_page(look(samples), samples, Span.MINUTES, "never")
    page = check_harmless(text)
    over_time = text.partition("<h2>Over time</h2>")[2].partition("</section>")[0]
    assert over_time.index("<svg") < over_time.index("<table")
    assert over_time.count("<figure") == 5
    # From the 18th sample to the 19th 37 times 4,000 bytes came in four seconds.
    assert "appended: 37.0 kB/s" in page.text and "37.0 kB/s" in over_time.partition("<tbody>")[2].partition("</tr>")[0]
    lines = [one["points"] for tag, one in page.tags if tag == "polyline" and len(one["points"] or "") > 20]
    assert lines and all(len(str(points).split()) == 19 for points in lines)


def test_a_chart_of_nothing_has_one_mark() -> None:
    samples = [sample(at * 4_000) for at in range(3)]
    page = check_harmless(live.live_page(look(samples), samples, Span.MINUTES, ""))
    drawn = page.text.partition("The last:")[2].partition("appended: ")[0]
    assert drawn.count("B/s") == 2, "once for each width"


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_samples_are_not_drawn(count: int) -> None:
    samples = [sample(at * 4_000) for at in range(count)]
    page = check_harmless(live.live_page(look(samples), samples, Span.MINUTES, ""))
    assert "Too early to say" in page.text


def test_of_10_000_partitions_a_page_shows_few() -> None:
    found = look([sample(0)], partitions=10_000)
    began = time.process_time()
    first = live.live_page(found, [sample(0)], Span.MINUTES, "")
    pages = [live.partitions_page(found, Wanted(sort=sort, page=2)) for sort in ("", "size", "dirty", "name")]
    assert time.process_time() - began < 5
    assert "20 of 10,000 partitions" in first and len(first) < 50_000
    assert all(len(one) < 200_000 and "page 2 of 100" in one for one in pages)
    document = live.partitions_document(found, Wanted(search="TOPIC-77", sort="size"))
    assert [one["topic"] for one in document["partitions"]][:2] == ["topic-7799", "topic-7798"]
    assert document["partitions_found"] == 111


# ---- Access control --------------------------------------------------------------------------------------------------


def test_pages_are_only_for_browsers_that_meant_this_server(tmp_path: Path) -> None:
    with running(made(tmp_path, t=3), view=True) as node:
        client = client_of(node)
        for target in ("/", "/live.json", "/partitions", "/partitions.json", "/style.css", "/nothing"):
            assert client.get(target, Host=f"localhost:{client.port}").status == (404 if target == "/nothing" else 200)
            for more in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
                got = client.get(target, **more)
                assert got.status == 403 and b"t-0" not in got.body
            headers = client.get(target).headers
            assert {name: headers[name.lower()] for name in HEADERS} == dict(HEADERS)
        assert client.get("/metrics", Host="prometheus.example").status == 200
        assert client.get("/health", Host="prometheus.example").status == 200
        assert client.get("/", "POST").status == 405


def test_without_the_option_there_are_no_pages(tmp_path: Path) -> None:
    with running(made(tmp_path, t=3)) as node:
        for target in ("/", "/live.json", "/partitions"):
            assert client_of(node).get(target).status == 404


def test_names_that_a_file_system_allows_do_not_break_out(tmp_path: Path) -> None:
    for name in NAMES:
        append(tmp_path / f"{name}-0", (b"k", b"v"))
    with running(tmp_path, view=True) as node:
        client = client_of(node)
        for target in ("/", "/partitions", "/partitions?search=%22%3E%3Cscript%3E", "/?span=%3Cb%3E&refresh=%22%3E"):
            check_harmless(client.get(target).text)
        page = check_harmless(client.get("/partitions").text)
        for name in NAMES[:6]:
            assert f"{name}-0" in page.text
        assert "\x1b" not in page.text and "\u202e" not in page.text
        assert client.get("/partitions.json").document["partitions_found"] == len(NAMES)
