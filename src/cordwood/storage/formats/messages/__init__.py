"""Kafka's messages: the keys and values of records in its internal topics.

schema                  the fields of a message by version, read from short tables; bytes → fields
coordinator_records     the tables of the coordinators' topics: groups, transactions, share groups
metadata_records        the tables of the metadata log, of KRaft's control records, and of remote storage
topics                  the framing of each topic; decodes its records
"""
