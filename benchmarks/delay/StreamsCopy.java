import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;

/** Kafka Streams: key and value of a topic copied to another, exactly once, until killed. */
public final class StreamsCopy {
    /** Of a dead instance: the shortest that brokers allow by default, as its successor waits for it. Default: 45 s. */
    private static final int SESSION_MS = 6000;

    /** Arguments: bootstrap servers, source, target, application id, state folder, threads, commit interval in ms. */
    public static void main(String[] given) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, given[3]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, given[4]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, given[5]);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, given[6]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), SESSION_MS);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG), SESSION_MS / 3);
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(given[1]).to(given[2]);
        new KafkaStreams(builder.build(), settings).start();
    }
}
