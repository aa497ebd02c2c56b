import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.CachedSchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.RestService;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.SchemaReference;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;
import org.apache.flink.avro.shaded.org.apache.avro.Schema;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericRecord;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericRecordBuilder;
import org.apache.flink.formats.avro.registry.confluent.ConfluentRegistryAvroDeserializationSchema;
import org.apache.flink.formats.avro.registry.confluent.ConfluentRegistryAvroSerializationSchema;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Leads Confluent's client of schema registries in Java through what it offers, and Apache Flink's format
 * `avro-confluent`, which brings that client: test_schema_registry_client.py names a broker, its registry, a topic to
 * write and one to read, whose records are printed.
 */
public class RegistryClients {
    private static final String ORDER =
            "{\"type\":\"record\",\"name\":\"Order\",\"fields\":[{\"name\":\"id\",\"type\":\"long\"}]}";
    private static final String WITH_NOTE =
            "{\"type\":\"record\",\"name\":\"Order\",\"fields\":[{\"name\":\"id\",\"type\":\"long\"},"
                    + "{\"name\":\"note\",\"type\":\"string\",\"default\":\"none\"}]}";
    private static final String NEEDS_NOTE = WITH_NOTE.replace(",\"default\":\"none\"", "");
    private static final String BASKET =
            "{\"type\":\"record\",\"name\":\"Basket\",\"fields\":[{\"name\":\"order\",\"type\":\"Order\"}]}";

    private interface Request {
        void send() throws Exception;
    }

    public static void main(String[] words) throws Exception {
        String servers = words[0], registry = words[1];
        write(servers, registry, words[2]);
        read(servers, registry, words[3]);
        lead(registry);
        System.out.println("done");
    }

    private static void write(String servers, String registry, String topic) throws Exception {
        Schema schema = new Schema.Parser().parse(ORDER);
        var format = ConfluentRegistryAvroSerializationSchema.forGeneric(topic + "-value", schema, registry);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (long id = 0; id < 3; id++) {
                byte[] value = format.serialize(new GenericRecordBuilder(schema).set("id", id).build());
                producer.send(new ProducerRecord<>(topic, null, value)).get();
            }
        }
    }

    private static void read(String servers, String registry, String topic) throws Exception {
        Schema schema = new Schema.Parser().parse(WITH_NOTE);
        var format = ConfluentRegistryAvroDeserializationSchema.forGeneric(schema, registry);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("auto.offset.reset", "earliest");
        int left = 3;
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            while (left > 0) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    GenericRecord value = format.deserialize(record.value());
                    System.out.println(value);
                    left--;
                }
            }
        }
    }

    private static void lead(String registry) throws Exception {
        String subject = "java/client-value";
        AvroSchema order = new AvroSchema(ORDER), note = new AvroSchema(WITH_NOTE), bad = new AvroSchema(NEEDS_NOTE);
        CachedSchemaRegistryClient client = new CachedSchemaRegistryClient(registry, 100);
        check(client.testCompatibility(subject, order), "a new subject");
        int id = client.register(subject, order);
        check(client.register(subject, order, true) == id, "the same again, normalized");
        check(client.getId(subject, order) == id, "its id");
        check(client.getVersion(subject, order) == 1, "its version");
        check(client.testCompatibility(subject, note), "a field with a default");
        check(!client.testCompatibility(subject, bad), "a field without one");
        check(!client.testCompatibilityVerbose(subject, bad).isEmpty(), "the reasons");
        check(refused(() -> client.register(subject, bad)) == 409, "it is not compatible");
        int second = client.register(subject, note);
        check(client.getLatestSchemaMetadata(subject).getId() == second, "the last one");
        check(client.getAllVersions(subject).equals(List.of(1, 2)), "both versions");
        check(client.getAllSubjectsById(id).contains(subject), "the subjects of an id");
        check(new CachedSchemaRegistryClient(registry, 100).getSchemaById(id).equals(order), "a schema by its id");

        List<SchemaReference> references = List.of(new SchemaReference("Order", subject, 1));
        AvroSchema basket = new AvroSchema(BASKET, references, Map.of("Order", ORDER), null);
        int third = client.register("basket", basket);
        var found = (AvroSchema) new CachedSchemaRegistryClient(registry, 100).getSchemaById(third);
        check(found.rawSchema().equals(basket.rawSchema()), "one with a reference");
        check(refused(() -> client.deleteSubject(subject)) == 42206, "it is referred to");
        client.deleteSubject("basket");

        client.updateCompatibility(subject, "FULL_TRANSITIVE");
        check(client.getCompatibility(subject).equals("FULL_TRANSITIVE"), "the level of a subject");
        client.deleteCompatibility(subject);
        check(client.getCompatibility(null).equals("BACKWARD"), "the level of the registry");
        client.setMode("READONLY", subject);
        check(refused(() -> client.register(subject, new AvroSchema("\"int\""))) == 42205, "a read-only subject");
        client.deleteMode(subject);

        RestService service = new RestService(registry);
        String json = "{\"type\":\"object\"}", proto = "syntax = \"proto3\";\nmessage M {\n  int32 a = 1;\n}\n";
        int jsonId = service.registerSchema(json, "JSON", List.of(), "java-json").getId();
        check(service.getId(jsonId).getSchemaType().equals("JSON"), "JSON Schema");
        int protoId = service.registerSchema(proto, "PROTOBUF", List.of(), "java-proto").getId();
        check(service.getId(protoId).getSchemaString().equals(proto), "Protobuf");

        check(client.deleteSchemaVersion(subject, "2") == 2, "a version is deleted");
        check(client.deleteSubject(subject).equals(List.of(1)), "a subject is deleted");
        check(refused(() -> client.getLatestSchemaMetadata(subject)) == 40401, "it is gone");
        check(client.getAllSubjects(true).contains(subject), "it can be listed");
    }

    private static int refused(Request request) throws Exception {
        try {
            request.send();
        } catch (RestClientException refusal) {
            return refusal.getErrorCode();
        }
        return 0;
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }
}
