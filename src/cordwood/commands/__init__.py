"""What a user asks for, a module per command, each told from top to bottom."""

import cordwood.report  # noqa: F401 - so that results can show themselves
