import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka under the benchmark's load. Arguments: brokers, then those of Load. */
public final class KafkaDriver {
  private static final int PARTITIONS = 3;
  private static final Duration POLL = Duration.ofSeconds(1);
  private static final long READ_TIMEOUT_NANOS = 60_000_000_000L;

  private final String brokers;
  private final Load load;
  private final Admin admin;

  private KafkaDriver(String brokers, Load load, Admin admin) {
    this.brokers = brokers;
    this.load = load;
    this.admin = admin;
  }

  public static void main(String[] arguments) throws Exception {
    Load load = new Load(arguments, 1);
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
      KafkaDriver driver = new KafkaDriver(arguments[0], load, admin);
      driver.awaitBrokers(arguments[0].split(",").length);
      if (load.failover) {
        driver.failover();
      } else {
        driver.round(load.warmupSeconds, false);
        for (int round = 0; round < load.rounds; round++) {
          driver.round(load.roundSeconds, true);
        }
      }
    }
    System.exit(0);
  }

  private void awaitBrokers(int brokersWanted) throws Exception {
    while (admin.describeCluster().nodes().get().size() < brokersWanted) {
      Thread.sleep(200);
    }
  }

  private String create(int partitions) throws Exception {
    String topic = "bench-" + UUID.randomUUID();
    NewTopic wanted = new NewTopic(topic, partitions, (short) load.writeQuorum)
        .configs(Map.of("min.insync.replicas", Integer.toString(load.ackQuorum)));
    admin.createTopics(List.of(wanted)).all().get();
    return topic;
  }

  private KafkaProducer<byte[], byte[]> producer() {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", brokers);
    settings.put("acks", "all");
    settings.put("batch.size", 1 << 20);
    settings.put("linger.ms", load.inFlight == 1 || load.failover ? 0 : 5);
    settings.put("buffer.memory", 128L << 20);
    settings.put("max.request.size", 4 << 20);
    return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
  }

  private static Load.Target target(KafkaProducer<byte[], byte[]> producer, String topic) {
    return payload -> {
      CompletableFuture<Object> done = new CompletableFuture<>();
      producer.send(new ProducerRecord<>(topic, payload), (metadata, error) -> {
        if (error != null) {
          done.completeExceptionally(error);
        } else {
          done.complete(metadata);
        }
      });
      return done;
    };
  }

  private void round(double seconds, boolean counts) throws Exception {
    String topic = create(PARTITIONS);
    Load.Result appended;
    try (KafkaProducer<byte[], byte[]> producer = producer()) {
      producer.partitionsFor(topic);
      appended = load.append(target(producer, topic), seconds);
    }
    double readSeconds = read(topic, appended.entries);
    admin.deleteTopics(List.of(topic)).all().get();
    if (counts) {
      Load.printAppend(appended);
      Load.printRead(appended.entries, readSeconds);
    }
  }

  private double read(String topic, long expected) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", brokers);
    settings.put("max.partition.fetch.bytes", 8 << 20);
    settings.put("max.poll.records", 10_000);
    settings.put("enable.auto.commit", false);
    try (KafkaConsumer<byte[], byte[]> consumer =
        new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      List<TopicPartition> partitions = IntStream.range(0, PARTITIONS)
          .mapToObj(number -> new TopicPartition(topic, number)).collect(Collectors.toList());
      consumer.assign(partitions);
      consumer.seekToBeginning(partitions);
      partitions.forEach(consumer::position); // connects, and looks the start up
      long found = 0;
      long started = System.nanoTime();
      while (found < expected) {
        found += consumer.poll(POLL).count();
        if (System.nanoTime() - started > READ_TIMEOUT_NANOS) {
          throw new IllegalStateException(expected + " records written, read " + found);
        }
      }
      return (System.nanoTime() - started) / 1e9;
    }
  }

  private void failover() throws Exception {
    String topic = create(1);
    try (KafkaProducer<byte[], byte[]> producer = producer()) {
      producer.partitionsFor(topic);
      load.append(target(producer, topic), load.warmupSeconds);
      int leader = admin.describeTopics(List.of(topic)).allTopicNames().get()
          .get(topic).partitions().get(0).leader().id();
      Load.printWriting(Integer.toString(leader));
      Load.printFailover(load.append(target(producer, topic), load.roundSeconds));
    }
  }
}
