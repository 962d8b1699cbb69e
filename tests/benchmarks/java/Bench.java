import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Apache's client, measured by its own clock. One JVM for all rounds and clusters: commands on standard input, one answer line each, the
 * same commands as those of ours.py.
 *
 * <pre>
 *   connect URI [FILE]                       -> 0                      FILE: a client's settings, as in bk_client.conf
 *   disconnect -                             -> 0
 *   write ENTRIES BYTES IN_FLIGHT E QW QA    -> NANOSECONDS LEDGER     async adds, CRC32C; until the last acknowledgement
 *   read LEDGER ENTRIES BATCH_BYTES COPY     -> NANOSECONDS BYTES      four batch reads at a time; every payload looked at where it lies,
 *                                                                      or copied out for the caller to keep (COPY = 1)
 *   single LEDGER ENTRIES                    -> NANOSECONDS BYTES      pipelined single reads, 256 asked for at a time, two such in flight
 *   latency ENTRIES BYTES E QW QA            -> P50 P99 P99.9          nanoseconds of one add after the other
 * </pre>
 *
 * An operation that fails answers <code>-1 CODE</code>.
 */
public final class Bench {
    private static final int BATCHES_IN_FLIGHT = 4;
    private static final int BATCH_ENTRIES = 4096;
    private static final int SINGLES = 256;
    private static final int SINGLES_IN_FLIGHT = 2;
    private static final byte[] PASSWORD = new byte[0];

    public static void main(String[] arguments) throws Exception {
        BookKeeper client = null;
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        say("ready");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            if (words[0].endsWith("connect")) {
                if (client != null) {
                    client.close();
                }
                client = words[0].equals("connect") ? connect(words[1], words.length > 2 ? words[2] : null) : null;
                say("0");
            } else {
                say(answer(client, words[0], Arrays.stream(words).skip(1).mapToLong(Long::parseLong).toArray()));
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static BookKeeper connect(String uri, String settings) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        if (settings != null) {
            configuration.loadConf(Path.of(settings).toUri().toURL());
        }
        configuration.setMetadataServiceUri(uri);
        configuration.setUseV2WireProtocol(true);
        configuration.setThrottleValue(0);
        configuration.setBatchReadEnabled(true);
        return new BookKeeper(configuration);
    }

    private static String answer(BookKeeper client, String operation, long[] n) throws Exception {
        try {
            return switch (operation) {
                case "write" -> write(client, (int) n[0], (int) n[1], (int) n[2], (int) n[3], (int) n[4], (int) n[5]);
                case "read" -> read(client, n[0], n[1], n[2], n[3] == 1);
                case "single" -> single(client, n[0], n[1]);
                case "latency" -> latency(client, (int) n[0], (int) n[1], (int) n[2], (int) n[3], (int) n[4]);
                default -> throw new IllegalArgumentException(operation);
            };
        } catch (BKException failure) {
            return "-1 " + failure.getCode();
        }
    }

    private static String write(BookKeeper client, int entries, int bytes, int inFlight, int e, int qw, int qa) throws Exception {
        LedgerHandle handle = client.createLedger(e, qw, qa, DigestType.CRC32C, PASSWORD);
        byte[] payload = new byte[bytes];
        Semaphore room = new Semaphore(inFlight);
        AtomicInteger error = new AtomicInteger();
        long start = System.nanoTime();
        for (int i = 0; i < entries && error.get() == 0; i++) {
            room.acquire();
            handle.asyncAddEntry(payload, (code, ledger, entry, context) -> {
                if (code != BKException.Code.OK) {
                    error.set(code);
                }
                room.release();
            }, null);
        }
        room.acquire(inFlight);
        long took = System.nanoTime() - start;
        if (error.get() != 0) {
            return "-1 " + error.get();
        }
        handle.close();
        return took + " " + handle.getId();
    }

    private static String read(BookKeeper client, long ledger, long entries, long batchBytes, boolean copy) throws Exception {
        try (LedgerHandle handle = client.openLedgerNoRecovery(ledger, DigestType.CRC32C, PASSWORD)) {
            long bytes = 0;
            Deque<CompletableFuture<LedgerEntries>> pending = new ArrayDeque<>();
            // A batch brings as many entries as fit into its bytes, which the first one tells: what is asked for must not be cut short.
            long size = 32 + 4 + 4 + firstBytes(handle);
            int count = (int) Math.max(1, Math.min(BATCH_ENTRIES, (batchBytes - 36) / size));
            long asked = 0;
            long taken = 0;
            long start = System.nanoTime();
            while (taken < entries) {
                while (asked < entries && pending.size() < BATCHES_IN_FLIGHT) {
                    int wanted = (int) Math.min(count, entries - asked);
                    pending.add(handle.batchReadAsync(asked, wanted, batchBytes));
                    asked += wanted;
                }
                try (LedgerEntries found = pending.remove().get()) {
                    for (LedgerEntry entry : found) {
                        if (entry.getEntryId() != taken) {
                            throw new IllegalStateException("a batch was cut short before entry " + taken);
                        }
                        bytes += copy ? entry.getEntryBytes().length : entry.getEntryBuffer().readableBytes();
                        taken++;
                    }
                }
            }
            return System.nanoTime() - start + " " + bytes;
        }
    }

    private static long firstBytes(LedgerHandle handle) throws Exception {
        try (LedgerEntries found = handle.read(0, 0)) {
            return found.getEntry(0).getLength();
        }
    }

    private static String single(BookKeeper client, long ledger, long entries) throws Exception {
        try (LedgerHandle handle = client.openLedgerNoRecovery(ledger, DigestType.CRC32C, PASSWORD)) {
            long bytes = 0;
            Deque<CompletableFuture<LedgerEntries>> pending = new ArrayDeque<>();
            long asked = 0;
            long taken = 0;
            long start = System.nanoTime();
            while (taken < entries) {
                while (asked < entries && pending.size() < SINGLES_IN_FLIGHT) {
                    long last = Math.min(asked + SINGLES, entries) - 1;
                    pending.add(handle.readAsync(asked, last));
                    asked = last + 1;
                }
                try (LedgerEntries found = pending.remove().get()) {
                    for (LedgerEntry entry : found) {
                        bytes += entry.getEntryBuffer().readableBytes();
                        taken++;
                    }
                }
            }
            return System.nanoTime() - start + " " + bytes;
        }
    }

    private static String latency(BookKeeper client, int entries, int bytes, int e, int qw, int qa) throws Exception {
        byte[] payload = new byte[bytes];
        long[] took = new long[entries];
        try (LedgerHandle handle = client.createLedger(e, qw, qa, DigestType.CRC32C, PASSWORD)) {
            for (int i = 0; i < entries; i++) {
                long start = System.nanoTime();
                handle.addEntry(payload);
                took[i] = System.nanoTime() - start;
            }
        }
        Arrays.sort(took);
        return took[entries / 2] + " " + took[(int) (entries * 0.99)] + " " + took[(int) (entries * 0.999)];
    }

    private static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }
}
