import java.io.File;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/** How fast Kafka's log appends, reads and recovers, on one thread, without a broker around it. */
final class OracleBench {
    private OracleBench() {}

    /** Each part runs once to let the compiler work, then is timed. */
    static int run(File root, long bytes, int batchBytes, int recordBytes, int singles, int partitions, Consumer<Map<String, Object>> print) throws Exception {
        for (boolean counts : new boolean[] {false, true}) {
            File folder = new File(root, counts ? "timed" : "warm");
            Files.createDirectories(folder.toPath());
            double append, single, read, recover, load;
            long written;
            TopicPartition partition = new TopicPartition("bench", 0);
            try (OracleLog logs = new OracleLog(folder, System.currentTimeMillis())) {
                UnifiedLog log = logs.open(partition, Map.of(), true, 0, 0);
                byte[] batch = batch(Math.max(1, batchBytes / recordBytes), recordBytes);
                long began = System.nanoTime();
                for (written = 0; written < bytes; written += batch.length) append(log, batch);
                append = written / seconds(began);
                log.updateHighWatermark(log.logEndOffset());
                began = System.nanoTime();
                long all = read(log);
                read = all / seconds(began);
                log.closeHandlers();
                logs.logs.clear();
                began = System.nanoTime();
                logs.open(partition, Map.of(), false, 0, 0);
                recover = written / seconds(began);
                UnifiedLog other = logs.open(new TopicPartition("bench", 1), Map.of(), true, 0, 0);
                byte[] one = batch(1, recordBytes);
                began = System.nanoTime();
                for (int i = 0; i < singles; i++) append(other, one);
                single = singles / seconds(began);
            }
            File many = new File(folder, "many");
            try (OracleLog logs = new OracleLog(many, System.currentTimeMillis())) {
                byte[] one = batch(1, 100);
                for (int i = 0; i < partitions; i++) append(logs.open(new TopicPartition("many", i), Map.of(), true, 0, 0), one);
                for (UnifiedLog log : logs.logs.values()) log.flush(true);
            }
            try (OracleLog logs = new OracleLog(many, System.currentTimeMillis())) {
                long began = System.nanoTime();
                for (int i = 0; i < partitions; i++) logs.open(new TopicPartition("many", i), Map.of(), true, 1, 0);
                load = seconds(began);
            }
            if (counts)
                print.accept(Oracle.map("type", "bench-log", "bytes", written, "append_bytes_per_second", append, "single_appends_per_second", single,
                    "read_bytes_per_second", read, "recover_bytes_per_second", recover, "load_seconds", load, "partitions", partitions));
        }
        return 0;
    }

    private static byte[] batch(int records, int recordBytes) {
        Random random = new Random(1);
        SimpleRecord[] made = new SimpleRecord[records];
        for (int i = 0; i < records; i++) {
            byte[] value = new byte[Math.max(1, recordBytes - 10)];
            random.nextBytes(value);
            made[i] = new SimpleRecord(System.currentTimeMillis(), String.format("k%09d", i).getBytes(), value);
        }
        ByteBuffer buffer = MemoryRecords.withRecords(RecordBatch.MAGIC_VALUE_V2, 0, Compression.NONE, made).buffer();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }

    /** A copy each time, as from a socket: an append changes its buffer. */
    private static void append(UnifiedLog log, byte[] batch) throws Exception {
        log.appendAsLeader(MemoryRecords.readableRecords(ByteBuffer.wrap(batch.clone())), 0, AppendOrigin.CLIENT);
    }

    /** Reads all of it into memory, a megabyte at a time. */
    private static long read(UnifiedLog log) throws Exception {
        AtomicLong next = new AtomicLong(log.logStartOffset());
        long all = 0;
        ByteBuffer buffer = ByteBuffer.allocateDirect(1 << 21);
        while (next.get() < log.logEndOffset()) {
            var found = log.read(next.get(), 1 << 20, FetchIsolation.HIGH_WATERMARK, true).records;
            buffer.clear();
            ((FileRecords) found).readInto(buffer, 0);
            all += buffer.remaining();
            for (RecordBatch batch : MemoryRecords.readableRecords(buffer).batches()) next.set(batch.nextOffset());
        }
        return all;
    }

    private static double seconds(long began) { return (System.nanoTime() - began) / 1e9; }
}
