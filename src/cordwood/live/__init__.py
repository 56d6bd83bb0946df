"""Live logs: append, read, roll, flush, retain and recover, with Kafka's calls and Kafka's errors.

log               one partition's log, as a broker's UnifiedLog
local_log         its files: rolls, reads, flushes and removes segments; independent of producers and leaders
loading           loads a partition's directory as a log, after a clean shutdown or a crash
segments          the segments of a log, in order; segment is a single one, indexes has its three indexes
appending         one append: checks its batches and gives them their offsets
validation        a leader's checks of a producer's batches, and their new offsets
producer_state    sequences, epochs and transactions of producers; snapshots has their files
leader_epochs     which leader wrote which offsets
lookup            finds a record by its time
log_config        a topic's configs as plain values
failures          log directories that failed
scheduler         tasks for later
"""
