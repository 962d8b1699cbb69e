import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayDeque;
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
 * Apache's client, measured by its own clock. One JVM for all rounds: commands on standard input, one answer line each.
 *
 * <pre>
 *   Bench URI IN_FLIGHT BATCH_ENTRIES
 *
 *   write ENTRIES BYTES      -> NANOSECONDS LEDGER    async adds, E3/Qw3/Qa2, CRC32C, v2; until the last acknowledgement;
 *                               -1 CODE if an add failed
 *   read LEDGER ENTRIES      -> NANOSECONDS BYTES     four batch reads at a time of entries 0..ENTRIES-1, every payload copied out
 * </pre>
 */
public final class Bench {
    private static final int BATCHES_IN_FLIGHT = 4;
    private static final long BATCH_BYTES_MAX = 4 << 20;

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments[0]);
        configuration.setUseV2WireProtocol(true);
        configuration.setThrottleValue(0);
        configuration.setBatchReadEnabled(true);
        int inFlight = Integer.parseInt(arguments[1]);
        int batchEntries = Integer.parseInt(arguments[2]);
        try (BookKeeper client = new BookKeeper(configuration)) {
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            say("ready");
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] words = line.split(" ");
                long first = Long.parseLong(words[1]);
                int second = Integer.parseInt(words[2]);
                say(words[0].equals("write") ? write(client, (int) first, second, inFlight) : read(client, first, second, batchEntries));
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static String write(BookKeeper client, int entries, int bytes, int inFlight) throws Exception {
        LedgerHandle handle = client.createLedger(3, 3, 2, DigestType.CRC32C, new byte[0]);
        byte[] payload = new byte[bytes];
        Semaphore room = new Semaphore(inFlight);
        AtomicInteger error = new AtomicInteger();
        long start = System.nanoTime();
        for (int i = 0; i < entries; i++) {
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

    private static String read(BookKeeper client, long ledger, int entries, int batchEntries) throws Exception {
        try (LedgerHandle handle = client.openLedgerNoRecovery(ledger, DigestType.CRC32C, new byte[0])) {
            long bytes = 0;
            Deque<CompletableFuture<LedgerEntries>> pending = new ArrayDeque<>();
            long asked = 0;
            long taken = 0;
            long start = System.nanoTime();
            while (taken < entries) {
                while (asked < entries && pending.size() < BATCHES_IN_FLIGHT) {
                    int count = (int) Math.min(batchEntries, entries - asked);
                    pending.add(handle.batchReadAsync(asked, count, BATCH_BYTES_MAX));
                    asked += count;
                }
                try (LedgerEntries found = pending.remove().get()) {
                    for (LedgerEntry entry : found) {
                        if (entry.getEntryId() != taken) {
                            throw new IllegalStateException("a batch was cut short before entry " + taken);
                        }
                        bytes += entry.getEntryBytes().length;
                        taken++;
                    }
                }
            }
            return System.nanoTime() - start + " " + bytes;
        }
    }

    private static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }
}
