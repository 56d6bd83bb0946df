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

import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Kafka's messages to bytes and back, by the classes that Kafka generates for them and their JSON converters.
 *
 * A line on stdin is {"name", "version", "json"} and is answered with {"hex"}, or {"name", "version", "hex"} and is
 * answered with {"json", "left"} (bytes that follow the message). What Kafka refuses is answered with {"error"}.
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
            answer.put("hex", HexFormat.of().formatHex(written));
        } else {
            Message message = (Message) kind.message().getConstructor().newInstance();
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(asked.get("hex").asText()));
            message.read(new ByteBufferAccessor(bytes), version);
            answer.put("json", kind.write().invoke(null, message, version));
            answer.put("left", bytes.remaining());
        }
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
