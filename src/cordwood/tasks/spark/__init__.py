"""Run on Apache Spark. Requires the extra `cordwood[spark]`; no lower layer imports this package."""
