import java.io.BufferedReader;
import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Consumer;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.serialization.BytesApiMessageSerde;

/**
 * Kafka's messages to bytes and back, by the classes that Kafka generates for them and their JSON converters.
 *
 * A line on stdin is {"name", "version", "json"} and is answered with {"hex"}, or {"name", "version", "hex"} and is
 * answered with {"json", "left"} (bytes that follow the message). With "framed": true, "hex" is the message as it is in
 * its topic: a coordinator's key or value, or a record of the metadata log or of __remote_log_metadata. What Kafka
 * refuses is answered with {"error"}.
 */
final class OracleMessages {
    private static final String[] PACKAGES = {
        "org.apache.kafka.coordinator.group.generated.",
        "org.apache.kafka.coordinator.transaction.generated.",
        "org.apache.kafka.coordinator.share.generated.",
        "org.apache.kafka.common.metadata.",
        "org.apache.kafka.server.log.remote.metadata.storage.generated.",
        "org.apache.kafka.common.message.",
    };

    private record Kind(Class<?> message, Method read, Method write) { }

    private static final Map<String, Kind> KINDS = new HashMap<>();

    static int run(BufferedReader in, Consumer<Map<String, Object>> print) throws Exception {
        for (String line; (line = in.readLine()) != null; ) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer(Oracle.JSON.readTree(line), answer);
            } catch (InvocationTargetException e) {
                answer.put("error", String.valueOf(e.getCause()));
            } catch (RuntimeException | Error e) {
                answer.put("error", String.valueOf(e));
            }
            print.accept(answer);
        }
        return 0;
    }

    private static void answer(JsonNode asked, Map<String, Object> answer) throws Exception {
        Kind kind = kind(asked.get("name").asText());
        short version = (short) asked.get("version").asInt();
        if (asked.has("json")) {
            Message message = (Message) kind.read().invoke(null, asked.get("json"), version);
            ByteBuffer bytes = MessageUtil.toByteBufferAccessor(message, version).buffer();
            byte[] written = new byte[bytes.remaining()];
            bytes.get(written);
            answer.put("hex", HexFormat.of().formatHex(asked.path("framed").asBoolean() ? framed(message, version) : written));
        } else {
            Message message = (Message) kind.message().getConstructor().newInstance();
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(asked.get("hex").asText()));
            message.read(new ByteBufferAccessor(bytes), version);
            answer.put("json", kind.write().invoke(null, message, version));
            answer.put("left", bytes.remaining());
        }
    }

    private static byte[] framed(Message message, short version) {
        String place = message.getClass().getPackageName();
        ApiMessage api = (ApiMessage) message;
        if (place.startsWith("org.apache.kafka.coordinator")) {
            return message.getClass().getSimpleName().endsWith("Key")
                ? MessageUtil.toCoordinatorTypePrefixedBytes(api) : MessageUtil.toVersionPrefixedBytes(version, message);
        }
        ApiMessageAndVersion both = new ApiMessageAndVersion(api, version);
        if (place.startsWith("org.apache.kafka.common.metadata")) {
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer bytes = ByteBuffer.allocate(MetadataRecordSerde.INSTANCE.recordSize(both, cache));
            MetadataRecordSerde.INSTANCE.write(both, cache, new ByteBufferAccessor(bytes));
            return bytes.array();
        }
        return new BytesApiMessageSerde() {
            @Override
            public ApiMessage apiMessageFor(short apiKey) { throw new IllegalStateException("only written here"); }
        }.serialize(both);
    }

    private static Kind kind(String name) throws IOException, NoSuchMethodException {
        if (!KINDS.containsKey(name)) {
            for (String place : PACKAGES) {
                try {
                    Class<?> message = Class.forName(place + name);
                    Class<?> converter = Class.forName(place + name + "JsonConverter");
                    KINDS.put(name, new Kind(message, converter.getMethod("read", JsonNode.class, short.class),
                        converter.getMethod("write", message, short.class)));
                    break;
                } catch (ClassNotFoundException e) {
                    continue;
                }
            }
        }
        if (!KINDS.containsKey(name)) throw new IllegalArgumentException("Kafka has no message " + name);
        return KINDS.get(name);
    }
}
