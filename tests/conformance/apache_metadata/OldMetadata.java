package org.apache.bookkeeper.client;

import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Map;
import java.util.TreeMap;

/**
 * Metadata as the releases 4.0.0 to 4.5.x serialize it, whose class LedgerMetadata does that itself. Output: one line per vector, its name
 * and its bytes in hexadecimal. What differs between these releases is found by reflection.
 */
public final class OldMetadata {
    private static final byte[] PASSWORD = "s\u00e9\"cret\n".getBytes(java.nio.charset.StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        for (String digest : hasDigest() ? new String[] {"MAC", "CRC32", ""} : new String[] {""}) {
            String name = hasDigest() ? digest.isEmpty() ? ", no digest" : ", " + digest : "";
            print("open" + name, fresh(digest));
            LedgerMetadata recovering = fresh(digest);
            recovering.markLedgerInRecovery();
            print("in recovery" + name, recovering);
            LedgerMetadata closed = fresh(digest);
            closed.addEnsemble(10, bookies(1, 4, 3));
            set(closed, "length", 12345L);
            closed.close(99);
            print("closed" + name, closed);
            LedgerMetadata empty = fresh(digest);
            empty.close(-1);
            print("closed, empty" + name, empty);
        }
    }

    private static boolean hasDigest() {
        return LedgerMetadata.class.getConstructors()[0].getParameterTypes().length > 2;
    }

    /** Two quorums of 2 in an ensemble of 3. Without a digest: as a ledger that was created before digests were stored. */
    private static LedgerMetadata fresh(String digest) throws Exception {
        LedgerMetadata made = null;
        for (Constructor<?> constructor : LedgerMetadata.class.getConstructors()) {
            int count = constructor.getParameterTypes().length;
            if (count == 2) {
                made = (LedgerMetadata) constructor.newInstance(3, 2);
            } else if (count == 5) {
                Object type = digestType(digest.isEmpty() ? "CRC32" : digest);
                made = (LedgerMetadata) constructor.newInstance(3, 2, 2, type, PASSWORD);
                if (digest.isEmpty()) {
                    set(made, "hasPassword", false);
                }
            } else if (count == 6 && !digest.isEmpty()) {
                Map<String, byte[]> custom = new TreeMap<>();
                custom.put("app", new byte[] {'x', 0, -1, '"', '\n'});
                return withFirst((LedgerMetadata) constructor.newInstance(3, 2, 2, digestType(digest), PASSWORD, custom));
            }
        }
        return withFirst(made);
    }

    private static LedgerMetadata withFirst(LedgerMetadata metadata) throws Exception {
        metadata.addEnsemble(0, bookies(1, 2, 3));
        try {
            set(metadata, "ctime", 1_400_000_000_000L);
        } catch (NoSuchFieldException error) {
            // releases before 4.4 store none
        }
        return metadata;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object digestType(String name) throws Exception {
        return Enum.valueOf((Class) Class.forName("org.apache.bookkeeper.client.BookKeeper$DigestType"), name);
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static ArrayList bookies(int... numbers) throws Exception {
        ArrayList list = new ArrayList();
        for (int number : numbers) {
            list.add(bookie("10.0.0." + number));
        }
        return list;
    }

    private static Object bookie(String host) throws Exception {
        try {
            return Class.forName("org.apache.bookkeeper.net.BookieSocketAddress").getConstructor(String.class, int.class).newInstance(host, 3181);
        } catch (ClassNotFoundException error) {
            return new InetSocketAddress(host, 3181);
        }
    }

    private static void set(LedgerMetadata metadata, String name, Object value) throws Exception {
        Field field = LedgerMetadata.class.getDeclaredField(name);
        field.setAccessible(true);
        field.set(metadata, value);
    }

    private static void print(String name, LedgerMetadata metadata) throws Exception {
        StringBuilder hex = new StringBuilder();
        for (byte each : metadata.serialize()) {
            hex.append(String.format("%02x", each));
        }
        System.out.println(name + "\t" + hex);
    }
}
