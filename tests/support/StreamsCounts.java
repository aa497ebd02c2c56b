import java.io.FileReader;
import java.io.Reader;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/** Counts the equal values of the topic "words" in the topic "counts", until it is told to stop: file of settings. */
public class StreamsCounts {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (Reader file = new FileReader(arguments[0])) {
            settings.load(file);
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("words", Consumed.with(Serdes.ByteArray(), Serdes.String()))
            .groupBy((key, word) -> word, Grouped.with("by-word", Serdes.String(), Serdes.String()))
            .count(Materialized.as("store"))
            .toStream()
            .to("counts", Produced.with(Serdes.String(), Serdes.Long()));
        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        streams.setStateListener((now, before) -> {
            System.out.println(before + " -> " + now);
            if (now == KafkaStreams.State.ERROR) {
                Runtime.getRuntime().halt(1);
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
