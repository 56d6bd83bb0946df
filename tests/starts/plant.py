"""Plant a fault in a new folder, to inspect it by hand.

python -m tests.starts.plant                   lists the faults
python -m tests.starts.plant NAME FOLDER       creates FOLDER/a and FOLDER/b
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.starts.faults import FAULTS


def main(words: list[str]) -> int:
    if len(words) != 2:
        print("\n".join(FAULTS))
        return 0
    print(FAULTS[words[0]].plant(Path(words[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
