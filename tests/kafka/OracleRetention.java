import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataCache;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogManager;
import org.apache.kafka.server.log.remote.storage.RemoteLogManagerConfig;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadataManager;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** Kafka's own retention of tiered logs: remote, over segments that exist only as metadata, and local. */
final class OracleRetention {
    /** The segments of the question that is answered now. */
    private static RemoteLogMetadataCache cache;
    private static final Map<RemoteLogSegmentId, String> names = new HashMap<>();
    private static final Set<String> stuck = new HashSet<>();
    private static final List<String> tried = new ArrayList<>();

    static void answer(Map<String, Object> q, Map<String, Object> a, TopicIdPartition partition) throws Exception {
        names.clear();
        stuck.clear();
        ((List<?>) q.getOrDefault("stuck", List.of())).forEach(name -> stuck.add((String) name));
        cache = OracleTier.cacheOf(q, names, new ArrayList<>());
        Path root = Files.createTempDirectory("oracle-retention");
        try {
            rounds(q, a, partition, root.toFile());
        } finally {
            remove(root);
        }
    }

    private static void rounds(Map<String, Object> q, Map<String, Object> a, TopicIdPartition partition, File root) throws Exception {
        long end = OracleTier.number(q, "log_end", 0);
        File directory = new File(root, partition.topicPartition().toString());
        directory.mkdir();
        // An empty local log: all of it is in the tier.
        new File(directory, String.format("%020d.log", end)).createNewFile();
        StringBuilder epochs = new StringBuilder();
        Map<?, ?> lineage = (Map<?, ?>) q.get("lineage");
        lineage.forEach((epoch, offset) -> epochs.append(epoch).append(' ').append(offset).append('\n'));
        Files.writeString(directory.toPath().resolve("leader-epoch-checkpoint"), "0\n" + lineage.size() + "\n" + epochs);
        OracleLog.Clock clock = new OracleLog.Clock(OracleTier.number(q, "now", 0));
        Map<String, String> config = Map.of("remote.storage.enable", "true", "cleanup.policy", "delete",
            "retention.ms", String.valueOf(OracleTier.number(q, "retention_ms", -1)),
            "retention.bytes", String.valueOf(OracleTier.number(q, "retention_bytes", -1)));
        UnifiedLog log = UnifiedLog.create(directory, OracleLog.config(config), OracleTier.number(q, "log_start", 0), end,
            new OracleLog.Tasks(clock), new BrokerTopicStats(true), clock, 300_000, new ProducerStateManagerConfig(86_400_000, false), 600_000,
            new LogDirFailureChannel(10), true, Optional.empty(), new ConcurrentHashMap<>(), true, LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
        log.updateHighWatermark(end);
        log.updateHighestOffsetInRemoteStorage(end - 1);
        Properties properties = new Properties();
        properties.put("remote.log.storage.system.enable", "true");
        properties.put("remote.log.storage.manager.class.name", Storage.class.getName());
        properties.put("remote.log.metadata.manager.class.name", Metadata.class.getName());
        RemoteLogManagerConfig of = new RemoteLogManagerConfig(new AbstractConfig(RemoteLogManagerConfig.configDef(), properties));
        List<Object> found = new ArrayList<>();
        try (RemoteLogManager manager = new RemoteLogManager(of, 1, root.getPath(), "cluster", clock, one -> Optional.of(log),
                (one, offset) -> log.maybeIncrementLogStartOffset(offset, LogStartOffsetIncrementReason.SegmentDeletion),
                new BrokerTopicStats(true), new Metrics(), Optional.empty())) {
            Class<?> type = Class.forName(RemoteLogManager.class.getName() + "$RLMExpirationTask");
            Constructor<?> make = type.getDeclaredConstructor(RemoteLogManager.class, TopicIdPartition.class);
            make.setAccessible(true);
            Method round = type.getDeclaredMethod("cleanupExpiredRemoteLogSegments");
            round.setAccessible(true);
            for (long left = OracleTier.number(q, "rounds", 1); left > 0; left--) {
                tried.clear();
                try {
                    round.invoke(make.newInstance(manager, partition));
                } catch (InvocationTargetException e) {
                    if (!(e.getCause() instanceof RemoteStorageException)) throw e;
                }
                found.add(Map.of("tried", List.copyOf(tried), "log_start", log.logStartOffset()));
            }
        } finally {
            log.close();
        }
        a.put("rounds", found);
    }

    /** One round of local retention: UnifiedLog.deleteOldSegments of a tiered log with batches of the given counts and times. */
    static void local(Map<String, Object> q, Map<String, Object> a, TopicIdPartition partition) throws Exception {
        Path root = Files.createTempDirectory("oracle-retention");
        File directory = root.resolve(partition.topicPartition().toString()).toFile();
        directory.mkdir();
        OracleLog.Clock clock = new OracleLog.Clock(OracleTier.number(q, "now", 0));
        Map<String, String> config = new HashMap<>(Map.of("remote.storage.enable", "true", "cleanup.policy", "delete"));
        ((Map<?, ?>) q.get("config")).forEach((key, value) -> config.put((String) key, (String) value));
        UnifiedLog log = UnifiedLog.create(directory, OracleLog.config(config), 0, 0,
            new OracleLog.Tasks(clock), new BrokerTopicStats(true), clock, 300_000, new ProducerStateManagerConfig(86_400_000, false), 600_000,
            new LogDirFailureChannel(10), true, Optional.empty(), new ConcurrentHashMap<>(), true, LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
        try {
            Iterator<?> segments = ((List<?>) q.get("segments")).iterator();
            while (segments.hasNext()) {
                List<?> segment = (List<?>) segments.next();
                SimpleRecord[] records = new SimpleRecord[((Number) segment.get(0)).intValue()];
                Arrays.fill(records, new SimpleRecord(((Number) segment.get(1)).longValue(), new byte[10]));
                if (records.length > 0) log.appendAsLeader(MemoryRecords.withRecords(Compression.NONE, records), 0);
                if (segments.hasNext()) log.roll();
            }
            log.updateHighWatermark(OracleTier.number(q, "high_watermark", 0));
            log.maybeIncrementLogStartOffset(OracleTier.number(q, "log_start", 0), LogStartOffsetIncrementReason.ClientRecordDeletion);
            log.updateHighestOffsetInRemoteStorage(OracleTier.number(q, "copied", -1));
            List<Object> before = new ArrayList<>();
            for (LogSegment one : log.logSegments()) before.add(List.of(one.baseOffset(), one.size(), one.largestTimestamp()));
            log.deleteOldSegments();
            a.put("before", before);
            a.put("after", log.logSegments().stream().map(LogSegment::baseOffset).toList());
        } finally {
            log.close();
            remove(root);
        }
    }

    private static void remove(Path root) throws IOException {
        try (Stream<Path> found = Files.walk(root)) {
            found.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
        }
    }

    /** A store whose deletions fail where the question says so. */
    public static final class Storage implements RemoteStorageManager {
        @Override public void configure(Map<String, ?> configs) { }
        @Override public void close() { }
        @Override public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata one, LogSegmentData data) { throw new UnsupportedOperationException(); }
        @Override public InputStream fetchLogSegment(RemoteLogSegmentMetadata one, int start) { throw new UnsupportedOperationException(); }
        @Override public InputStream fetchLogSegment(RemoteLogSegmentMetadata one, int start, int end) { throw new UnsupportedOperationException(); }
        @Override public InputStream fetchIndex(RemoteLogSegmentMetadata one, IndexType type) { throw new UnsupportedOperationException(); }
        @Override public void deleteLogSegmentData(RemoteLogSegmentMetadata one) throws RemoteStorageException {
            if (stuck.contains(names.get(one.remoteLogSegmentId()))) throw new RemoteStorageException("it stays");
        }
    }

    /** The cache of the question as a metadata manager. */
    public static final class Metadata implements RemoteLogMetadataManager {
        @Override public void configure(Map<String, ?> configs) { }
        @Override public void close() { }
        @Override public CompletableFuture<Void> addRemoteLogSegmentMetadata(RemoteLogSegmentMetadata one) { throw new UnsupportedOperationException(); }
        @Override public CompletableFuture<Void> updateRemoteLogSegmentMetadata(RemoteLogSegmentMetadataUpdate update) throws RemoteStorageException {
            if (update.state() == RemoteLogSegmentState.DELETE_SEGMENT_STARTED) tried.add(names.get(update.remoteLogSegmentId()));
            OracleTier.call(cache, "updateRemoteLogSegmentMetadata", new Class<?>[] {RemoteLogSegmentMetadataUpdate.class}, update);
            return CompletableFuture.completedFuture(null);
        }
        @Override public Optional<RemoteLogSegmentMetadata> remoteLogSegmentMetadata(TopicIdPartition of, int epoch, long offset) { throw new UnsupportedOperationException(); }
        @Override public Optional<Long> highestOffsetForEpoch(TopicIdPartition of, int epoch) { throw new UnsupportedOperationException(); }
        @Override public CompletableFuture<Void> putRemotePartitionDeleteMetadata(RemotePartitionDeleteMetadata one) { throw new UnsupportedOperationException(); }
        @SuppressWarnings("unchecked")
        @Override public Iterator<RemoteLogSegmentMetadata> listRemoteLogSegments(TopicIdPartition of) {
            return (Iterator<RemoteLogSegmentMetadata>) OracleTier.call(cache, "listAllRemoteLogSegments", new Class<?>[0]);
        }
        @SuppressWarnings("unchecked")
        @Override public Iterator<RemoteLogSegmentMetadata> listRemoteLogSegments(TopicIdPartition of, int epoch) {
            return (Iterator<RemoteLogSegmentMetadata>) OracleTier.call(cache, "listRemoteLogSegments", new Class<?>[] {int.class}, epoch);
        }
        @Override public void onPartitionLeadershipChanges(Set<TopicIdPartition> leaders, Set<TopicIdPartition> followers) { }
        @Override public void onStopPartitions(Set<TopicIdPartition> partitions) { }
        @Override public long remoteLogSize(TopicIdPartition of, int epoch) { throw new UnsupportedOperationException(); }
    }
}
