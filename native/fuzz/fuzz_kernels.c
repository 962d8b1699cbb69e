/* libFuzzer entry for frames.c and entries.c.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -Inative native/fuzz/fuzz_kernels.c \
 *       native/crc32c.c native/digest.c native/frames.c native/entries.c -o fuzz_kernels && ./fuzz_kernels
 *
 * The first eight bytes of an input choose numbers, the rest is the buffer. All memory is allocated to the exact size,
 * so the address sanitizer sees a single byte too many.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "digest.h"
#include "entries.h"
#include "frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t key[BK_KEY_BYTES] = {1, 2, 3};

static uint8_t *exact(size_t size) {
    uint8_t *memory = malloc(size > 0 ? size : 1);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

static void expect(int condition) {
    if (!condition) {
        abort();
    }
}

static void fuzz_scan(const uint8_t *data, size_t size, int64_t limit) {
    bk_scan_result counted, written;
    if (bk_scan_frames(data, size, limit, NULL, 0, &counted) != BK_SCAN_OK) {
        return;
    }
    uint8_t *bounds = exact(counted.count * 16);
    expect(bk_scan_frames(data, size, limit, bounds, counted.count, &written) == BK_SCAN_OK);
    expect(written.count == counted.count && written.consumed == counted.consumed && written.consumed <= size);
    if (counted.count > 0) {
        expect(bk_scan_frames(data, size, limit, bounds, counted.count - 1, &written) == BK_SCAN_NO_ROOM);
    }
    free(bounds);
}

static bk_entries_status unpack(const bk_entries *entries, size_t count, size_t value_bytes,
                                bk_entries_result *result) {
    bk_columns columns = {
        .count = count,
        .value_bytes = value_bytes,
        .entry_ids = exact(count * 8),
        .offsets = exact((count + 1) * 8),
        .values = exact(value_bytes),
        .lacs_and_lengths = exact(count * 16),
    };
    bk_entries_status status = bk_unpack_entries(entries, &columns, result);
    free(columns.entry_ids);
    free(columns.offsets);
    free(columns.values);
    free(columns.lacs_and_lengths);
    return status;
}

static void fuzz_entries(const bk_entries *entries) {
    bk_entries_result measured, unpacked;
    if (bk_measure_entries(entries, &measured) != BK_ENTRIES_OK) {
        return;
    }
    bk_entries_status status = unpack(entries, measured.count, measured.value_bytes, &unpacked);
    expect(status == BK_ENTRIES_OK || status == BK_ENTRIES_WRONG_DIGEST || status == BK_ENTRIES_WRONG_LEDGER);
    if (status == BK_ENTRIES_OK) {
        expect(unpacked.count == measured.count && unpacked.value_bytes == measured.value_bytes);
    }
    /* The input may shrink or grow between the two passes: less room must never mean writing past it. */
    if (measured.count > 0) {
        expect(unpack(entries, measured.count - 1, measured.value_bytes, &unpacked) != BK_ENTRIES_OK);
    }
    if (measured.value_bytes > 0) {
        expect(unpack(entries, measured.count, measured.value_bytes - 1, &unpacked) != BK_ENTRIES_OK);
    }
}

static void fuzz_adds(const bk_adds *adds) {
    bk_adds_result measured, written;
    if (bk_measure_adds(adds, &measured) != BK_ADDS_OK) {
        return;
    }
    size_t frame_bytes = (size_t)measured.frame_bytes, offset_bytes = (measured.count + 1) * 8;
    uint8_t *frames = exact(frame_bytes);
    uint8_t *frame_offsets = exact(offset_bytes);
    expect(bk_write_adds(adds, frames, frame_bytes, frame_offsets, offset_bytes, &written) == BK_ADDS_OK);
    expect(bk_write_adds(adds, frames, frame_bytes, frame_offsets, offset_bytes - 8, &written) == BK_ADDS_NO_ROOM);
    /* What was framed must scan, and must unpack to the same payloads. */
    bk_scan_result scanned;
    expect(bk_scan_frames(frames, frame_bytes, BK_FRAME_MAX, NULL, 0, &scanned) == BK_SCAN_OK);
    expect(scanned.count == measured.count && scanned.consumed == frame_bytes);
    bk_entries entries = {
        .data = frames,
        .size = frame_bytes,
        .header_bytes = 4 + BK_KEY_BYTES,
        .ledger_id = adds->ledger_id,
        .digest_type = adds->digest_type,
        .hmac_key = adds->hmac_key,
        .hmac_key_size = adds->hmac_key_size,
    };
    bk_entries_result unpacked;
    expect(bk_measure_entries(&entries, &unpacked) == BK_ENTRIES_OK && unpacked.count == measured.count);
    expect(unpack(&entries, unpacked.count, unpacked.value_bytes, &unpacked) == BK_ENTRIES_OK);
    free(frames);
    free(frame_offsets);
}

/* Makes steps of 0..255 bytes, so that offsets are often good; one bit of the choices leaves them as they came. */
static void fuzz_adds_from(const uint8_t *data, size_t size, int64_t digest_type, size_t count, int raw) {
    if (size < count * 8) {
        return;
    }
    uint8_t *offsets = exact(count * 8);
    int64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        at += data[i];
        memcpy(offsets + 8 * i, &at, 8);
    }
    if (raw) {
        memcpy(offsets, data, count * 8);
    }
    bk_adds adds = {
        .payloads = data,
        .payloads_size = size,
        .offsets = offsets,
        .offsets_size = count * 8,
        .ledger_id = 7,
        .first_entry_id = 0,
        .last_add_confirmed = -1,
        .length_before = 0,
        .digest_type = digest_type,
        .hmac_key = key,
        .hmac_key_size = sizeof key,
        .master_key = key,
        .master_key_size = sizeof key,
        .flags = 6,
    };
    fuzz_adds(&adds);
    free(offsets);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bk_digest_init();
    if (size < 8) {
        return 0;
    }
    size_t rest = size - 8;
    uint8_t *copy = exact(rest); /* its own allocation: reads before and after it are seen too */
    memcpy(copy, data + 8, rest);
    fuzz_scan(copy, rest, (int64_t)bk_load_be32(data));
    bk_entries entries = {
        .data = copy,
        .size = rest,
        .header_bytes = data[4] % 32,
        .ledger_id = data[6],
        .digest_type = data[5] % 6,
        .hmac_key = key,
        .hmac_key_size = sizeof key,
    };
    fuzz_entries(&entries);
    fuzz_adds_from(copy, rest, data[5] % 6, data[6] % 8, data[7] & 1);
    free(copy);
    return 0;
}
