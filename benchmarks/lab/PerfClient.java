// Loads on a broker with Apache Kafka's own clients, in one JVM that stays warm. Apache Kafka's performance tools print
// whole milliseconds, fill each record anew, and run one producer; these loops record microseconds in a histogram.
//
// Each line of standard input is a command and its options (name=value), separated by tabs. The answers:
//   "== ready"            clients are connected; the load starts at the next line of input
//   "== result NAME=VALUE ..."   figures of the load; the clients are still connected
//   "== done" or "== failed: ..."

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.HdrHistogram.Histogram;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.ByteBufferDeserializer;

public class PerfClient {
    static final long TICK_NS = 1_000_000;
    static final long UNTIMED = 0;
    static final long READY_NS = 120_000_000_000L;
    static final long SETTLED_NS = 2_000_000_000L;
    static final long DRAIN_NS = 60_000_000_000L;
    static final long LONGEST_NS = 600_000_000_000L;
    static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));

    public static void main(String[] arguments) throws Exception {
        for (String line = INPUT.readLine(); line != null; line = INPUT.readLine()) {
            String[] words = line.split("\t");
            Options options = new Options(words);
            try {
                switch (words[0]) {
                    case "load" -> load(options);
                    case "read" -> read(options);
                    default -> throw new IllegalArgumentException("unknown command " + words[0]);
                }
                say("done");
            } catch (Exception | AssertionError error) {
                say("failed: " + error);
            }
        }
    }

    static void say(String answer) {
        System.out.println("== " + answer);
        System.out.flush();
    }

    static void awaitStart() throws IOException {
        say("ready");
        if (INPUT.readLine() == null) System.exit(1);
    }

    /** The options of a command; names with the prefix "producer." or "consumer." are configs of the clients. */
    static class Options {
        final Map<String, String> values = new HashMap<>();

        Options(String[] words) {
            for (String word : Arrays.copyOfRange(words, 1, words.length)) {
                int at = word.indexOf('=');
                values.put(word.substring(0, at), word.substring(at + 1));
            }
        }

        String text(String name) { return values.get(name); }
        int count(String name) { return (int) number(name); }
        long number(String name) { return Long.parseLong(values.getOrDefault(name, "0")); }
        double real(String name) { return Double.parseDouble(values.getOrDefault(name, "0")); }

        Properties configs(String prefix) {
            Properties found = new Properties();
            values.forEach((name, value) -> {
                if (name.startsWith(prefix)) found.put(name.substring(prefix.length()), value);
            });
            found.put("bootstrap.servers", "127.0.0.1:" + text("port"));
            found.put("enable.metrics.push", "false");
            return found;
        }
    }

    static Histogram histogram() { return new Histogram(LONGEST_NS, 3); }
    static long within(long latencyNs) { return Math.min(LONGEST_NS, latencyNs); }

    static String percentiles(String name, Histogram latencies) {
        StringBuilder text = new StringBuilder();
        if (latencies.getTotalCount() > 0) {
            for (double each : new double[] {50, 99, 99.9, 100}) {
                String label = each == 99.9 ? "p999" : each == 100 ? "max" : "p" + (int) each;
                text.append(" %s.%s_us=".formatted(name, label)).append(latencies.getValueAtPercentile(each) / 1000.0);
            }
        }
        return text.toString();
    }

    /** A producer, and the latencies of its records; only its network thread writes them. */
    static class Sender implements AutoCloseable {
        final Histogram latencies = histogram();
        final KafkaProducer<byte[], byte[]> producer;
        final AtomicReference<Exception> error;
        final Semaphore window;

        Sender(Options options, AtomicReference<Exception> error, Semaphore window) {
            Properties configs = options.configs("producer.");
            configs.putIfAbsent("acks", "all");
            this.producer = new KafkaProducer<>(configs, new ByteArraySerializer(), new ByteArraySerializer());
            this.error = error;
            this.window = window;
        }

        void send(String topic, Integer partition, byte[] value, long intendedNs) throws InterruptedException {
            if (window != null) window.acquire();
            // The producer copies the value before it returns, so one array serves for all records.
            producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, failure) -> {
                if (failure != null) error.compareAndSet(null, failure);
                else if (intendedNs != UNTIMED) latencies.recordValue(within(System.nanoTime() - intendedNs));
                if (window != null) window.release();
            });
        }

        double requests() {
            for (var each : producer.metrics().entrySet())
                if (each.getKey().name().equals("request-total") && each.getKey().group().equals("producer-metrics"))
                    return ((Number) each.getValue().metricValue()).doubleValue();
            throw new AssertionError("the producer counts no requests");
        }

        public void close() { producer.close(Duration.ofSeconds(10)); }
    }

    /** A consumer in a thread: of some partitions or in a group, at most at a rate, once or again and again. */
    static class Reader extends Thread {
        final Histogram latencies = histogram();
        final KafkaConsumer<ByteBuffer, ByteBuffer> consumer;
        final List<TopicPartition> partitions;
        final AtomicReference<Exception> error;
        final double bytesPerS;
        final boolean stamped;
        volatile int assigned;
        volatile boolean stopped;
        volatile long records, bytes, lastNs;

        /** Without partitions it joins the group of its configs. Without a rate it reads once, else again and again. */
        Reader(Options options, String topic, List<TopicPartition> partitions, double bytesPerS, boolean stamped,
               AtomicReference<Exception> error) {
            this.consumer = consumer(options);
            this.partitions = partitions;
            this.bytesPerS = bytesPerS;
            this.stamped = stamped;
            this.error = error;
            if (partitions == null) {
                consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                    public void onPartitionsRevoked(Collection<TopicPartition> some) { count(); }
                    public void onPartitionsAssigned(Collection<TopicPartition> some) { count(); }
                    void count() { assigned = consumer.assignment().size(); }
                });
            } else {
                assign(consumer, partitions);
                assigned = partitions.size();
            }
        }

        @Override
        public void run() {
            try {
                readAll();
            } catch (Exception failure) {
                error.compareAndSet(null, failure);
            } finally {
                consumer.close(CloseOptions.timeout(Duration.ofSeconds(10)));
            }
        }

        void readAll() {
            Map<TopicPartition, Long> ends = bytesPerS > 0 ? consumer.endOffsets(partitions) : null;
            long total = ends == null ? 0 : ends.values().stream().mapToLong(Long::longValue).sum();
            long began = System.nanoTime();
            long inPass = 0;
            while (!stopped) {
                ConsumerRecords<ByteBuffer, ByteBuffer> found = consumer.poll(Duration.ofMillis(50));
                if (found.isEmpty()) continue;
                long now = System.nanoTime();
                long size = 0;
                for (ConsumerRecord<ByteBuffer, ByteBuffer> each : found) {
                    size += each.value().remaining();
                    if (!stamped) continue;
                    long intended = each.value().getLong(each.value().position());
                    if (intended == UNTIMED) continue;
                    latencies.recordValue(within(now - intended));
                }
                lastNs = now;
                bytes += size;
                records += found.count();
                inPass += found.count();
                if (ends == null) continue;
                if (inPass >= total) {
                    inPass = 0;
                    consumer.seekToBeginning(partitions);
                }
                long dueNs = began + (long) (bytes / bytesPerS * 1e9);
                if (dueNs > now) LockSupport.parkNanos(dueNs - now);
            }
        }

        void finish() throws InterruptedException {
            stopped = true;
            join();
        }
    }

    static List<TopicPartition> partitions(String topic, int from, int to) {
        List<TopicPartition> found = new ArrayList<>();
        for (int index = from; index < to; index++) found.add(new TopicPartition(topic, index));
        return found;
    }

    static KafkaConsumer<ByteBuffer, ByteBuffer> consumer(Options options) {
        Properties configs = options.configs("consumer.");
        configs.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(configs, new ByteBufferDeserializer(), new ByteBufferDeserializer());
    }

    static void assign(KafkaConsumer<?, ?> consumer, List<TopicPartition> partitions) {
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        for (TopicPartition each : partitions) consumer.position(each);
    }

    /**
     * Read a topic from its beginning to its end a number of times, each time with another consumer.
     *
     * One that seeks back must first wait for the fetch that it has sent ahead, which waits at the end of the log.
     */
    static void read(Options options) throws Exception {
        List<TopicPartition> partitions = partitions(options.text("topic"), 0, options.count("partitions"));
        List<KafkaConsumer<ByteBuffer, ByteBuffer>> consumers = new ArrayList<>();
        try {
            for (int pass = 0; pass < options.number("passes"); pass++) {
                consumers.add(consumer(options));
                assign(consumers.get(pass), partitions);
            }
            long total = consumers.get(0).endOffsets(partitions).values().stream().mapToLong(Long::longValue).sum();
            awaitStart();
            long elapsed = 0, records = 0, bytes = 0;
            for (var consumer : consumers) {
                long began = System.nanoTime(), last = began;
                for (long left = total; left > 0; ) {
                    var found = consumer.poll(Duration.ofMillis(100));
                    long now = System.nanoTime();
                    if (now - last > DRAIN_NS) throw new AssertionError(left + " records did not come");
                    if (found.isEmpty()) continue;
                    last = now;
                    for (var each : found) bytes += each.value().remaining();
                    left -= found.count();
                    records += found.count();
                }
                elapsed += last - began;
            }
            say("result seconds=" + elapsed / 1e9 + " read.records=" + records + " read.bytes=" + bytes);
        } finally {
            for (var consumer : consumers) consumer.close();
        }
    }

    /**
     * Send records, at a rate or as fast as the producers' buffers allow, while consumers read them, or history.
     *
     * At a rate, records fall due each millisecond, and their latency is counted from then on: a producer that is
     * blocked or late does not hide the wait of the records behind it. Otherwise it is counted from the call of send().
     */
    static void load(Options options) throws Exception {
        AtomicReference<Exception> error = new AtomicReference<>();
        String topic = options.text("topic");
        int partitions = options.count("partitions");
        int readers = options.count("consumers");
        boolean stamped = readers > 0;
        Semaphore window = options.number("window") > 0 ? new Semaphore(options.count("window")) : null;
        List<Sender> producers = new ArrayList<>();
        List<Reader> consumers = new ArrayList<>();
        Reader history = null;
        try {
            for (int at = 0; at < readers; at++) {
                List<TopicPartition> own = options.text("consumer.group.id") != null ? null
                    : partitions(topic, partitions * at / readers, partitions * (at + 1) / readers);
                consumers.add(new Reader(options, topic, own, 0, stamped, error));
            }
            if (options.text("history") != null) {
                var all = partitions(options.text("history"), 0, options.count("history.partitions"));
                history = new Reader(options, null, all, options.real("history.rate"), false, error);
                history.start();
            }
            for (Reader each : consumers) each.start();
            for (int at = 0; at < Math.max(1, options.number("producers")); at++) {
                Sender made = new Sender(options, error, window);
                producers.add(made);
                made.producer.partitionsFor(topic);
            }
            awaitAssignment(consumers, partitions, error);
            long primed = prime(options, producers, topic, error);
            awaitRecords(consumers, primed, error);
            awaitStart();
            double requests = 0;
            for (Sender each : producers) requests -= each.requests();
            long historyBytes = history == null ? 0 : history.bytes;
            long began = System.nanoTime();
            long sent = send(options, producers, topic, began, error);
            for (Sender each : producers) each.producer.flush();
            long ended = System.nanoTime();
            historyBytes = history == null ? 0 : history.bytes - historyBytes;
            long received = Math.max(0, awaitRecords(consumers, primed + sent, error) - primed);
            if (error.get() != null) throw error.get();
            Histogram acks = histogram(), reads = histogram();
            for (Sender each : producers) acks.add(each.latencies);
            for (Sender each : producers) requests += each.requests();
            for (Reader each : consumers) reads.add(each.latencies);
            for (Reader each : consumers) ended = Math.max(ended, each.lastNs);
            say("result seconds=" + (ended - began) / 1e9 + " sent.records=" + sent + " requests=" + requests
                + " acked.records=" + acks.getTotalCount() + percentiles("ack", acks)
                + " read.records=" + received + percentiles("read", reads)
                + " history.bytes=" + historyBytes);
        } finally {
            if (history != null) history.stopped = true;
            for (Reader each : consumers) each.stopped = true;
            for (Reader each : consumers) each.finish();
            if (history != null) history.finish();
            for (Sender each : producers) each.close();
        }
    }

    /** Send `prime` records to each partition before the load, so that its latencies have no first times in them. */
    static long prime(Options options, List<Sender> producers, String topic, AtomicReference<Exception> error)
            throws Exception {
        int partitions = options.count("partitions"), times = options.count("prime");
        byte[] value = new byte[options.count("record.bytes")];
        for (int time = 0; time < times; time++) {
            for (int at = 0; at < partitions; at++)
                producers.get(at % producers.size()).send(topic, at, value, UNTIMED);
            for (Sender each : producers) each.producer.flush();
            if (error.get() != null) throw error.get();
        }
        return (long) partitions * times;
    }

    static long send(Options options, List<Sender> producers, String topic, long began,
                     AtomicReference<Exception> error) throws InterruptedException {
        byte[] value = new byte[options.count("record.bytes")];
        new Random(1).nextBytes(value);
        ByteBuffer stamp = ByteBuffer.wrap(value);
        int count = producers.size(), partitions = options.count("partitions");
        boolean spread = options.number("spread") > 0;
        long most = options.number("records") > 0 ? options.number("records") : Long.MAX_VALUE;
        double perTick = options.real("rate") * TICK_NS / 1e9;
        long end = began + (long) (options.real("seconds") * 1e9);
        long sent = 0;
        while (sent < most && error.get() == null) {
            long now = System.nanoTime();
            if (now >= end) break;
            long tick = (now - began) / TICK_NS;
            long due = perTick == 0 ? sent + 1 : Math.min(most, (long) ((tick + 1) * perTick));
            if (due <= sent) LockSupport.parkNanos(began + (tick + 1) * TICK_NS - now);
            for (; sent < due; sent++) {
                long intended = perTick == 0 ? now : began + (long) (sent / perTick) * TICK_NS;
                stamp.putLong(0, intended);
                Integer partition = spread ? (int) (sent % partitions) : null;
                producers.get((int) (sent % count)).send(topic, partition, value, intended);
            }
        }
        return sent;
    }

    /** Wait until the consumers have all partitions, and have kept them for a while. */
    static void awaitAssignment(List<Reader> consumers, int partitions, AtomicReference<Exception> error)
            throws Exception {
        long began = System.nanoTime(), since = began;
        boolean group = !consumers.isEmpty() && consumers.get(0).partitions == null;
        while (group && System.nanoTime() - since < SETTLED_NS) {
            if (error.get() != null) throw error.get();
            if (consumers.stream().mapToInt(each -> each.assigned).sum() != partitions) since = System.nanoTime();
            if (System.nanoTime() - began > READY_NS) throw new AssertionError("the group did not settle");
            Thread.sleep(20);
        }
    }

    /** Wait until the consumers have as many records; returns how many they have. */
    static long awaitRecords(List<Reader> consumers, long sent, AtomicReference<Exception> error) throws Exception {
        long began = System.nanoTime();
        while (!consumers.isEmpty() && error.get() == null) {
            long received = consumers.stream().mapToLong(each -> each.records).sum();
            if (received >= sent) return received;
            if (System.nanoTime() - began > DRAIN_NS) throw new AssertionError(sent - received + " were not read");
            Thread.sleep(1);
        }
        return 0;
    }
}
