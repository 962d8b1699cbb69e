/* Runs of single reads and striped ledgers: where items end, and the lanes of a ledger put together. */
#ifndef BK_LANES_H
#define BK_LANES_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    BK_LANES_OK = 0,
    BK_LANES_TOO_FEW_ITEMS,
    BK_LANES_BAD_OFFSETS_SIZE, /* result->size */
    BK_LANES_BAD_OFFSETS,      /* result->first, result->second, result->size: of the values */
    BK_LANES_UNEQUAL,
    BK_LANES_BAD_START, /* result->size: entries */
    BK_LANES_BAD_FIRST_ENTRY,
    BK_LANES_BAD_POSITION,
    BK_LANES_BAD_ENSEMBLE,
    BK_LANES_BAD_WRITE_QUORUM,
    BK_LANES_ENTRY_OVERFLOW, /* result->size: entries */
    BK_LANES_BAD_LEDGER,
    BK_LANES_BAD_NUMBER,
    BK_LANES_NUMBER_OVERFLOW, /* result->size: entries */
    BK_LANES_NO_ADD,          /* result->size: its bytes, result->first: its index */
    BK_LANES_ADD_TOO_LONG,    /* the same */
    BK_LANES_NO_ROOM
} bk_lanes_status;

/* The position behind `count` items (u32 length, bytes) of [start, stop) of data, where start <= stop are inside it. */
bk_lanes_status bk_skip_frames(const uint8_t *data, size_t start, size_t stop, uint64_t count, size_t *position);

/* Entry i is values[offsets[i]:offsets[i + 1]]; offsets are native int64 and need not be aligned. */
typedef struct {
    const uint8_t *values;
    size_t size;
    const uint8_t *offsets;
    size_t offsets_size; /* bytes */
} bk_part;

typedef struct {
    const bk_part *parts;
    size_t count;
    uint64_t entries; /* bk_measure_lanes sets it */
    size_t part;      /* the next entry is entry `index` of this part, while they are put together */
    size_t index;
} bk_lane;

typedef struct {
    uint64_t entries; /* of all lanes */
    uint64_t value_bytes;
    size_t size;
    int64_t first;
    int64_t second;
} bk_lanes_result;

/* Checks all parts, then that each lane has as many entries as the one before it, or from one lane on one less. */
bk_lanes_status bk_measure_lanes(bk_lane *lanes, size_t count, bk_lanes_result *result);

/* Copies the entries of all lanes in turn, and writes result->entries + 1 native int64 offsets. `result` is what
 * bk_measure_lanes found: the room there is. The offsets are checked again, because another thread may have written to
 * them since; BK_LANES_NO_ROOM: something does not fit any more. */
bk_lanes_status bk_interleave(bk_lane *lanes, size_t count, const bk_lanes_result *result, uint8_t *offsets,
                              uint8_t *values);

/* Of a run of framed adds those from index `start` on whose write set has `position`. */
typedef struct {
    const uint8_t *frames;
    size_t size;
    const uint8_t *offsets; /* of the frames: native int64, one more than there are frames */
    size_t offsets_size;    /* bytes */
    int64_t start;
    int64_t first_entry_id; /* of index 0 */
    int64_t position;
    int64_t ensemble_size;
    int64_t write_quorum_size;
} bk_selection;

bk_lanes_status bk_check_selection(const bk_selection *selection, bk_lanes_result *result);

/* Goes over the frames of a checked selection. */
typedef struct {
    const bk_selection *selection;
    size_t index;
    int64_t distance; /* of the position from the first bookie of index */
} bk_selected;

void bk_select_first(const bk_selection *selection, bk_selected *at);
/* The next frame, whose index is at->index - 1, or *frame == NULL if there is none. BK_LANES_BAD_OFFSETS: see
 * result->first, result->second, result->size. */
bk_lanes_status bk_select_next(bk_selected *at, const uint8_t **frame, size_t *size, bk_lanes_result *result);

/* All of them end to end. Sets result->value_bytes; with out != NULL also writes that many, at most capacity. */
bk_lanes_status bk_select_frames(const bk_selection *selection, uint8_t *out, size_t capacity, bk_lanes_result *result);

#endif
