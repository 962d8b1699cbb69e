import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.net.BookieId;

/** Metadata of the formats 1, 2 and 3 as LedgerMetadataSerDe of the releases since 4.9 writes them. Output as that of OldMetadata. */
public final class NewMetadata {
    public static void main(String[] arguments) throws Exception {
        for (int format = 1; format <= 3; format++) {
            print("format " + format + ", open", fresh(format));
            print("format " + format + ", in recovery", fresh(format).withInRecoveryState());
            LedgerMetadataBuilder closed = fresh(format).newEnsembleEntry(10, bookies(1, 4, 3));
            print("format " + format + ", closed", closed.withClosedState().withLastEntryId(99).withLength(12345));
            print("format " + format + ", closed, empty", fresh(format).withClosedState().withLastEntryId(-1).withLength(0));
        }
    }

    private static LedgerMetadataBuilder fresh(int format) {
        LedgerMetadataBuilder builder = LedgerMetadataBuilder.create().withId(1).withMetadataFormatVersion(format);
        builder.withEnsembleSize(3).withWriteQuorumSize(2).withAckQuorumSize(2).newEnsembleEntry(0, bookies(1, 2, 3));
        if (format == 1) {
            return builder;
        }
        Map<String, byte[]> custom = new TreeMap<>();
        custom.put("app", new byte[] {'x', 0, -1, '"', '\n'});
        byte[] password = "s\u00e9\"cret\n".getBytes(java.nio.charset.StandardCharsets.UTF_8);
        return builder.withDigestType(DigestType.MAC).withPassword(password).withCustomMetadata(custom);
    }

    private static List<BookieId> bookies(int... numbers) {
        List<BookieId> list = new ArrayList<>();
        for (int number : numbers) {
            list.add(BookieId.parse("10.0.0." + number + ":3181"));
        }
        return list;
    }

    private static void print(String name, LedgerMetadataBuilder builder) throws Exception {
        StringBuilder hex = new StringBuilder();
        for (byte each : new LedgerMetadataSerDe().serialize(builder.build())) {
            hex.append(String.format("%02x", each));
        }
        System.out.println(name + "\t" + hex);
    }
}
