import java.util.Arrays;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/** The closed loop that every Java driver runs, and the lines it prints; see benchmarks/cases.py. */
final class Load {
  /** Where entries go. */
  interface Target {
    CompletionStage<?> append(byte[] payload) throws Exception;
  }

  final int entryBytes;
  final int inFlight;
  final int ensembleSize;
  final int writeQuorum;
  final int ackQuorum;
  final double warmupSeconds;
  final double roundSeconds;
  final long roundBytesMax;
  final int rounds;
  final boolean failover;
  final byte[] payload;

  Load(String[] arguments, int from) {
    entryBytes = Integer.parseInt(arguments[from]);
    inFlight = Integer.parseInt(arguments[from + 1]);
    ensembleSize = Integer.parseInt(arguments[from + 2]);
    writeQuorum = Integer.parseInt(arguments[from + 3]);
    ackQuorum = Integer.parseInt(arguments[from + 4]);
    warmupSeconds = Double.parseDouble(arguments[from + 5]);
    roundSeconds = Double.parseDouble(arguments[from + 6]);
    roundBytesMax = Long.parseLong(arguments[from + 7]);
    rounds = Integer.parseInt(arguments[from + 8]);
    failover = arguments[from + 9].equals("failover");
    payload = new byte[entryBytes];
    new java.util.Random(1).nextBytes(payload);
  }

  /** What one loop saw. Times are nanoseconds. */
  static final class Result {
    int entries;
    double seconds;
    long longestGap;
    long[] latencies;

    double percentileMillis(double part) {
      return latencies[Math.min(entries - 1, (int) (entries * part))] / 1e6;
    }
  }

  /** Keep inFlight entries on their way until the time or the bytes are used up. */
  Result append(Target target, double seconds) throws Exception {
    int most = (int) Math.max(1, Math.min(20_000_000, roundBytesMax / entryBytes));
    Result result = new Result();
    long[] latencies = new long[1 << 16];
    Semaphore slots = new Semaphore(inFlight);
    AtomicReference<Throwable> failure = new AtomicReference<>();
    AtomicLong lastProgress = new AtomicLong();
    AtomicLong longestGap = new AtomicLong();
    long[][] holder = {latencies};
    long started = System.nanoTime();
    long end = started + (long) (seconds * 1e9);
    lastProgress.set(started);
    int sent = 0;
    while (sent < most && System.nanoTime() < end && failure.get() == null) {
      slots.acquire();
      if (sent == holder[0].length) {
        slots.acquire(inFlight - 1); // nothing is on its way: the array may be replaced
        holder[0] = Arrays.copyOf(holder[0], 2 * sent);
        slots.release(inFlight - 1);
      }
      int index = sent++;
      long[] into = holder[0];
      long handedOver = System.nanoTime();
      target.append(payload).whenComplete((value, error) -> {
        long now = System.nanoTime();
        into[index] = now - handedOver;
        long gap = now - lastProgress.getAndSet(now);
        longestGap.accumulateAndGet(gap, Math::max);
        if (error != null) {
          failure.set(error);
        }
        slots.release();
      });
    }
    slots.acquire(inFlight);
    long finished = System.nanoTime();
    if (failure.get() != null) {
      throw new IllegalStateException("an append failed", failure.get());
    }
    result.entries = sent;
    result.seconds = (finished - started) / 1e9;
    result.longestGap = longestGap.get();
    result.latencies = Arrays.copyOf(holder[0], sent);
    Arrays.sort(result.latencies);
    return result;
  }

  static void printAppend(Result result) {
    System.out.printf("{\"op\":\"append\",\"entries\":%d,\"seconds\":%.6f,\"p50_ms\":%.4f,\"p99_ms\":%.4f}%n",
        result.entries, result.seconds, result.percentileMillis(0.5), result.percentileMillis(0.99));
  }

  static void printRead(long entries, double seconds) {
    System.out.printf("{\"op\":\"read\",\"entries\":%d,\"seconds\":%.6f}%n", entries, seconds);
  }

  static void printFailover(Result result) {
    System.out.printf("{\"op\":\"failover\",\"entries\":%d,\"seconds\":%.6f,\"longest_gap_ms\":%.3f}%n",
        result.entries, result.seconds, result.longestGap / 1e6);
  }

  static void printWriting(String server) {
    System.out.printf("{\"writing\":[\"%s\"]}%n", server);
    System.out.flush();
  }
}
