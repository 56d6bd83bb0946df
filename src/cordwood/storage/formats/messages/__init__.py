"""Kafka's messages: the keys and values of records in its internal topics.

    schema      the fields of a message by version, read from short tables
    codec       bytes → fields, for one message
    program     the same for many messages at once: into columns, by a kernel

One module per topic has its table: `consumer_offsets`, `transaction_state`, `share_group_state`, `metadata_records`,
`remote_log_metadata`; `control_records` and `consumer_protocol` have the tables of control batches and consumers'
subscriptions. `topics` defines the framing of each topic, and decodes its records.
"""
