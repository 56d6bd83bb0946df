"""Parts of a page for a scan of a node that is still running or has failed."""

from __future__ import annotations

from cordwood.common.text import number, printable
from cordwood.view.node_look import NodeLook, Step
from cordwood.view.pages.frame import paragraph
from cordwood.view.pages.markup import Content, tag

#: Delay before a page reloads while a scan is running.
_REFRESH_SECONDS = 2

_STEPS = {
    Step.LS: "Sizes and states are being read",
    Step.WHY: "What could go is being found out",
    Step.GROUPS: "Consumer groups are being read",
    Step.TRANSACTIONS: "Open transactions are being looked for",
}


def refresh_seconds(look: NodeLook) -> int | None:
    """Return the delay before a page reloads, or None if the scan is complete."""
    return None if look.is_done else _REFRESH_SECONDS


def progress(look: NodeLook) -> Content:
    """Show the progress of a scan, and its failures."""
    failures = [paragraph(f"cordwood {step}: ", printable(why), class_="wrong") for step, why in look.failures.items()]
    if look.step is None:
        return failures
    done, total = look.partitions_done, look.partitions_all
    bar = tag("progress", value=done, max=max(total, 1), aria_label="Partitions looked at")
    steps = f"step {list(Step).index(look.step) + 1} of {len(Step)}"
    return [
        *failures,
        tag(
            "div",
            paragraph(f"{_STEPS[look.step]}: {done:,} of {number(total, 'partition')}, {steps}. ", bar),
            paragraph("This page loads again by itself until all is known.", class_="quiet"),
            class_="under-way",
            role="status",
        ),
    ]


def has_come_to(look: NodeLook, step: Step) -> bool:
    """Whether the scan has completed a step."""
    order = list(Step)
    return look.step is None or order.index(look.step) > order.index(step)


def not_yet(look: NodeLook, step: Step) -> Content:
    """Explain why a result is missing: its step failed, or has not run yet."""
    if step in look.failures:
        return paragraph("Not known: ", printable(look.failures[step]), class_="wrong")
    return paragraph(f"Not known yet: {_STEPS[step].lower()} after what comes before it.", class_="quiet")
