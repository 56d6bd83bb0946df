"""Names and keys that would break out of a page that forgets to escape them."""

from __future__ import annotations

#: Names of topics that a file system allows; the first six can be shown as they are.
NAMES = tuple(
    name.replace("/", "\u2215")
    for name in (
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "' onmouseover='alert(1)",
        "</title><svg onload=alert(1)>",
        "&lt;b&gt; javascript:alert(1)",
        "%3Cscript%3E ?#&=+",
        "\x1b[31mred\u202eevil\x07",
        "caf\udce9",
    )
)
