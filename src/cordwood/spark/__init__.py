"""Running on Apache Spark. Needs the extra `cordwood[spark]`; nothing below this layer imports it."""
