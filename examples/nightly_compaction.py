"""Compact an archive of a broker's logs every night, and keep the old state until the new one is proved.

    python nightly_compaction.py /archive/kafka-logs cleanup.policy=compact

The archive is only read while a cleaned copy is made beside it. The copy takes its place once `verify` has
found nothing lost; the old state stays as `kafka-logs.before` until the next night. Exit code 1: something is
wrong, and nothing changed.
"""

import shutil
import sys
from pathlib import Path

import cordwood


def main(archive: Path, overrides: list[str]) -> int:
    """Compact one archive; return the exit code."""
    cleaned = archive.with_name(f"{archive.name}.cleaned")
    before = archive.with_name(f"{archive.name}.before")
    shutil.rmtree(cleaned, ignore_errors=True)  # of a night that was interrupted
    if not archive.exists() and before.exists():
        before.rename(archive)  # it was interrupted between the two renames below

    damaged = [one for one in cordwood.check(archive) if one.severity is cordwood.Severity.DAMAGE]
    if damaged:
        print("not compacted, as the archive is damaged:", *damaged, sep="\n  ")
        return 1
    # An archive has no other replica that could still need an expired tombstone: hence single_copy.
    result = cordwood.clean(archive, output=cleaned, overrides=overrides, single_copy=True, engine="here")
    print(result.text())
    proof = cordwood.verify(archive, cleaned, overrides=overrides, engine="here")
    print(proof.text())
    if not proof.holds:
        return 1

    shutil.rmtree(before, ignore_errors=True)
    archive.rename(before)
    cleaned.rename(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
