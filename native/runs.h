/* Runs of v2 messages for consecutive entries (wire-protocol.md 5): found in a receive buffer, and built from numbers.
 */
#ifndef BK_RUNS_H
#define BK_RUNS_H

#include <stddef.h>
#include <stdint.h>

#include "frames.h"

enum { BK_RUN_OTHER = 0, BK_RUN_ADDS = 1, BK_RUN_READS = 2, BK_RUN_BATCH = 3, BK_RUN_SPARSE_ADDS = 4 };

#define BK_STEP_MAX 64               /* from one read to the next of a run */
#define BK_SPAN_MAX INT64_C(0x10000) /* of BK_RUN_SPARSE_ADDS */

/* What scan_responses and scan_requests of pure.py call an item. */
typedef struct {
    int64_t kind;
    int64_t ledger_id;
    int64_t entry_id; /* the first */
    int64_t count;    /* frames; of BK_RUN_BATCH the request id, of BK_RUN_SPARSE_ADDS the entries from first to last */
    int64_t code;     /* of requests the flags, of read responses the step */
    int64_t begin;    /* positions in data */
    int64_t end;
    int64_t step; /* while a run of v3 reads is put together */
} bk_run;

typedef bk_scan_status (*bk_scan_function)(const uint8_t *data, size_t start, size_t stop, int64_t frame_bytes_max,
                                           bk_run *runs, size_t capacity, bk_scan_result *result);

/* The runs of [start, stop) of data, where start <= stop are inside it. result->count is the number of runs written,
 * result->consumed the position just after their last frame, and result->frame_bytes that of the incomplete frame there
 * (0: its length is not there either). BK_SCAN_NO_ROOM: there are more runs; calling again from result->consumed goes
 * on as if there had been room, because a run that has ended is never continued. Every byte is read once only. */
bk_scan_status bk_scan_responses(const uint8_t *data, size_t start, size_t stop, int64_t frame_bytes_max, bk_run *runs,
                                 size_t capacity, bk_scan_result *result);
bk_scan_status bk_scan_requests(const uint8_t *data, size_t start, size_t stop, int64_t frame_bytes_max, bk_run *runs,
                                size_t capacity, bk_scan_result *result);

/* What these have in common. `run_of` sets all but begin and end; `join` says whether `next`, a single frame, belongs
 * to `run`, and puts it there, all but its end. */
typedef bk_run (*bk_run_of)(const uint8_t *payload, size_t size);
typedef int (*bk_run_join)(const uint8_t *data, bk_run *run, const bk_run *next);
bk_scan_status bk_scan_runs(const uint8_t *data, size_t start, size_t stop, int64_t frame_bytes_max, bk_run *runs,
                            size_t capacity, bk_scan_result *result, bk_run_of run_of, bk_run_join join);

typedef enum {
    BK_RUN_OK = 0,
    BK_RUN_BAD_OFFSETS_SIZE,
    BK_RUN_OFFSET_NEGATIVE,   /* result->value: offset 0 */
    BK_RUN_OFFSET_DECREASING, /* result->index, result->value */
    BK_RUN_BAD_LEDGER,
    BK_RUN_BAD_ENTRY,
    BK_RUN_BAD_COUNT,
    BK_RUN_BAD_STEP,
    BK_RUN_BAD_FLAGS,
    BK_RUN_BAD_CODE,
    BK_RUN_BAD_NUMBER,
    BK_RUN_NUMBER_OVERFLOW,
    BK_RUN_ENTRY_OVERFLOW,
    BK_RUN_BODY_TOO_LONG, /* result->index, result->value: its bytes */
    BK_RUN_CUT,           /* result->index: the item that is cut off or too short */
    BK_RUN_BAD_FRAMES,
    BK_RUN_ENTRY_OUTSIDE, /* result->value: the entry */
    BK_RUN_NO_ROOM
} bk_run_status;

typedef struct {
    size_t index;
    int64_t value;
    int64_t first;
    int64_t last;
    int64_t largest;
    uint64_t frame_bytes;
} bk_run_result;

/* offsets: native int64 values, not below 0 and never decreasing, at least two. Sets first, last and largest step. */
bk_run_status bk_measure_run(const uint8_t *offsets, size_t offsets_size, bk_run_result *result);

#define BK_RUN_COUNT_MAX (INT64_C(1) << 20) /* of the functions that frame from numbers alone */

/* Fixed frames for `count` entries. */
typedef struct {
    int64_t ledger_id;
    int64_t first_entry_id;
    int64_t count;
    int64_t step;   /* from one entry id to the next; looked at for reads only */
    int64_t number; /* reads: flags; add responses: the code */
} bk_heads;

/* Plain read requests. Sets result->frame_bytes; with frames != NULL also writes that many bytes, at most capacity. */
bk_run_status bk_frame_reads(const bk_heads *heads, uint8_t *frames, size_t capacity, bk_run_result *result);

/* The checks of it that do not depend on the protocol. */
bk_run_status bk_check_reads(const bk_heads *heads);

/* Add responses, in the same way. */
bk_run_status bk_frame_add_responses(const bk_heads *heads, uint8_t *frames, size_t capacity, bk_run_result *result);

/* `frames`: v2 add responses, ids first_entry_id <= id < first_entry_id + span. Sets bit id - first_entry_id of each in
 * `bits`, which has (span + 7) / 8 bytes, the lowest bit of the first byte being first_entry_id's. result->frame_bytes:
 * that size; with bits == NULL nothing else is done but checking the numbers. */
bk_run_status bk_entry_bits(const uint8_t *frames, size_t size, int64_t first_entry_id, int64_t span, uint8_t *bits,
                            bk_run_result *result);

typedef struct {
    const uint8_t *data;
    size_t size;
} bk_span;

/* The spans of bodies behind their u32 lengths, which must be all there is; with spans == NULL it only counts them:
 * result->index. Otherwise there is room for `capacity`. */
bk_run_status bk_split_bodies(const uint8_t *data, size_t size, bk_span *spans, size_t capacity, bk_run_result *result);

/* From the frames of an item BK_RUN_ADDS of bk_scan_requests to their bodies, each behind its u32 length. Sets
 * result->frame_bytes, the room for that, and result->last, the greatest last add confirmed; writes if out != NULL. */
bk_run_status bk_take_bodies(const uint8_t *data, size_t size, uint8_t *out, size_t capacity, bk_run_result *result);

/* OK read responses, one for each body, in the same way; heads->number is not looked at. */
bk_run_status bk_frame_read_responses(const bk_heads *heads, const bk_span *bodies, uint8_t *frames, size_t capacity,
                                      bk_run_result *result);

#endif
