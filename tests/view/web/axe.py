"""axe-core, which finds accessibility problems of a page; `fetch-axe` gets its script."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

from tests.knobs import REQUIRE_KAFKA

#: A function body that returns serious and critical violations, with the elements of each rule. The rows of a table
#: are alike, and axe-core takes milliseconds for each cell, so it looks at the first few.
_FINDINGS = """
return axe.run({exclude: ['tbody tr:nth-child(n+16)']}, {resultTypes: ['violations']}).then(found => {
  if (found.passes.length < 5) throw new Error('too few rules were run')
  return found.violations.filter(one => ['serious', 'critical'].includes(one.impact))
    .flatMap(one => one.nodes.map(node => `${one.id} (${one.impact}): ${node.html.slice(0, 200)}`))
})
"""


@functools.cache
def findings_script() -> str | None:
    """The script that finds them in a page; None if axe-core is not available. It is required where a browser is
    required.
    """
    command = [sys.executable, str(Path(__file__).parent / "fetch-axe")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        assert not REQUIRE_KAFKA, f"axe-core must be here: {done.stderr}"
        return None
    return Path(done.stdout.strip()).read_text() + _FINDINGS
