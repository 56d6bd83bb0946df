"""The cases of docs/cases.md about a clean, by their numbers, as conversations with a log: see `cases/*.txt`.

CORDWOOD_REWRITE=1 rewrites the files with the current output.
"""

from __future__ import annotations

import pytest

from tests.cleaning.transcript import FOLDER, cases, render, transcript
from tests.knobs import REWRITE

FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize(
    ("path", "heading"),
    [pytest.param(path, heading, id=heading) for path in FILES for heading in cases(path.read_text())],
)
def test_a_clean_leaves_what_the_transcript_shows(path, heading) -> None:
    if REWRITE:
        path.write_text(render(path.read_text()))
    text = path.read_text()
    expected = text.partition(f"# {heading}\n")[2].partition("\n\n#")[0].strip()
    assert transcript(cases(text)[heading]) == expected
