"""`register`: logs as a data source of a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cordwood.common.errors import RequestError
from cordwood.fs.by_url import file_system_for
from cordwood.tasks.spark.requirements import check_version, prepare_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cordwood.tables.source.counter import ReadCounter


def register(spark: SparkSession, *, push_filters: bool | None = None) -> ReadCounter:
    """Make `spark.read.format("cordwood")` and `spark.readStream.format("cordwood")` read logs from their directories.

    A path may be the URL of an object store. A session of local mode then runs its workers in this process's Python,
    unless PYSPARK_PYTHON chose another one: a virtual environment need not be activated.

    Args:
        spark: the session; a session of Spark Connect will do.
        push_filters: let readers decide conditions of a query themselves, and skip what they rule out. Up to Spark 4.3
            use it where each DataFrame that is loaded serves one query: Spark mixes up the filters of several.
            Default: only if Spark keeps them apart. The option `pushFilters` says otherwise for one reader.

    Returns:
        what counts the reads of the session.

    Raises:
        RequestError: Spark is not installed, or too old; or the session's workers run a Python that has no Cordwood.
    """
    check_version(spark.version)
    try:
        from cordwood.tables.source.datasource import register_source
    except ImportError as error:
        raise RequestError(
            f"The data source needs Spark 4.3 or newer:  pip install 'cordwood[spark]' ({error})"
        ) from None
    prepare_session(spark)
    return register_source(spark, file_system_for, push_filters=push_filters)
