/* Adds and reads of protocol v3 (wire-protocol.md 4): many requests written at once, runs of responses found. */
#ifndef BK_V3_H
#define BK_V3_H

#include <stddef.h>
#include <stdint.h>

#include "frames.h"
#include "lanes.h"
#include "runs.h"

/* Adds that are framed as v2, as requests of v3. */
typedef struct {
    bk_selection adds;
    int64_t ledger_id;
    int64_t first_number; /* transaction id of the first one that is selected */
    int recovery;
    int deferred_sync;
} bk_v3_adds;

/* Sets result->value_bytes and result->entries, the number of requests; with out != NULL also writes them, at most
 * capacity bytes. */
bk_lanes_status bk_frame_adds_v3(const bk_v3_adds *adds, uint8_t *out, size_t capacity, bk_lanes_result *result);

/* As bk_frame_reads, as requests of v3; heads->number is the first transaction id. */
bk_run_status bk_frame_reads_v3(const bk_heads *heads, uint8_t *frames, size_t capacity, bk_run_result *result);

/* As bk_scan_responses. Runs are BK_RUN_ADDS and BK_RUN_READS, code being the first transaction id; begin and end are
 * those of whole frames. */
bk_scan_status bk_scan_responses_v3(const uint8_t *data, size_t start, size_t stop, int64_t frame_bytes_max,
                                    bk_run *runs, size_t capacity, bk_scan_result *result);

typedef struct {
    size_t count;
    uint64_t frame_bytes;
    int64_t step;    /* from the first entry to the second; 1 if there is none */
    int64_t max_lac; /* the highest that was told */
    int has_max_lac;
} bk_v3_reads;

typedef enum { BK_V3_READS_OK = 0, BK_V3_READS_BAD_FRAME, BK_V3_READS_NO_ROOM } bk_v3_reads_status;

/* The read responses [start, stop) of data, a run that bk_scan_responses_v3 found, as read responses of v2. Sets
 * `reads`; with out != NULL also writes reads->frame_bytes bytes, at most capacity. BK_V3_READS_BAD_FRAME: frame
 * reads->count is no such response. */
bk_v3_reads_status bk_read_frames_v3(const uint8_t *data, size_t start, size_t stop, uint8_t *out, size_t capacity,
                                     bk_v3_reads *reads);

#endif
