"""Keeps what was loaded out of the garbage collections of Spark's Python workers."""

from __future__ import annotations

import functools
import gc


@functools.cache
def keep_loaded() -> None:
    """Exclude all objects that exist now from garbage collections, once in a process.

    Spark's workers collect garbage after each task. With our modules and kernels loaded this takes about a tenth of a
    second, longer than many a task. Workers of our own daemon have it done before they are forked; those of a user's
    session call this behind their first task, when all is loaded.
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
