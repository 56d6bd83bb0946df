"""The latest value of each key of a topic, as Parquet files, and questions about them in DuckDB.

    pip install cordwood duckdb
    python latest_table.py /var/kafka-logs users users-table

No broker is asked, and Spark is not needed. A running broker is not disturbed: its files are only read. For
values that are Avro give `value="avro:SCHEMAS"`; for all that changed since an earlier table, `since="users-
table"`.
"""

import sys

import duckdb

import cordwood


def main(logs: str, topic: str, output: str) -> None:
    """Write the table of a topic, and ask about it."""
    result = cordwood.write_table(logs, topic=topic, output=output, key="utf8", value="utf8", engine="here")
    print(result.text())

    rows = duckdb.sql(f"SELECT * FROM '{output}/*.parquet'")
    print("\nThe keys that changed last:")
    print(duckdb.sql('SELECT key, value, timestamp, "offset" FROM rows ORDER BY "offset" DESC LIMIT 5'))
    print("Rows and bytes of values, by partition:")
    print(duckdb.sql("SELECT partition, count(*) AS keys, sum(strlen(value)) AS bytes FROM rows GROUP BY 1 ORDER BY 1"))

    # The whole history of a key is not in the table, but in the log.
    newest = rows.order('"offset" DESC').limit(1).fetchall()
    for key, *_ in newest:
        print(f"All records of {key}:")
        print(cordwood.get(logs, keys=[key], topics=[topic]).text())


if __name__ == "__main__":
    main(*sys.argv[1:])
