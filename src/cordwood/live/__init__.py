"""Live logs: append, read, roll, flush, retain and recover, with Kafka's calls and Kafka's errors.

log               one partition's log, as a broker's UnifiedLog
local_log         its files: rolls, reads, flushes and removes segments; independent of producers and leaders
loading           loads a partition's directory as a log, after a clean shutdown or a crash
segments          the segments of a log, in order; segment is a single one, indexes has its three indexes
appending         one append: checks its batches and gives them their offsets
validation        a leader's checks of a producer's batches, and their new offsets
producer_state    sequences, epochs and transactions of producers, and the files of their snapshots
reading           the offsets between which readers read
partition_files   which leader wrote which offsets; the id of the topic
environment       what a log is given: its configs, the objects that all logs of a manager share
directories       log directories, and their failures
scheduler         tasks for later

log_manager       the logs of many directories; its parts are named at its top
cleaner_manager   chooses the log to clean next; log_cleaner has the threads, clean a single clean
status            the state and health of live logs, as values of report
"""
