import io.netty.buffer.Unpooled;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Apache BookKeeper under the benchmark's load. Arguments: metadata URI, then those of Load. */
public final class BookKeeperDriver {
  private static final byte[] PASSWORD = new byte[0];
  private static final int READS_IN_FLIGHT = 4;
  private static final int READ_BYTES = 4 << 20;

  private final BookKeeper client;
  private final Load load;

  private BookKeeperDriver(BookKeeper client, Load load) {
    this.client = client;
    this.load = load;
  }

  public static void main(String[] arguments) throws Exception {
    ClientConfiguration configuration = new ClientConfiguration()
        .setMetadataServiceUri(arguments[0])
        .setNettyMaxFrameSizeBytes(20 << 20);
    configuration.setThrottleValue(0); // a client is capped at 5,000 adds a second by default
    Load load = new Load(arguments, 1);
    try (BookKeeper client = BookKeeper.newBuilder(configuration).build()) {
      BookKeeperDriver driver = new BookKeeperDriver(client, load);
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

  private WriteHandle create() throws Exception {
    return client.newCreateLedgerOp()
        .withEnsembleSize(load.ensembleSize)
        .withWriteQuorumSize(load.writeQuorum)
        .withAckQuorumSize(load.ackQuorum)
        .withDigestType(DigestType.CRC32C)
        .withPassword(PASSWORD)
        .execute()
        .get();
  }

  private void round(double seconds, boolean counts) throws Exception {
    long id;
    Load.Result appended;
    try (WriteHandle ledger = create()) {
      id = ledger.getId();
      appended = load.append(payload -> ledger.appendAsync(Unpooled.wrappedBuffer(payload)), seconds);
    }
    double readSeconds = read(id, appended.entries);
    client.newDeleteLedgerOp().withLedgerId(id).execute().get();
    if (counts) {
      Load.printAppend(appended);
      Load.printRead(appended.entries, readSeconds);
    }
  }

  private double read(long id, long expected) throws Exception {
    try (ReadHandle ledger = client.newOpenLedgerOp().withLedgerId(id).withPassword(PASSWORD).execute().get()) {
      int batch = Math.max(1, Math.min(1000, READ_BYTES / load.entryBytes));
      long last = ledger.getLastAddConfirmed();
      Semaphore slots = new Semaphore(READS_IN_FLIGHT);
      AtomicLong found = new AtomicLong();
      AtomicReference<Throwable> failure = new AtomicReference<>();
      long started = System.nanoTime();
      for (long first = 0; first <= last; first += batch) {
        slots.acquire();
        ledger.readAsync(first, Math.min(last, first + batch - 1)).whenComplete((entries, error) -> {
          if (error != null) {
            failure.set(error);
          } else {
            entries.forEach(entry -> found.addAndGet(entry.getEntryBytes().length > 0 ? 1 : 0));
            entries.close();
          }
          slots.release();
        });
      }
      slots.acquire(READS_IN_FLIGHT);
      double seconds = (System.nanoTime() - started) / 1e9;
      if (failure.get() != null || found.get() != expected) {
        throw new IllegalStateException(expected + " entries written, read " + found.get(), failure.get());
      }
      return seconds;
    }
  }

  private void failover() throws Exception {
    try (WriteHandle ledger = create()) {
      load.append(payload -> ledger.appendAsync(Unpooled.wrappedBuffer(payload)), load.warmupSeconds);
      Load.printWriting(ledger.getLedgerMetadata().getAllEnsembles().lastEntry().getValue().get(0).toString());
      Load.printFailover(
          load.append(payload -> ledger.appendAsync(Unpooled.wrappedBuffer(payload)), load.roundSeconds));
    }
  }
}
