import java.io.BufferedReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.Consumer;

import com.fasterxml.jackson.core.type.TypeReference;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataCache;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogManager;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;

/**
 * Kafka's own rules of tiered storage, asked by JSON lines: one question per line on standard input, one answer per line.
 * Nothing is decided here; each answer is that of a class of kafka-storage, called by reflection where it is not public.
 *
 * <pre>
 * {"do":"cache","events":[{"add":"A","start":0,"end":99,"epochs":{"0":0}},{"set":"A","state":1}],
 *  "lookup":[[0,50]],"highest":[0],"list":[0],"next_transactions":[[0,50]]}      RemoteLogMetadataCache
 *     add: a record of apiKey 0 ("txn_empty":true, "state":0); set: one of apiKey 1; state 0 to 3 as in the log.
 *     "initialized":false asks a cache that still reads the metadata topic. Ids are your own words.
 * {"do":"within","end":150,"epochs":{"0":90,"2":120},"lineage":{"0":0,"2":120},"log_end":300}
 *                                                       RemoteLogManager.isRemoteSegmentWithinLeaderEpochs
 * {"do":"retention","events":[…],"lineage":{"0":0},"log_start":0,"log_end":300,"retention_ms":-1,"retention_bytes":-1,
 *  "now":1,"rounds":1,"stuck":["A"]}                  RLMExpirationTask; events as above, with "size" and "time"; the
 *     deletion of stuck segments fails. Answers the segments whose deletion is tried in each round, and the log start.
 * {"do":"local_retention","segments":[[10,5]],"config":{},"log_start":0,"high_watermark":10,"copied":9,"now":9}
 *                                                       UnifiedLog.deleteOldSegments; count and time of records by segment
 * {"do":"transition","from":0,"to":1}                   RemoteLogSegmentState.isValidTransition; "from":null
 * {"do":"metadata_partition","topic_id":"…","partition":0,"partitions":50}      RemoteLogMetadataTopicPartitioner
 * {"do":"decode","hex":"01…"}                           RemoteLogMetadataSerde: a record's value as text
 * </pre>
 */
final class OracleTier {
    static int run(BufferedReader in, Consumer<Map<String, Object>> print) throws Exception {
        for (String line; (line = in.readLine()) != null; ) {
            Map<String, Object> question = Oracle.JSON.readValue(line, new TypeReference<Map<String, Object>>() {});
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer(question, answer);
            } catch (Throwable e) {
                Throwable cause = e instanceof InvocationTargetException ? e.getCause() : e;
                answer.put("error", cause.getClass().getSimpleName());
                answer.put("message", cause.getMessage());
            }
            print.accept(answer);
        }
        return 0;
    }

    private static void answer(Map<String, Object> q, Map<String, Object> a) throws Exception {
        switch ((String) q.get("do")) {
            case "cache" -> cache(q, a);
            case "within" -> {
                Method rule = hidden(RemoteLogManager.class, "isRemoteSegmentWithinLeaderEpochs", RemoteLogSegmentMetadata.class, long.class, NavigableMap.class);
                a.put("within", rule.invoke(null, segment("s", q), number(q, "log_end", Long.MAX_VALUE), populated(q)));
            }
            case "transition" -> a.put("valid", RemoteLogSegmentState.isValidTransition(
                q.get("from") == null ? null : state(q, "from"), state(q, "to")));
            case "metadata_partition" -> a.put("metadata_partition", new RemoteLogMetadataTopicPartitioner((int) number(q, "partitions", 50))
                .metadataPartition(partition(q)));
            case "retention" -> OracleRetention.answer(q, a, partition(q));
            case "local_retention" -> OracleRetention.local(q, a, partition(q));
            case "decode" -> a.put("text", new RemoteLogMetadataSerde().deserialize(HexFormat.of().parseHex((String) q.get("hex"))).toString());
            default -> throw new IllegalArgumentException("unknown question " + q.get("do"));
        }
    }

    /** The lineage without epochs that have no records, as Kafka gives it to the rule. */
    private static NavigableMap<?, ?> populated(Map<String, Object> q) throws Exception {
        return (NavigableMap<?, ?>) hidden(RemoteLogManager.class, "buildFilteredLeaderEpochMap", NavigableMap.class).invoke(null, epochs(q.get("lineage")));
    }

    private static void cache(Map<String, Object> q, Map<String, Object> a) throws Exception {
        Map<RemoteLogSegmentId, String> names = new HashMap<>();
        List<Object> errors = new ArrayList<>();
        RemoteLogMetadataCache cache = cacheOf(q, names, errors);
        if (!errors.isEmpty()) a.put("errors", errors);
        for (String what : List.of("lookup", "next_transactions")) {
            if (q.get(what) == null) continue;
            List<Object> found = new ArrayList<>();
            for (Object each : (List<?>) q.get(what)) {
                List<?> pair = (List<?>) each;
                Optional<?> segment = (Optional<?>) hidden(RemoteLogMetadataCache.class, what.equals("lookup") ? "remoteLogSegmentMetadata" : "nextSegmentWithTxnIndex",
                    int.class, long.class).invoke(cache, ((Number) pair.get(0)).intValue(), ((Number) pair.get(1)).longValue());
                found.add(segment.map(s -> names.get(((RemoteLogSegmentMetadata) s).remoteLogSegmentId())).orElse(null));
            }
            a.put(what, found);
        }
        for (String what : List.of("highest", "list")) {
            if (q.get(what) == null) continue;
            List<Object> found = new ArrayList<>();
            for (Object each : (List<?>) q.get(what)) {
                int epoch = ((Number) each).intValue();
                if (what.equals("highest")) {
                    found.add(((Optional<?>) hidden(RemoteLogMetadataCache.class, "highestOffsetForEpoch", int.class).invoke(cache, epoch)).orElse(null));
                } else {
                    List<Object> row = new ArrayList<>();
                    Iterator<?> segments = (Iterator<?>) hidden(RemoteLogMetadataCache.class, "listRemoteLogSegments", int.class).invoke(cache, epoch);
                    segments.forEachRemaining(s -> row.add(List.of(names.get(((RemoteLogSegmentMetadata) s).remoteLogSegmentId()), (int) ((RemoteLogSegmentMetadata) s).state().id())));
                    found.add(row);
                }
            }
            a.put(what, found);
        }
    }

    /** The cache after the events of a question. */
    static RemoteLogMetadataCache cacheOf(Map<String, Object> q, Map<RemoteLogSegmentId, String> names, List<Object> errors) throws Exception {
        RemoteLogMetadataCache cache = new RemoteLogMetadataCache();
        if (!Boolean.FALSE.equals(q.get("initialized"))) hidden(RemoteLogMetadataCache.class, "markInitialized").invoke(cache);
        for (Object each : (List<?>) q.get("events")) {
            @SuppressWarnings("unchecked") Map<String, Object> event = (Map<String, Object>) each;
            try {
                if (event.containsKey("add")) {
                    RemoteLogSegmentMetadata segment = segment((String) event.get("add"), event);
                    if (event.get("state") != null) segment = segment.createWithUpdates(new RemoteLogSegmentMetadataUpdate(
                        segment.remoteLogSegmentId(), 0, Optional.empty(), state(event, "state"), 1));
                    names.put(segment.remoteLogSegmentId(), (String) event.get("add"));
                    hidden(RemoteLogMetadataCache.class, "addCopyInProgressSegment", RemoteLogSegmentMetadata.class).invoke(cache, segment);
                } else {
                    hidden(RemoteLogMetadataCache.class, "updateRemoteLogSegmentMetadata", RemoteLogSegmentMetadataUpdate.class).invoke(cache,
                        new RemoteLogSegmentMetadataUpdate(id((String) event.get("set")), 0, Optional.empty(), state(event, "state"), 1));
                }
            } catch (InvocationTargetException e) {
                errors.add(List.of(event, e.getCause().getClass().getSimpleName()));
            }
        }
        return cache;
    }

    // ---------------------------------------------------------------- fields of a question

    /** Call a method that is not public; its errors are unexpected. */
    static Object call(Object on, String name, Class<?>[] types, Object... values) {
        try {
            return hidden(on.getClass(), name, types).invoke(on, values);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    private static Method hidden(Class<?> of, String name, Class<?>... types) throws NoSuchMethodException {
        Method method = of.getDeclaredMethod(name, types);
        method.setAccessible(true);
        return method;
    }

    private static TopicIdPartition partition(Map<String, Object> q) {
        Uuid id = q.get("topic_id") == null ? new Uuid(1, 1) : Uuid.fromString((String) q.get("topic_id"));
        return new TopicIdPartition(id, (int) number(q, "partition", 0), (String) q.getOrDefault("topic", "t"));
    }

    private static RemoteLogSegmentId id(String word) {
        return new RemoteLogSegmentId(partition(Map.of()), new Uuid(7, word.hashCode()));
    }

    private static RemoteLogSegmentMetadata segment(String word, Map<String, Object> q) {
        return new RemoteLogSegmentMetadata(id(word), number(q, "start", 0), number(q, "end", 0), number(q, "time", -1), 1, 0, (int) number(q, "size", 1),
            new TreeMap<>(epochs(q.get("epochs"))), Boolean.TRUE.equals(q.getOrDefault("txn_empty", true)));
    }

    private static NavigableMap<Integer, Long> epochs(Object given) {
        NavigableMap<Integer, Long> result = new TreeMap<>();
        ((Map<?, ?>) given).forEach((epoch, offset) -> result.put(Integer.valueOf((String) epoch), ((Number) offset).longValue()));
        return result;
    }

    private static RemoteLogSegmentState state(Map<String, Object> q, String name) { return RemoteLogSegmentState.forId((byte) number(q, name, 0)); }
    static long number(Map<String, Object> q, String name, long otherwise) {
        return q.get(name) == null ? otherwise : ((Number) q.get(name)).longValue();
    }
}
