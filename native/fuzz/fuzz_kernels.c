/* libFuzzer entry for frames.c, entries.c, runs.c and lanes.c.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -Inative native/fuzz/fuzz_kernels.c \
 *       native/crc32c.c native/digest.c native/frames.c native/entries.c native/runs.c native/lanes.c native/v3.c -o
 * fuzz_kernels
 * &&
 * ./fuzz_kernels
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
#include "lanes.h"
#include "runs.h"
#include "v3.h"

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

/* All runs at once, and one at a time: both must say the same, and all of it must lie inside. */
static void fuzz_runs(bk_scan_function scan, const uint8_t *data, size_t size, int64_t limit) {
    bk_scan_result whole, step;
    size_t capacity = size / 5 + 1, at = 0;
    bk_run *runs = (bk_run *)exact(capacity * sizeof *runs);
    bk_scan_status status = scan(data, 0, size, limit, runs, capacity, &whole);
    expect(status != BK_SCAN_NO_ROOM && whole.consumed <= size && whole.count <= capacity);
    for (size_t i = 0; i < whole.count; i++) {
        bk_run run;
        bk_scan_status step_status = scan(data, at, size, limit, &run, 1, &step);
        expect(step.count == 1 && (step_status == BK_SCAN_NO_ROOM) == (i + 1 < whole.count));
        expect(memcmp(&run, &runs[i], sizeof run) == 0);
        expect((size_t)run.begin >= at && run.begin <= run.end && (size_t)run.end == step.consumed);
        at = step.consumed;
    }
    expect(at == whole.consumed);
    free(runs);
}

static void fuzz_offsets(const uint8_t *data, size_t size) {
    bk_run_result found;
    if (bk_measure_run(data, size, &found) == BK_RUN_OK) {
        expect(found.first >= 0 && found.first <= found.last && found.largest <= found.last - found.first);
    }
}

static void fuzz_bodies(const uint8_t *data, size_t size, int64_t count) {
    bk_span spans[8];
    bk_heads heads = {.ledger_id = 7, .first_entry_id = 3, .count = count};
    bk_run_result made;
    bk_scan_result found;
    for (int64_t i = 0; i < count; i++) {
        size_t start = size * (size_t)i / 8;
        spans[i] = (bk_span){.data = data + start, .size = size - start};
    }
    expect(bk_frame_read_responses(&heads, spans, NULL, 0, &made) == BK_RUN_OK);
    size_t room = (size_t)made.frame_bytes;
    uint8_t *frames = exact(room);
    expect(bk_frame_read_responses(&heads, spans, frames, room, &made) == BK_RUN_OK);
    expect(bk_scan_frames(frames, room, BK_FRAME_MAX, NULL, 0, &found) == BK_SCAN_OK);
    expect(found.count == (size_t)count && found.consumed == room);
    if (room > 0) {
        expect(bk_frame_read_responses(&heads, spans, frames, room - 1, &made) == BK_RUN_NO_ROOM);
    }
    free(frames);
}

static void fuzz_joined(const uint8_t *data, size_t size, int64_t count) {
    bk_run_result counted, made;
    if (bk_split_bodies(data, size, NULL, 0, &counted) == BK_RUN_OK) {
        bk_span *spans = (bk_span *)exact(counted.index * sizeof *spans);
        expect(bk_split_bodies(data, size, spans, counted.index, &made) == BK_RUN_OK && made.index == counted.index);
        if (counted.index > 0) {
            expect(bk_split_bodies(data, size, spans, counted.index - 1, &made) == BK_RUN_NO_ROOM);
        }
        free(spans);
    }
    if (bk_take_bodies(data, size, NULL, 0, &counted) == BK_RUN_OK) {
        size_t room = (size_t)counted.frame_bytes;
        uint8_t *bodies = exact(room);
        expect(bk_take_bodies(data, size, bodies, room, &made) == BK_RUN_OK && made.frame_bytes == room);
        expect(made.last == counted.last);
        expect(bk_split_bodies(bodies, room, NULL, 0, &made) == BK_RUN_OK && made.index == counted.index);
        expect(bk_take_bodies(data, size, bodies, room - 1, &made) == BK_RUN_NO_ROOM);
        free(bodies);
    }
    size_t position;
    if (bk_skip_frames(data, size / 7, size, (uint64_t)count, &position) == BK_LANES_OK) {
        expect(position >= size / 7 && position <= size);
    }
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

/* In two parts, and with less room than the items need: what is taken has its place, and nothing is written past it. */
static void fuzz_parts(const bk_entries *entries, size_t room, size_t value_bytes) {
    bk_entries_result first, second;
    bk_entries part = *entries;
    bk_columns columns = {
        .count = room,
        .value_bytes = value_bytes,
        .offsets = exact((room + 1) * 8),
        .values = exact(value_bytes),
    };
    memset(columns.offsets, 0, 8);
    part.header_bytes = 0;
    part.first_entry_id = entries->first_entry_id < 0 ? 0 : entries->first_entry_id;
    part.size = entries->size / 2;
    if (bk_unpack_part(&part, &columns, 0, &first) == BK_ENTRIES_OK) {
        expect(first.count <= room && first.value_bytes <= value_bytes && first.consumed <= part.size);
        expect(first.next == 0 ? first.consumed == part.size : first.consumed < part.size);
        part.data += first.consumed;
        part.size = entries->size - first.consumed;
        if (bk_unpack_part(&part, &columns, first.count, &second) == BK_ENTRIES_OK) {
            expect(second.count >= first.count && second.count <= room && second.value_bytes <= value_bytes);
            expect(second.consumed <= part.size);
        }
    }
    free(columns.offsets);
    free(columns.values);
}

static void fuzz_entries(const bk_entries *entries) {
    bk_entries_result measured, unpacked;
    fuzz_parts(entries, entries->size / 40, entries->size);
    fuzz_parts(entries, 1, entries->size / 3);
    if (bk_measure_entries(entries, &measured) != BK_ENTRIES_OK) {
        return;
    }
    bk_entries_status status = unpack(entries, measured.count, measured.value_bytes, &unpacked);
    expect(status == BK_ENTRIES_OK || status == BK_ENTRIES_WRONG_DIGEST || status == BK_ENTRIES_WRONG_LEDGER ||
           status == BK_ENTRIES_WRONG_ENTRY);
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
        .first_entry_id = adds->first_entry_id,
        .step = 1,
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

static void fuzz_skip(const uint8_t *data, size_t size, uint64_t count) {
    size_t position, next;
    if (bk_skip_frames(data, 0, size, count, &position) != BK_LANES_OK) {
        return;
    }
    expect(position <= size && position >= 4 * count);
    if (bk_skip_frames(data, 0, size, count + 1, &next) == BK_LANES_OK) {
        expect(bk_skip_frames(data, position, size, 1, &position) == BK_LANES_OK && position == next);
    }
}

/* Lanes of two parts each, whose offsets are the data itself or steps of 0..255 bytes. */
static void fuzz_lanes(const uint8_t *data, size_t size, size_t lane_count, size_t entries, int raw) {
    bk_part parts[16];
    bk_lane lanes[8];
    size_t marks = entries + 1;
    uint8_t *offsets = exact(marks * 8);
    int64_t at = 0;
    if (size < marks * 8) {
        free(offsets);
        return;
    }
    for (size_t i = 0; i < marks; i++, at += data[i]) {
        memcpy(offsets + 8 * i, raw ? (const void *)(data + 8 * i) : (const void *)&at, 8);
    }
    for (size_t i = 0; i < lane_count; i++) {
        size_t cut = i * entries / lane_count;
        parts[2 * i] = (bk_part){.values = data, .size = size, .offsets = offsets, .offsets_size = 8 * (cut + 1)};
        parts[2 * i + 1] = parts[2 * i];
        parts[2 * i + 1].offsets = offsets + 8 * cut;
        parts[2 * i + 1].offsets_size = 8 * (marks - cut);
        lanes[i] = (bk_lane){.parts = &parts[2 * i], .count = 2};
    }
    bk_lanes_result found;
    if (bk_measure_lanes(lanes, lane_count, &found) == BK_LANES_OK) {
        expect(found.entries == lane_count * entries);
        uint8_t *out = exact((size_t)(found.entries + 1) * 8), *values = exact((size_t)found.value_bytes);
        expect(bk_interleave(lanes, lane_count, &found, out, values) == BK_LANES_OK);
        if (found.value_bytes > 0) {
            found.value_bytes--;
            expect(bk_interleave(lanes, lane_count, &found, out, values) == BK_LANES_NO_ROOM);
        }
        free(out);
        free(values);
    }
    free(offsets);
}

/* What a scan calls a run is one: its ids lie within 64 bits, and whoever takes the run next does not refuse it. */
static void check_response_run(const uint8_t *data, const bk_run *run) {
    bk_run_result found;
    if (run->kind == BK_RUN_OTHER || run->kind == BK_RUN_BATCH) {
        return;
    }
    int64_t ahead = run->kind == BK_RUN_READS ? (run->count - 1) * run->code : run->count - 1;
    expect(run->ledger_id >= 0 && run->entry_id >= 0 && run->count > 0 && run->entry_id <= INT64_MAX - ahead);
    if (run->kind != BK_RUN_SPARSE_ADDS) {
        return;
    }
    expect(bk_entry_bits(data + run->begin, (size_t)(run->end - run->begin), run->entry_id, run->count, NULL, &found) ==
           BK_RUN_OK);
    uint8_t *bits = exact((size_t)found.frame_bytes);
    expect(bk_entry_bits(data + run->begin, (size_t)(run->end - run->begin), run->entry_id, run->count, bits, &found) ==
           BK_RUN_OK);
    free(bits);
}

static void fuzz_response_runs(const uint8_t *data, size_t size, int64_t limit) {
    bk_scan_result found;
    bk_run runs[16];
    size_t at = 0;
    bk_scan_status status = BK_SCAN_NO_ROOM;
    while (status == BK_SCAN_NO_ROOM) {
        status = bk_scan_responses(data, at, size, limit, runs, 16, &found);
        for (size_t i = 0; i < found.count; i++) {
            check_response_run(data, &runs[i]);
        }
        at = found.consumed;
    }
}

static void fuzz_bits(const uint8_t *data, size_t size, int64_t first, int64_t span) {
    bk_run_result found;
    size = size / 28 * 28;
    expect(bk_entry_bits(data, size, first, span, NULL, &found) == BK_RUN_OK);
    uint8_t *bits = exact((size_t)found.frame_bytes);
    bk_run_status status = bk_entry_bits(data, size, first, span, bits, &found);
    expect(status == BK_RUN_OK || status == BK_RUN_ENTRY_OUTSIDE);
    free(bits);
}

/* Any bytes, and the runs of reads that are found in them. */
static void fuzz_reads_v3(const uint8_t *data, size_t size, size_t cut) {
    bk_v3_reads measured, written;
    bk_scan_result found;
    bk_run runs[16];
    bk_scan_status status = bk_scan_responses_v3(data, 0, size, BK_FRAME_MAX, runs, 16, &found);
    (void)bk_read_frames_v3(data, cut < size ? cut : size, size, NULL, 0, &measured);
    for (size_t i = 0; (status == BK_SCAN_OK || status == BK_SCAN_NO_ROOM) && i < found.count; i++) {
        size_t begin = (size_t)runs[i].begin, end = (size_t)runs[i].end;
        if (runs[i].kind != BK_RUN_READS) {
            continue;
        }
        expect(bk_read_frames_v3(data, begin, end, NULL, 0, &measured) == BK_V3_READS_OK);
        expect((int64_t)measured.count == runs[i].count && measured.step == runs[i].step);
        size_t room = (size_t)measured.frame_bytes;
        uint8_t *frames = exact(room);
        expect(bk_read_frames_v3(data, begin, end, frames, room, &written) == BK_V3_READS_OK);
        expect(bk_read_frames_v3(data, begin, end, frames, room - 1, &written) == BK_V3_READS_NO_ROOM);
        free(frames);
    }
}

/* Frames of 0..255 bytes, which need not be adds, or offsets as they came. */
static void fuzz_selection(const uint8_t *data, size_t size, int64_t ensemble_size, size_t count, uint8_t choice) {
    size_t marks = count + 1;
    int64_t at = 0;
    if (size < marks * 8) {
        return;
    }
    uint8_t *offsets = exact(marks * 8);
    for (size_t i = 0; i < marks; i++, at += data[i]) {
        memcpy(offsets + 8 * i, choice & 1 ? (const void *)(data + 8 * i) : (const void *)&at, 8);
    }
    bk_v3_adds adds = {.adds = {.frames = data,
                                .size = size,
                                .offsets = offsets,
                                .offsets_size = marks * 8,
                                .start = choice % 4,
                                .first_entry_id = choice,
                                .position = choice / 4 % 4,
                                .ensemble_size = ensemble_size,
                                .write_quorum_size = choice / 16 % 4},
                       .ledger_id = (int64_t)choice << 20,
                       .first_number = choice,
                       .recovery = choice & 2,
                       .deferred_sync = choice & 4};
    bk_lanes_result found;
    if (bk_select_frames(&adds.adds, NULL, 0, &found) == BK_LANES_OK) {
        size_t room = (size_t)found.value_bytes;
        uint8_t *out = exact(room);
        expect(bk_select_frames(&adds.adds, out, room, &found) == BK_LANES_OK);
        expect(room == 0 || bk_select_frames(&adds.adds, out, room - 1, &found) == BK_LANES_NO_ROOM);
        free(out);
    }
    if (bk_frame_adds_v3(&adds, NULL, 0, &found) == BK_LANES_OK) {
        size_t room = (size_t)found.value_bytes;
        uint8_t *out = exact(room);
        expect(bk_frame_adds_v3(&adds, out, room, &found) == BK_LANES_OK);
        expect(room == 0 || bk_frame_adds_v3(&adds, out, room - 1, &found) == BK_LANES_NO_ROOM);
        free(out);
    }
    bk_heads reads = {.ledger_id = adds.ledger_id,
                      .first_entry_id = choice,
                      .count = choice % 9,
                      .step = choice % 5,
                      .number = (int64_t)choice << (choice % 40)};
    bk_run_result made;
    if (bk_frame_reads_v3(&reads, NULL, 0, &made) == BK_RUN_OK) {
        size_t room = (size_t)made.frame_bytes;
        uint8_t *out = exact(room);
        expect(bk_frame_reads_v3(&reads, out, room, &made) == BK_RUN_OK && made.frame_bytes == room);
        expect(room == 0 || bk_frame_reads_v3(&reads, out, room - 1, &made) == BK_RUN_NO_ROOM);
        free(out);
    }
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
        .first_entry_id = (int64_t)(data[7] & 3) - 1,
        .step = 1 + data[7] / 64,
    };
    fuzz_entries(&entries);
    fuzz_runs(bk_scan_responses, copy, rest, (int64_t)bk_load_be32(data));
    fuzz_runs(bk_scan_requests, copy, rest, (int64_t)bk_load_be32(data));
    fuzz_runs(bk_scan_responses_v3, copy, rest, (int64_t)bk_load_be32(data));
    fuzz_response_runs(copy, rest, (int64_t)bk_load_be32(data));
    fuzz_bits(copy, rest, data[4], data[6]);
    fuzz_bits(copy, rest, INT64_MAX - data[4] - data[6], data[6]);
    fuzz_reads_v3(copy, rest, data[6]);
    fuzz_selection(copy, rest, data[5] % 6, data[6] % 32, data[7]);
    fuzz_offsets(copy, rest);
    fuzz_skip(copy, rest, data[6] % 16);
    fuzz_lanes(copy, rest, data[5] % 6, data[6] % 32, data[7] & 1);
    fuzz_bodies(copy, rest, data[6] % 8);
    fuzz_joined(copy, rest, data[6]);
    fuzz_adds_from(copy, rest, data[5] % 6, data[6] % 8, data[7] & 1);
    free(copy);
    return 0;
}
