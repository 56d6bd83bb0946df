"""A stream of Avro records into Parquet files, from the directory that a broker writes to.

    pip install 'cordwood[spark,schemas]'
    python stream_with_schemas.py /var/kafka-logs orders schemas orders-parquet

`schemas` has one file for each schema id, such as `12.avsc`. The checkpoint beside the output lets the stream
continue where it ended, after a crash, too. It reads what is there and ends; without `availableNow` it would
follow the log.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import to_date

import cordwood


def main(logs: str, topic: str, schemas: str, output: str) -> None:
    """Append the new records of a topic to Parquet files, by day."""
    spark = SparkSession.builder.master("local[*]").appName(f"{topic} to Parquet").getOrCreate()
    cordwood.register(spark)
    records = (
        spark.readStream.format("cordwood")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("keyFormat", "utf8")
        .option("valueFormat", f"avro:{schemas}")
        .option("undecodable", "null")  # keep the row, and look at it later
        .load(logs)
    )
    rows = records.select(
        "key", "value.*", "partition", "offset", "timestamp", "undecodable", to_date("timestamp").alias("day")
    )
    query = (
        rows.writeStream.format("parquet")
        .option("path", output)
        .option("checkpointLocation", f"{output}-checkpoint")
        .partitionBy("day")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.read.parquet(output).groupBy("day", "undecodable").count().orderBy("day").show()


if __name__ == "__main__":
    main(*sys.argv[1:])
