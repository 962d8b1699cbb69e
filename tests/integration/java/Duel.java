import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Base64;
import java.util.Enumeration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Apache's own client, living beside another one and fighting it for ledgers. Commands on standard input, one a line, carried out at the
 * same time; answers on standard output, each with the tag of its command. Ends at the end of its input.
 *
 * <pre>
 *   Duel URI v2|v3 PASSWORD [NAME=VALUE ...]                   the last are lines of the client's configuration
 *
 *   TAG create E W A          TAG created LEDGER
 *   TAG write LEDGER COUNT    TAG ack ENTRY | TAG nack ENTRY CODE   for each entry as it is answered, then TAG wrote
 *   TAG close LEDGER          TAG closed LAST LENGTH
 *   TAG recover LEDGER        TAG recovered LAST LENGTH             opens with recovery: fences and closes
 *   TAG read LEDGER           TAG entries LAST CLOSED DIGESTS       without recovery; up to the last add confirmed
 *   TAG ready                 TAG is ready
 *
 *   any                       TAG failed CODE TEXT
 * </pre>
 *
 * The payload of an entry tells its place: "LEDGER:ENTRY;" written 1 + ENTRY % 40 times. DIGESTS: the first eight bytes of each payload's
 * SHA-256, one after the other, in base64.
 */
public final class Duel {
    private static final int READ_AT_ONCE = 500;
    private static final PrintStream OUT = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false);

    private final BookKeeper client;
    private final byte[] password;
    private final Map<Long, Writer> writers = new ConcurrentHashMap<>();

    private static final class Writer {
        final LedgerHandle handle;
        long next;

        Writer(LedgerHandle handle) {
            this.handle = handle;
        }
    }

    private Duel(BookKeeper client, byte[] password) {
        this.client = client;
        this.password = password;
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments[0]);
        configuration.setUseV2WireProtocol("v2".equals(arguments[1]));
        for (String line : Arrays.asList(arguments).subList(3, arguments.length)) {
            int equals = line.indexOf('=');
            configuration.setProperty(line.substring(0, equals), line.substring(equals + 1));
        }
        Duel duel = new Duel(new BookKeeper(configuration), arguments[2].getBytes(StandardCharsets.UTF_8));
        ExecutorService workers = Executors.newCachedThreadPool();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String text = input.readLine(); text != null; text = input.readLine()) {
            String[] words = text.trim().split(" ");
            workers.execute(() -> duel.answer(words));
        }
        // a handle or a thread of the client must not keep it alive
        Runtime.getRuntime().halt(0);
    }

    private void answer(String[] words) {
        String tag = words[0];
        try {
            run(tag, words);
        } catch (BKException error) {
            say(tag, "failed", error.getCode(), error.getMessage());
        } catch (Exception error) {
            say(tag, "failed", 0, error);
        }
    }

    private void run(String tag, String[] words) throws Exception {
        switch (words[1]) {
            case "ready":
                say(tag, "is", "ready");
                break;
            case "create":
                LedgerHandle created = client.createLedger(Integer.parseInt(words[2]), Integer.parseInt(words[3]),
                        Integer.parseInt(words[4]), DigestType.CRC32C, password);
                writers.put(created.getId(), new Writer(created));
                say(tag, "created", created.getId());
                break;
            case "write":
                write(tag, writers.get(Long.parseLong(words[2])), Integer.parseInt(words[3]));
                break;
            case "close":
                LedgerHandle closing = writers.get(Long.parseLong(words[2])).handle;
                closing.close();
                say(tag, "closed", closing.getLastAddConfirmed(), closing.getLength());
                break;
            case "recover":
                try (LedgerHandle recovered = client.openLedger(Long.parseLong(words[2]), DigestType.CRC32C, password)) {
                    say(tag, "recovered", recovered.getLastAddConfirmed(), recovered.getLength());
                }
                break;
            case "read":
                try (LedgerHandle opened = client.openLedgerNoRecovery(Long.parseLong(words[2]), DigestType.CRC32C, password)) {
                    read(tag, opened);
                }
                break;
            default:
                throw new IllegalArgumentException("no command " + words[1]);
        }
    }

    /** Returns when every entry is answered. */
    private void write(String tag, Writer writer, int count) throws Exception {
        CountDownLatch open = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            long entry = writer.next++;
            writer.handle.asyncAddEntry(payload(writer.handle.getId(), entry), (code, handle, id, context) -> {
                if (code == BKException.Code.OK) {
                    say(tag, "ack", id);
                } else {
                    say(tag, "nack", entry, code);
                }
                open.countDown();
            }, null);
        }
        open.await();
        say(tag, "wrote");
    }

    private void read(String tag, LedgerHandle handle) throws Exception {
        long last = handle.getLastAddConfirmed();
        boolean closed = handle.isClosed();
        byte[] digests = new byte[(int) (last + 1) * 8];
        for (long first = 0; first <= last; first += READ_AT_ONCE) {
            Enumeration<LedgerEntry> entries = handle.readEntries(first, Math.min(last, first + READ_AT_ONCE - 1));
            while (entries.hasMoreElements()) {
                LedgerEntry entry = entries.nextElement();
                byte[] digest = MessageDigest.getInstance("SHA-256").digest(entry.getEntry());
                System.arraycopy(digest, 0, digests, (int) entry.getEntryId() * 8, 8);
            }
        }
        say(tag, "entries", last, closed ? 1 : 0, Base64.getEncoder().encodeToString(digests));
    }

    private static byte[] payload(long ledger, long entry) {
        byte[] once = (ledger + ":" + entry + ";").getBytes(StandardCharsets.US_ASCII);
        byte[] whole = new byte[once.length * (int) (1 + entry % 40)];
        for (int at = 0; at < whole.length; at += once.length) {
            System.arraycopy(once, 0, whole, at, once.length);
        }
        return whole;
    }

    private static void say(Object... words) {
        String[] texts = Arrays.stream(words).map(word -> String.valueOf(word).replace('\n', ' ')).toArray(String[]::new);
        synchronized (OUT) {
            OUT.println(String.join(" ", texts));
            OUT.flush();
        }
    }
}
