import java.util.Map;
import java.util.UUID;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Commits one transaction and aborts the next, again and again without a pause: servers, topic, rounds. */
public class TransactionRounds {
    public static void main(String[] arguments) {
        String topic = arguments[1];
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", arguments[0],
            "transactional.id", UUID.randomUUID().toString(),
            "key.serializer", StringSerializer.class,
            "value.serializer", StringSerializer.class);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            for (int round = 0; round < Integer.parseInt(arguments[2]); round++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "committed " + round));
                producer.commitTransaction();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "aborted " + round));
                producer.abortTransaction();
            }
        }
    }
}
