#include "runs.h"

#include <string.h>

#include "digest.h"

#define ADD_WORD   0x02010000u /* protocol version 2, opcode, flags 0 */
#define READ_WORD  0x02020000u
#define BATCH_WORD 0x02070000u
#define FLAG_FENCE 1

#define RESPONSE_BYTES       24 /* word, code, ledger, entry */
#define BATCH_RESPONSE_BYTES 32 /* and the request id */
#define READ_REQUEST_BYTES   20 /* word, ledger, entry */
#define ADD_HEAD_BYTES       (4 + BK_KEY_BYTES)

/* --- one frame ---------------------------------------------------------------------------------------------------- */

/* These set all but begin and end. BK_RUN_BATCH is never joined, so its end needs no care either. */
static inline bk_run other(void) {
    return (bk_run){.kind = BK_RUN_OTHER, .ledger_id = -1, .entry_id = -1};
}

static inline bk_run known(int kind, const uint8_t *ids, int64_t count, int64_t code) {
    return (bk_run){
        .kind = kind, .ledger_id = bk_load_be64(ids), .entry_id = bk_load_be64(ids + 8), .count = count, .code = code};
}

static inline bk_run response_of(const uint8_t *payload, size_t size) {
    if (size < RESPONSE_BYTES || bk_load_be32(payload + 4) != 0) {
        return other();
    }
    uint32_t word = bk_load_be32(payload);
    if (word == ADD_WORD && size == RESPONSE_BYTES) {
        return known(BK_RUN_ADDS, payload + 8, 1, 0);
    }
    if (word == READ_WORD && size >= RESPONSE_BYTES + BK_ENTRY_HEADER_BYTES) {
        return known(BK_RUN_READS, payload + 8, 1, 1);
    }
    if (word == BATCH_WORD && size >= BATCH_RESPONSE_BYTES) {
        return known(BK_RUN_BATCH, payload + 8, bk_load_be64(payload + RESPONSE_BYTES), 0);
    }
    return other();
}

static inline bk_run request_of(const uint8_t *payload, size_t size) {
    if (size < READ_REQUEST_BYTES) {
        return other();
    }
    uint32_t word = bk_load_be32(payload);
    int64_t flags = word & 0xFFFF;
    if ((word & 0xFFFF0000u) == ADD_WORD && size >= ADD_HEAD_BYTES + BK_ENTRY_HEADER_BYTES) {
        return known(BK_RUN_ADDS, payload + ADD_HEAD_BYTES, 1, flags);
    }
    if ((word & 0xFFFF0000u) == READ_WORD && !(flags & FLAG_FENCE)) {
        return known(BK_RUN_READS, payload + 4, 1, flags);
    }
    return other();
}

static inline int join_request(const uint8_t *data, bk_run *run, const bk_run *next) {
    if ((run->kind != BK_RUN_ADDS && run->kind != BK_RUN_READS) || next->kind != run->kind ||
        next->ledger_id != run->ledger_id || next->code != run->code || next->entry_id - run->count != run->entry_id) {
        return 0;
    }
    if (run->kind == BK_RUN_ADDS && memcmp(data + run->begin + 8, data + next->begin + 8, BK_KEY_BYTES) != 0) {
        return 0;
    }
    run->count++;
    return 1;
}

static inline int join_read(bk_run *run, int64_t ahead) {
    if (run->count == 1 && ahead >= 1 && ahead <= BK_STEP_MAX) {
        run->code = ahead;
    } else if (run->count == 1 || ahead != run->count * run->code) {
        return 0;
    }
    run->count++;
    return 1;
}

static inline int join_add(bk_run *run, int64_t ahead) {
    if (run->kind == BK_RUN_ADDS && ahead == run->count) {
        run->count++;
        return 1;
    }
    if (ahead < run->count || ahead >= BK_SPAN_MAX) {
        return 0;
    }
    run->kind = BK_RUN_SPARSE_ADDS;
    run->count = ahead + 1;
    return 1;
}

static inline int join_response(const uint8_t *data, bk_run *run, const bk_run *next) {
    (void)data;
    if (run->ledger_id != next->ledger_id) {
        return 0;
    }
    int64_t ahead = next->entry_id - run->entry_id; /* both are 0 or more where it is used */
    if (next->kind == BK_RUN_READS) {
        return run->kind == BK_RUN_READS && join_read(run, ahead);
    }
    return next->kind == BK_RUN_ADDS && (run->kind == BK_RUN_ADDS || run->kind == BK_RUN_SPARSE_ADDS) &&
           join_add(run, ahead);
}

/* --- all frames --------------------------------------------------------------------------------------------------- */

static inline bk_scan_status scan(const uint8_t *data, size_t start, size_t stop, int64_t frame_bytes_max, bk_run *runs,
                                  size_t capacity, bk_scan_result *result, bk_run_of run_at, bk_run_join join) {
    bk_run run = other(); /* the one under way: runs[count - 1] as far as its end */
    size_t count = 0, at = start;
    bk_scan_status status = BK_SCAN_OK;
    result->frame_bytes = 0;
    while (stop - at >= BK_LENGTH_BYTES) {
        uint32_t size = bk_load_be32(data + at);
        uint64_t frame_bytes = (uint64_t)size + BK_LENGTH_BYTES;
        if (size == 0) {
            status = BK_SCAN_EMPTY;
            break;
        }
        if (frame_bytes > (uint64_t)frame_bytes_max) {
            result->frame_bytes = frame_bytes;
            status = BK_SCAN_TOO_LONG;
            break;
        }
        if (stop - at < frame_bytes) {
            result->frame_bytes = frame_bytes;
            break;
        }
        bk_run next = run_at(data + at + BK_LENGTH_BYTES, size);
        if (next.ledger_id < 0 || next.entry_id < 0) {
            next = other();
        }
        next.begin = (int64_t)at;
        next.end = (int64_t)(at + frame_bytes);
        if (join(data, &run, &next)) {
            run.end = next.end;
        } else {
            if (count == capacity) {
                status = BK_SCAN_NO_ROOM;
                break;
            }
            if (count > 0) {
                runs[count - 1] = run;
            }
            count++;
            run = next;
            if (run.kind == BK_RUN_OTHER) {
                run.begin += BK_LENGTH_BYTES;
            } else if (run.kind == BK_RUN_BATCH) {
                run.begin += BK_LENGTH_BYTES + BATCH_RESPONSE_BYTES;
            }
        }
        at += (size_t)frame_bytes;
    }
    if (count > 0) {
        runs[count - 1] = run;
    }
    result->count = count;
    result->consumed = at;
    return status;
}

static int bad_limit(int64_t frame_bytes_max) {
    return frame_bytes_max <= BK_LENGTH_BYTES || frame_bytes_max > BK_FRAME_MAX;
}

bk_scan_status bk_scan_runs(const uint8_t *data, size_t start, size_t stop, int64_t frame_bytes_max, bk_run *runs,
                            size_t capacity, bk_scan_result *result, bk_run_of run_of, bk_run_join join) {
    memset(result, 0, sizeof *result);
    if (bad_limit(frame_bytes_max)) {
        return BK_SCAN_BAD_LIMIT;
    }
    return scan(data, start, stop, frame_bytes_max, runs, capacity, result, run_of, join);
}

bk_scan_status bk_scan_responses(const uint8_t *data, size_t start, size_t stop, int64_t frame_bytes_max, bk_run *runs,
                                 size_t capacity, bk_scan_result *result) {
    memset(result, 0, sizeof *result);
    if (bad_limit(frame_bytes_max)) {
        return BK_SCAN_BAD_LIMIT;
    }
    return scan(data, start, stop, frame_bytes_max, runs, capacity, result, response_of, join_response);
}

bk_scan_status bk_scan_requests(const uint8_t *data, size_t start, size_t stop, int64_t frame_bytes_max, bk_run *runs,
                                size_t capacity, bk_scan_result *result) {
    memset(result, 0, sizeof *result);
    if (bad_limit(frame_bytes_max)) {
        return BK_SCAN_BAD_LIMIT;
    }
    return scan(data, start, stop, frame_bytes_max, runs, capacity, result, request_of, join_request);
}

/* --- offsets ------------------------------------------------------------------------------------------------------ */

bk_run_status bk_measure_run(const uint8_t *offsets, size_t offsets_size, bk_run_result *result) {
    memset(result, 0, sizeof *result);
    if (offsets_size < 16 || offsets_size % 8 != 0) {
        return BK_RUN_BAD_OFFSETS_SIZE;
    }
    int64_t before, largest = 0;
    memcpy(&before, offsets, 8);
    result->first = result->value = before;
    if (before < 0) {
        return BK_RUN_OFFSET_NEGATIVE;
    }
    for (size_t i = 1; i < offsets_size / 8; i++) {
        int64_t offset;
        memcpy(&offset, offsets + 8 * i, 8);
        if (offset < before) {
            result->index = i;
            result->value = offset;
            return BK_RUN_OFFSET_DECREASING;
        }
        largest = offset - before > largest ? offset - before : largest;
        before = offset;
    }
    result->last = before;
    result->largest = largest;
    return BK_RUN_OK;
}

/* --- frames from numbers ------------------------------------------------------------------------------------------ */

static bk_run_status check_ids(const bk_heads *heads) {
    if (heads->ledger_id < 0) {
        return BK_RUN_BAD_LEDGER;
    }
    if (heads->first_entry_id < 0) {
        return BK_RUN_BAD_ENTRY;
    }
    return heads->count < 0 ? BK_RUN_BAD_COUNT : BK_RUN_OK;
}

static bk_run_status check_heads(const bk_heads *heads, int64_t step, int number_fits, bk_run_status bad_number) {
    bk_run_status status = check_ids(heads);
    if (status != BK_RUN_OK) {
        return status;
    }
    if (heads->count > BK_RUN_COUNT_MAX) {
        return BK_RUN_BAD_COUNT;
    }
    if (!number_fits) {
        return bad_number;
    }
    /* The last id itself may be INT64_MAX. */
    int64_t ahead = heads->count > 0 ? (heads->count - 1) * step : 0;
    return heads->first_entry_id > INT64_MAX - ahead ? BK_RUN_ENTRY_OVERFLOW : BK_RUN_OK;
}

static bk_run_status check_reads(const bk_heads *heads, int number_fits, bk_run_status bad_number) {
    bk_run_status status = check_ids(heads);
    if (status == BK_RUN_OK && heads->count <= BK_RUN_COUNT_MAX && (heads->step < 1 || heads->step > INT32_MAX)) {
        status = BK_RUN_BAD_STEP;
    }
    return status == BK_RUN_OK ? check_heads(heads, heads->step, number_fits, bad_number) : status;
}

bk_run_status bk_check_reads(const bk_heads *heads) {
    return check_reads(heads, 1, BK_RUN_OK);
}

bk_run_status bk_frame_reads(const bk_heads *heads, uint8_t *frames, size_t capacity, bk_run_result *result) {
    const size_t frame_bytes = BK_LENGTH_BYTES + READ_REQUEST_BYTES;
    memset(result, 0, sizeof *result);
    /* A fencing read carries the master key. */
    int flags_fit = heads->number >= 0 && heads->number <= 0xFFFF && !(heads->number & FLAG_FENCE);
    bk_run_status status = check_reads(heads, flags_fit, BK_RUN_BAD_FLAGS);
    if (status != BK_RUN_OK) {
        return status;
    }
    result->frame_bytes = (uint64_t)heads->count * frame_bytes;
    if (frames == NULL) {
        return BK_RUN_OK;
    }
    if (capacity < result->frame_bytes) {
        return BK_RUN_NO_ROOM;
    }
    for (int64_t i = 0; i < heads->count; i++, frames += frame_bytes) {
        bk_store_be32(frames, READ_REQUEST_BYTES);
        bk_store_be32(frames + 4, READ_WORD | (uint32_t)heads->number);
        bk_store_be64(frames + 8, heads->ledger_id);
        bk_store_be64(frames + 16, heads->first_entry_id + i * heads->step);
    }
    return BK_RUN_OK;
}

static void write_response_head(uint8_t *frame, uint32_t body_bytes, uint32_t word, int64_t code, int64_t ledger_id,
                                int64_t entry_id) {
    bk_store_be32(frame, RESPONSE_BYTES + body_bytes);
    bk_store_be32(frame + 4, word);
    bk_store_be32(frame + 8, (uint32_t)code);
    bk_store_be64(frame + 12, ledger_id);
    bk_store_be64(frame + 20, entry_id);
}

bk_run_status bk_frame_add_responses(const bk_heads *heads, uint8_t *frames, size_t capacity, bk_run_result *result) {
    const size_t frame_bytes = BK_LENGTH_BYTES + RESPONSE_BYTES;
    memset(result, 0, sizeof *result);
    bk_run_status status =
        check_heads(heads, 1, heads->number >= INT32_MIN && heads->number <= INT32_MAX, BK_RUN_BAD_CODE);
    if (status != BK_RUN_OK) {
        return status;
    }
    result->frame_bytes = (uint64_t)heads->count * frame_bytes;
    if (frames == NULL) {
        return BK_RUN_OK;
    }
    if (capacity < result->frame_bytes) {
        return BK_RUN_NO_ROOM;
    }
    for (int64_t i = 0; i < heads->count; i++, frames += frame_bytes) {
        write_response_head(frames, 0, ADD_WORD, heads->number, heads->ledger_id, heads->first_entry_id + i);
    }
    return BK_RUN_OK;
}

bk_run_status bk_entry_bits(const uint8_t *frames, size_t size, int64_t first_entry_id, int64_t span, uint8_t *bits,
                            bk_run_result *result) {
    const size_t frame_bytes = BK_LENGTH_BYTES + RESPONSE_BYTES;
    const bk_heads heads = {.first_entry_id = first_entry_id, .count = span};
    memset(result, 0, sizeof *result);
    if (size % frame_bytes != 0) {
        return BK_RUN_BAD_FRAMES;
    }
    bk_run_status status = check_heads(&heads, 1, 1, BK_RUN_BAD_CODE);
    if (status != BK_RUN_OK) {
        return status;
    }
    result->frame_bytes = ((uint64_t)span + 7) / 8;
    if (bits == NULL) {
        return BK_RUN_OK;
    }
    memset(bits, 0, (size_t)result->frame_bytes);
    for (size_t at = 0; at < size; at += frame_bytes) {
        int64_t entry_id = bk_load_be64(frames + at + frame_bytes - 8);
        if (entry_id < first_entry_id || entry_id - first_entry_id >= span) {
            result->value = entry_id;
            return BK_RUN_ENTRY_OUTSIDE;
        }
        uint64_t bit = (uint64_t)(entry_id - first_entry_id);
        bits[bit / 8] |= (uint8_t)(1u << bit % 8);
    }
    return BK_RUN_OK;
}

bk_run_status bk_split_bodies(const uint8_t *data, size_t size, bk_span *spans, size_t capacity,
                              bk_run_result *result) {
    memset(result, 0, sizeof *result);
    for (size_t at = 0; at < size; result->index++) {
        if (size - at < BK_LENGTH_BYTES) {
            return BK_RUN_CUT;
        }
        size_t body_bytes = bk_load_be32(data + at);
        at += BK_LENGTH_BYTES;
        if (size - at < body_bytes) {
            return BK_RUN_CUT;
        }
        if (spans != NULL) {
            if (result->index >= capacity) {
                return BK_RUN_NO_ROOM;
            }
            spans[result->index] = (bk_span){.data = data + at, .size = body_bytes};
        }
        at += body_bytes;
    }
    return BK_RUN_OK;
}

bk_run_status bk_take_bodies(const uint8_t *data, size_t size, uint8_t *out, size_t capacity, bk_run_result *result) {
    memset(result, 0, sizeof *result);
    result->last = INT64_MIN;
    for (size_t at = 0; at < size; result->index++) {
        if (size - at < BK_LENGTH_BYTES) {
            return BK_RUN_CUT;
        }
        size_t payload_bytes = bk_load_be32(data + at);
        at += BK_LENGTH_BYTES;
        if (size - at < payload_bytes || payload_bytes < ADD_HEAD_BYTES + BK_ENTRY_HEADER_BYTES) {
            return BK_RUN_CUT;
        }
        size_t body_bytes = payload_bytes - ADD_HEAD_BYTES;
        const uint8_t *body = data + at + ADD_HEAD_BYTES;
        if (out != NULL) {
            if (capacity - result->frame_bytes < BK_LENGTH_BYTES + body_bytes) {
                return BK_RUN_NO_ROOM;
            }
            bk_store_be32(out + result->frame_bytes, (uint32_t)body_bytes);
            memcpy(out + result->frame_bytes + BK_LENGTH_BYTES, body, body_bytes);
            body = out + result->frame_bytes + BK_LENGTH_BYTES; /* what is told is what was copied */
        }
        int64_t last_add_confirmed = bk_load_be64(body + 16);
        result->last = last_add_confirmed > result->last ? last_add_confirmed : result->last;
        result->frame_bytes += BK_LENGTH_BYTES + body_bytes;
        at += payload_bytes;
    }
    return result->index == 0 ? BK_RUN_CUT : BK_RUN_OK;
}

bk_run_status bk_frame_read_responses(const bk_heads *heads, const bk_span *bodies, uint8_t *frames, size_t capacity,
                                      bk_run_result *result) {
    const size_t head_bytes = BK_LENGTH_BYTES + RESPONSE_BYTES;
    memset(result, 0, sizeof *result);
    bk_run_status status = check_ids(heads);
    if (status != BK_RUN_OK) {
        return status;
    }
    for (size_t i = 0; i < (size_t)heads->count; i++) {
        if (bodies[i].size > (size_t)BK_FRAME_MAX - head_bytes) {
            result->index = i;
            result->value = (int64_t)bodies[i].size;
            return BK_RUN_BODY_TOO_LONG;
        }
        result->frame_bytes += head_bytes + bodies[i].size;
    }
    if (heads->count > 0 && heads->first_entry_id > INT64_MAX - (heads->count - 1)) {
        return BK_RUN_ENTRY_OVERFLOW;
    }
    if (frames == NULL) {
        return BK_RUN_OK;
    }
    if (capacity < result->frame_bytes) {
        return BK_RUN_NO_ROOM;
    }
    for (int64_t i = 0; i < heads->count; i++) {
        write_response_head(frames, (uint32_t)bodies[i].size, READ_WORD, 0, heads->ledger_id,
                            heads->first_entry_id + i);
        memcpy(frames + head_bytes, bodies[i].data, bodies[i].size);
        frames += head_bytes + bodies[i].size;
    }
    return BK_RUN_OK;
}
