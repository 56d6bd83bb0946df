"""What pages say of a look at a node that has not ended, or could not find something out."""

from __future__ import annotations

from cordwood.commands.view import NodeLook, Step
from cordwood.pages.frame import paragraph
from cordwood.pages.markup import Content, tag
from cordwood.text import number, printable

#: How soon a page is loaded again while a look is under way.
_REFRESH_SECONDS = 2

_STEPS = {
    Step.LS: "Sizes and states are being read",
    Step.WHY: "What could go is being found out",
    Step.GROUPS: "Consumer groups are being read",
    Step.TRANSACTIONS: "Open transactions are being looked for",
}


def refresh_seconds(look: NodeLook) -> int | None:
    """How soon a page is to be loaded again; None: all is known."""
    return None if look.is_done else _REFRESH_SECONDS


def progress(look: NodeLook) -> Content:
    """How far a look has come, and what it could not find out."""
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
    """Whether a step is done."""
    order = list(Step)
    return look.step is None or order.index(look.step) > order.index(step)


def not_yet(look: NodeLook, step: Step) -> Content:
    """Why something is not known."""
    if step in look.failures:
        return paragraph("Not known: ", printable(look.failures[step]), class_="wrong")
    return paragraph(f"Not known yet: {_STEPS[step].lower()} after what comes before it.", class_="quiet")
