import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Apache's own client as a judge of ledgers and bookies. One command per run, answers as JSON objects, one a line, on standard output.
 *
 * <pre>
 *   Judge uri=zk+hierarchical://HOST:PORT/ledgers protocol=v2|v3 command=COMMAND [key=value ...]
 *
 *   write           e= w= a= digest= password=   payloads in base64, one a line, on standard input; closes the ledger.
 *                                                With digest=A,B,... one ledger for each
 *   open-and-crash  the same, but the process halts without closing
 *   read            ledger= digest= password=    opens without recovery; entries up to the last add confirmed.
 *                                                With ledger=1,2,... digest=A,B,... one after the other
 *   recover         the same, but opens with recovery, that is: fences and closes
 *   delete          ledger=
 *   list            all ledger ids
 * </pre>
 *
 * Options that begin with set. are lines of the client's configuration, such as set.tlsProvider=JDK.
 *
 * An error of the client is the line {"error": CODE, "message": TEXT} and exit status 3.
 */
public final class Judge {
    private static final int READ_AT_ONCE = 500;

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String argument : arguments) {
            int equals = argument.indexOf('=');
            options.put(argument.substring(0, equals), argument.substring(equals + 1));
        }
        int status = 0;
        try {
            run(options);
        } catch (BKException error) {
            say(line("error", error.getCode(), "message", String.valueOf(error.getMessage())));
            status = 3;
        } catch (IllegalArgumentException | java.io.IOException error) {
            say(line("error", 0, "message", String.valueOf(error)));
            status = 3;
        }
        System.out.flush();
        // threads of the client must not keep a finished judge alive
        Runtime.getRuntime().halt(status);
    }

    private static void run(Map<String, String> options) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(options.get("uri"));
        configuration.setUseV2WireProtocol("v2".equals(options.get("protocol")));
        // the digest type given here must be the ledger's: a judge does not guess
        configuration.setEnableDigestTypeAutodetection(false);
        for (Map.Entry<String, String> option : options.entrySet()) {
            if (option.getKey().startsWith("set.")) {
                configuration.setProperty(option.getKey().substring("set.".length()), option.getValue());
            }
        }
        try (BookKeeper client = new BookKeeper(configuration)) {
            switch (options.get("command")) {
                case "write":
                    write(client, options, true);
                    break;
                case "open-and-crash":
                    write(client, options, false);
                    break;
                case "read":
                case "recover":
                    readAll(client, options);
                    break;
                case "delete":
                    client.deleteLedger(ledger(options));
                    say(line("deleted", ledger(options)));
                    break;
                case "list":
                    list(configuration);
                    break;
                default:
                    throw new IllegalArgumentException("no command " + options.get("command"));
            }
        }
    }

    private static void write(BookKeeper client, Map<String, String> options, boolean close) throws Exception {
        List<byte[]> payloads = new ArrayList<>();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String text = input.readLine(); text != null; text = input.readLine()) {
            payloads.add(Base64.getDecoder().decode(text.trim()));
        }
        for (DigestType digest : digests(options)) {
            LedgerHandle handle = client.createLedger(number(options, "e", 3), number(options, "w", 3), number(options, "a", 2),
                    digest, password(options), Collections.singletonMap("judge", "java".getBytes(StandardCharsets.UTF_8)));
            for (byte[] payload : payloads) {
                handle.addEntry(payload);
            }
            if (close) {
                handle.close();
            }
            say(line("ledger", handle.getId(), "last", handle.getLastAddConfirmed(), "length", handle.getLength(), "closed", close));
        }
        if (!close) {
            System.out.flush();
            Runtime.getRuntime().halt(0);
        }
    }

    private static void readAll(BookKeeper client, Map<String, String> options) throws Exception {
        boolean recover = "recover".equals(options.get("command"));
        List<DigestType> digests = digests(options);
        String[] ledgers = options.get("ledger").split(",");
        for (int i = 0; i < ledgers.length; i++) {
            long ledger = Long.parseLong(ledgers[i]);
            DigestType digest = digests.get(i);
            byte[] password = password(options);
            read(recover ? client.openLedger(ledger, digest, password) : client.openLedgerNoRecovery(ledger, digest, password));
        }
    }

    private static void read(LedgerHandle handle) throws Exception {
        long last = handle.getLastAddConfirmed();
        for (long first = 0; first <= last; first += READ_AT_ONCE) {
            Enumeration<LedgerEntry> entries = handle.readEntries(first, Math.min(last, first + READ_AT_ONCE - 1));
            while (entries.hasMoreElements()) {
                LedgerEntry entry = entries.nextElement();
                say(line("entry", entry.getEntryId(), "length", entry.getLength(),
                        "payload", Base64.getEncoder().encodeToString(entry.getEntry())));
            }
        }
        say(line("ledger", handle.getId(), "last", last, "length", handle.getLength(), "closed", handle.isClosed()));
    }

    private static void list(ClientConfiguration configuration) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(configuration)) {
            for (long id : admin.listLedgers()) {
                say(line("ledger", id));
            }
        }
    }

    private static long ledger(Map<String, String> options) {
        return Long.parseLong(options.get("ledger"));
    }

    private static int number(Map<String, String> options, String name, int otherwise) {
        return Integer.parseInt(options.getOrDefault(name, String.valueOf(otherwise)));
    }

    private static List<DigestType> digests(Map<String, String> options) {
        List<DigestType> digests = new ArrayList<>();
        for (String name : options.getOrDefault("digest", "CRC32C").split(",")) {
            digests.add(DigestType.valueOf(name));
        }
        return digests;
    }

    private static byte[] password(Map<String, String> options) {
        return options.getOrDefault("password", "").getBytes(StandardCharsets.UTF_8);
    }

    private static void say(String text) {
        System.out.println(text);
    }

    /** A JSON object of names and values in turn: numbers and booleans bare, all else as strings. */
    private static String line(Object... parts) {
        Map<String, Object> values = new TreeMap<>();
        for (int i = 0; i < parts.length; i += 2) {
            values.put((String) parts[i], parts[i + 1]);
        }
        StringBuilder text = new StringBuilder("{");
        for (Map.Entry<String, Object> value : values.entrySet()) {
            if (text.length() > 1) {
                text.append(", ");
            }
            text.append(quoted(value.getKey())).append(": ");
            Object content = value.getValue();
            text.append(content instanceof Number || content instanceof Boolean ? content.toString() : quoted(content.toString()));
        }
        return text.append('}').toString();
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }
}
