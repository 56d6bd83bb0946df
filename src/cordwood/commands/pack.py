"""`pack`: an archive of this environment for executors on other machines."""

from __future__ import annotations

import os

from cordwood.common.arguments import AnyPath
from cordwood.tasks.spark.environment import PackedEnvironment, pack_environment

DEFAULT_OUTPUT = "cordwood-environment.tar.gz"


def pack(output: AnyPath = DEFAULT_OUTPUT) -> PackedEnvironment:
    """Make an archive of Cordwood and the packages that it needs, for the executors of a Spark cluster.

    Raises:
        RequestError: the file exists, its folder does not, or its name does not end with .tar.gz.
    """
    return pack_environment(os.fspath(output))
