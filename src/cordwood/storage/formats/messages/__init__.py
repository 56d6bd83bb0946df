"""Kafka's messages: what the records of its internal topics are made of.

    schema      what a message is: fields by version, read from short tables
    codec       bytes → fields, for one message
    program     the same for many messages at once: into columns, by a kernel

One module per topic has its table: `consumer_offsets`, `transaction_state`, `share_group_state`, `metadata_records`,
`remote_log_metadata`; `control_records` and `consumer_protocol` have what is inside control batches and consumers'
subscriptions. `topics` knows which topic is framed how, and decodes its records.
"""
