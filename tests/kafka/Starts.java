import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.*;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.zip.CRC32;
import kafka.log.LogManager;
import kafka.server.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.*;

/**
 * Starts a real broker on one node after the other, in one process, and reports what it does: a start in a process of
 * its own takes four seconds, here one.
 *
 * Standard input has a JSON line per node, standard output an answer per node:
 *
 * <pre>
 * {"dirs":["/n/a","/n/b"],"settings":{"node.id":"1",…}}
 * {"starts":true,"why":"…","log":["WARN …"],"offline":["/n/b"],"cleaner":true,
 *  "served":{"orders-0":{"start":0,"end":120,"records":120,"crc":123,"error":"…"}},"retained":{"orders-0":[30,120]}}
 * </pre>
 *
 * `served` is what clients get: Admin's offsets, and the records of a consumer that reads from the start to the end;
 * `retained` the offsets behind the first retention run, where they differ; `cleaner` whether all cleaner threads live.
 */
public class Starts {
    static final ObjectMapper JSON = new ObjectMapper();
    static final long START_MS = 60_000, CLIENT_MS = 30_000, LEADER_MS = 15_000, OFFLINE_MS = 3_000, READ_MS = 15_000, END_MS = 5_000;

    /** What ends a thread that asked for the end of the process. */
    static class Ended extends Error {
        Ended(String message) { super(message); }
    }

    /**
     * What belongs to one start. A broker that failed may leave threads behind; each thread knows the start that it
     * comes from, so that its log and its end are nobody else's.
     */
    static class Start {
        final CompletableFuture<String> ended = new CompletableFuture<>();
        final CompletableFuture<Void> ready = new CompletableFuture<>();
        final ByteArrayOutputStream log = new ByteArrayOutputStream();
        volatile KafkaRaftServer server;
    }

    static final InheritableThreadLocal<Start> current = new InheritableThreadLocal<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        PrintStream log = new PrintStream(new OutputStream() {
            @Override public void write(int b) { write(new byte[] {(byte) b}, 0, 1); }
            @Override public void write(byte[] bytes, int from, int count) {
                Start start = current.get();
                if (start != null) start.log.write(bytes, from, count);
            }
        }, true, StandardCharsets.UTF_8);
        System.setOut(log);
        System.setErr(log);
        Exit.setExitProcedure((status, message) -> end("exit", status, message));
        Exit.setHaltProcedure((status, message) -> end("halt", status, message));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            Map<String, Object> asked = JSON.readValue(line, new TypeReference<>() { });
            // In a thread of its own: what the clients log belongs to this start, too.
            CompletableFuture<Map<String, Object>> answer = new CompletableFuture<>();
            Thread thread = new Thread(() -> {
                try {
                    answer.complete(start(asked));
                } catch (Throwable e) {
                    answer.completeExceptionally(e);
                }
            }, "start");
            thread.start();
            out.println(JSON.writeValueAsString(answer.get()));
        }
        Runtime.getRuntime().halt(0);
    }

    static void end(String how, int status, String message) {
        Start start = current.get();
        if (start != null) start.ended.complete(how + " " + status + (message == null ? "" : ": " + message));
        throw new Ended(how);
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> start(Map<String, Object> asked) throws Exception {
        Start start = new Start();
        current.set(start);
        int port = freePort(), controllerPort = freePort();
        List<String> dirs = (List<String>) asked.get("dirs");
        Properties properties = new Properties();
        properties.putAll(Map.of(
            "process.roles", "broker,controller", "node.id", "1", "log.dirs", String.join(",", dirs),
            "metadata.log.dir", dirs.get(0), "controller.listener.names", "CONTROLLER",
            "listeners", "PLAINTEXT://127.0.0.1:" + port + ",CONTROLLER://127.0.0.1:" + controllerPort,
            "listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters", "1@127.0.0.1:" + controllerPort));
        properties.putAll((Map<String, String>) asked.get("settings"));
        daemon("starting", () -> {
            try {
                start.server = new KafkaRaftServer(KafkaConfig.fromProps(properties, false), Time.SYSTEM);
                start.server.startup();
                start.ready.complete(null);
            } catch (Throwable failure) {
                start.ended.complete(failure instanceof Ended ? "" : failure.toString());
            }
        });
        try {
            CompletableFuture.anyOf(start.ended, start.ready).get(START_MS, TimeUnit.MILLISECONDS);
        } catch (TimeoutException e) {
            start.ended.complete("not ready after " + START_MS / 1000 + " s");
        }
        Map<String, Object> answer = new LinkedHashMap<>();
        if (!start.ended.isDone()) observe(broker(start.server), "127.0.0.1:" + port, answer);
        if (!start.ended.isDone() && answer.get("offline") instanceof List<?> offline && offline.contains(dirs.get(0))) {
            // A node without its metadata log ends, a moment later.
            try { start.ended.get(END_MS, TimeUnit.MILLISECONDS); } catch (TimeoutException e) { }
        }
        answer.put("starts", !start.ended.isDone());
        answer.put("ends", start.ended.getNow(""));
        if (start.server != null) daemon("stopping", () -> start.server.shutdown()).join(END_MS);
        answer.put("log", start.log.toString(StandardCharsets.UTF_8).lines().filter(Starts::tells).toList());
        return answer;
    }

    static Thread daemon(String name, Runnable task) {
        Thread thread = new Thread(() -> {
            try { task.run(); } catch (Throwable ignored) { }
        }, name);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    static boolean tells(String line) {
        return line.contains(" WARN ") || line.contains(" ERROR ") || line.contains("Exception") || line.contains("stray")
            || line.startsWith("Caused by");
    }

    static BrokerServer broker(KafkaRaftServer server) throws Exception {
        var field = KafkaRaftServer.class.getDeclaredField("broker");
        field.setAccessible(true);
        return (BrokerServer) ((scala.Option<?>) field.get(server)).get();
    }

    static int freePort() throws IOException {
        try (ServerSocket socket = new ServerSocket(0)) { return socket.getLocalPort(); }
    }

    // ---------------------------------------------------------------- a started broker

    static void observe(BrokerServer broker, String address, Map<String, Object> answer) throws Exception {
        Map<String, Object> client = Map.of("bootstrap.servers", address, "default.api.timeout.ms", (int) CLIENT_MS,
            "request.timeout.ms", (int) CLIENT_MS - 1000, "retry.backoff.ms", 20, "retry.backoff.max.ms", 100);
        try (Admin admin = Admin.create(client)) {
            List<String> offline = new ArrayList<>();
            for (var dir : admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1).entrySet())
                if (dir.getValue().error() != null) offline.add(dir.getKey());
            answer.put("offline", offline.stream().sorted().toList());
            Map<TopicPartition, Boolean> partitions = partitions(admin, offline.isEmpty() ? LEADER_MS : OFFLINE_MS);
            List<TopicPartition> led = partitions.keySet().stream().filter(partitions::get).toList();
            Map<TopicPartition, long[]> offsets = offsets(admin, led);
            answer.put("served", served(client, partitions.keySet(), offsets));
            LogManager logs = broker.logManager();
            answer.put("cleaner", logs.cleaner() == null || logs.cleaner().deadThreadCount() == 0);
            var retention = LogManager.class.getDeclaredMethod("cleanupLogs");
            retention.setAccessible(true);
            retention.invoke(logs);
            Map<String, Object> retained = new TreeMap<>();
            offsets(admin, led).forEach((partition, after) -> {
                if (!Arrays.equals(after, offsets.get(partition))) retained.put(partition.toString(), after);
            });
            answer.put("retained", retained);
        } catch (ExecutionException e) {
            answer.put("unreachable", e.getCause().toString());
        }
    }

    /** The partitions of all topics, and whether they have a leader: they get one a moment after the start, or none. */
    static Map<TopicPartition, Boolean> partitions(Admin admin, long ms) throws Exception {
        Map<TopicPartition, Boolean> all = new TreeMap<>(Comparator.comparing(TopicPartition::toString));
        for (long until = System.nanoTime() + ms * 1_000_000; ; Thread.sleep(100)) {
            Set<String> names = admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get();
            admin.describeTopics(names).allTopicNames().get().forEach((name, topic) -> topic.partitions().forEach(each ->
                all.put(new TopicPartition(name, each.partition()), each.leader() != null && !each.leader().isEmpty())));
            if (!all.containsValue(false) || System.nanoTime() > until) return all;
        }
    }

    /** First and next offset of the partitions that have a leader; others are missing. */
    static Map<TopicPartition, long[]> offsets(Admin admin, List<TopicPartition> partitions) throws Exception {
        Map<TopicPartition, OffsetSpec> first = new HashMap<>(), next = new HashMap<>();
        partitions.forEach(each -> { first.put(each, OffsetSpec.earliest()); next.put(each, OffsetSpec.latest()); });
        var starts = admin.listOffsets(first);
        var ends = admin.listOffsets(next);
        Map<TopicPartition, long[]> found = new HashMap<>();
        for (TopicPartition each : partitions) {
            try {
                found.put(each, new long[] {
                    starts.partitionResult(each).get().offset(), ends.partitionResult(each).get().offset()});
            } catch (ExecutionException e) {
                // No leader: its directory is offline.
            }
        }
        return found;
    }

    static Map<String, Object> served(Map<String, Object> client, Collection<TopicPartition> partitions,
                                      Map<TopicPartition, long[]> offsets) {
        Map<String, Object> served = new TreeMap<>();
        Map<String, Object> settings = new HashMap<>(client);
        settings.putAll(Map.of("auto.offset.reset", "none", "fetch.max.wait.ms", 50, "fetch.min.bytes", 1));
        var bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            for (TopicPartition partition : partitions) {
                long[] range = offsets.get(partition);
                served.put(partition.toString(), range == null ? Map.of("error", "no leader") : read(consumer, partition, range));
            }
        }
        return served;
    }

    /** Read a partition from its start to its end, or to where the consumer comes no further. */
    static Map<String, Object> read(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, long[] range) {
        consumer.assign(List.of(partition));
        consumer.seek(partition, range[0]);
        CRC32 sum = new CRC32();
        int count = 0;
        String error = null;
        long position = range[0];
        for (long last = System.nanoTime(); error == null && position < range[1]; ) {
            try {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    sum.update((record.offset() + " " + record.timestamp() + " " + Arrays.toString(record.key()) + " "
                        + Arrays.toString(record.value())).getBytes(StandardCharsets.UTF_8));
                    count++;
                }
                long next = consumer.position(partition);
                if (next != position) last = System.nanoTime();
                else if (System.nanoTime() - last > READ_MS * 1_000_000) error = "no further";
                position = next;
            } catch (KafkaException | IllegalStateException e) {
                error = e.toString();
            }
        }
        Map<String, Object> read = new LinkedHashMap<>(Map.of(
            "start", range[0], "end", range[1], "records", count, "crc", sum.getValue()));
        if (error != null) read.putAll(Map.of("error", error, "at", position));
        return read;
    }
}
