"""A report for the person on call: the disk is full, which topics fill it, why, and what to do.

    python disk_full.py /var/kafka-logs report.html

It changes nothing, and a broker may be running or may be dead. The report is one HTML file that needs no
network.
"""

import shutil
import sys
from pathlib import Path

import cordwood

SHOWN = 5


def main(logs: str, report: str) -> None:
    """Print the largest topics and the best next steps, and write the pages."""
    disk = shutil.disk_usage(logs)
    print(f"{logs}: {disk.used / disk.total:.0%} of the disk is used, {disk.free / 2**30:.1f} GiB are free\n")

    print("The largest topics:")
    for topic in sorted(cordwood.ls(logs).topics, key=lambda one: one.disk_bytes, reverse=True)[:SHOWN]:
        print(f"  {topic.disk_bytes / 2**20:10.2f} MiB  {topic.name}")

    print("\nWhat could go, and the next step:")
    for partition in cordwood.why(logs).partitions[:SHOWN]:  # those that could lose most come first
        cause = partition.cause
        print(f"  {partition.could_lose_bytes / 2**20:10.2f} MiB  {partition.name}: {cause.what}")
        for step in filter(None, (cause.next_step, cause.by_itself)):
            print(f"                  → {step}")

    Path(report).write_text(cordwood.view_html(logs))
    print(f"\nAll partitions, with evidence: {report}")


if __name__ == "__main__":
    main(*sys.argv[1:])
