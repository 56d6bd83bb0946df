"""Live logs: appended to, read, rolled, flushed, retained and recovered, with Kafka's calls and Kafka's errors.

log               one partition's log: what a broker's UnifiedLog does
local_log         its files: rolled, read, flushed, removed; knows no producers and leaders
loading           a partition's directory becomes a log, after a clean shutdown or a crash
segments          the segments of a log, in order; segment is one of them, indexes has its three indexes
appending         one append: its batches before and after they get their offsets
validation        a leader checks a producer's batches and assigns their offsets
producer_state    sequences, epochs and transactions of producers; snapshots has its files
leader_epochs     which leader wrote which offsets
lookup            a record by its time
log_config        a topic's configs as plain values
failures          log directories that failed
scheduler         tasks for later
"""
