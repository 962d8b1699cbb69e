/* bk_core.kernels._native: the functions of single reads and of striping; binding.h says what belongs here. */
#include "binding.h"

#include "lanes.h"
#include "v3.h"

/* --- skip_frames -------------------------------------------------------------------------------------------------- */

PyObject *bk_skip_frames_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view = {0};
    int64_t start, stop, count;
    size_t position;
    PyObject *result = NULL;
    (void)module;
    if (bk_check_count("skip_frames", nargs, 4, 4) < 0 || bk_take_view(args[0], &view) < 0) {
        return NULL;
    }
    if (bk_take_int(args[1], "start", &start) < 0 || bk_take_int(args[2], "stop", &stop) < 0 ||
        bk_take_int(args[3], "count", &count) < 0 || bk_check_range(start, stop, view.len) < 0) {
        goto done;
    }
    if (count < 0) {
        BK_INVALID("count must not be negative: %lld", (long long)count);
        goto done;
    }
    PyThreadState *state = bk_let_go((size_t)(stop - start));
    bk_lanes_status status = bk_skip_frames(view.buf, (size_t)start, (size_t)stop, (uint64_t)count, &position);
    bk_take_back(state);
    if (status == BK_LANES_OK) {
        result = PyLong_FromSize_t(position);
    } else {
        BK_PROTOCOL("there are fewer than %lld items", (long long)count);
    }
done:
    PyBuffer_Release(&view);
    return result;
}

/* --- interleave --------------------------------------------------------------------------------------------------- */

/* What was taken out of the argument: tuples of our own, so that nobody can take an item out of them while the GIL is
 * let go, and views of every part. */
typedef struct {
    PyObject *lanes; /* tuple of tuples of tuples */
    size_t lane_count;
    size_t part_count;
    bk_lane *items;
    bk_part *parts;
    Py_buffer *views; /* two of each part */
    size_t offset_bytes;
} taken_lanes;

/* A tuple with the items of a list or tuple, or NULL with TypeError. */
static PyObject *items_of(PyObject *sequence, const char *message) {
    if (!PyList_Check(sequence) && !PyTuple_Check(sequence)) {
        PyErr_SetString(PyExc_TypeError, message);
        return NULL;
    }
    return PySequence_Tuple(sequence);
}

/* A tuple of lanes, each a tuple of pairs. */
static PyObject *copy_of(PyObject *lanes, size_t *part_count) {
    PyObject *outer = items_of(lanes, "lanes must be a list or a tuple");
    Py_ssize_t count = outer == NULL ? 0 : PyTuple_Size(outer);
    PyObject *copy = outer == NULL ? NULL : PyTuple_New(count);
    for (Py_ssize_t i = 0; copy != NULL && i < count; i++) {
        PyObject *lane = items_of(PyTuple_GetItem(outer, i), "a lane must be a list or a tuple");
        Py_ssize_t parts = lane == NULL ? 0 : PyTuple_Size(lane);
        if (lane == NULL || PyTuple_SetItem(copy, i, lane) < 0) {
            Py_CLEAR(copy);
            break;
        }
        *part_count += (size_t)parts;
        for (Py_ssize_t p = 0; p < parts; p++) {
            PyObject *part = PyTuple_GetItem(lane, p);
            if (!PyTuple_Check(part) || PyTuple_Size(part) != 2) {
                PyErr_SetString(PyExc_TypeError, "a part must be a tuple of values and offsets");
                Py_CLEAR(copy);
                break;
            }
        }
    }
    Py_XDECREF(outer);
    return copy;
}

static int take_part(PyObject *part, Py_buffer *views, bk_part *taken) {
    if (bk_take_view(PyTuple_GetItem(part, 0), &views[0]) < 0 ||
        bk_take_view(PyTuple_GetItem(part, 1), &views[1]) < 0) {
        return -1;
    }
    *taken = (bk_part){.values = views[0].buf,
                       .size = (size_t)views[0].len,
                       .offsets = views[1].buf,
                       .offsets_size = (size_t)views[1].len};
    return 0;
}

static int take_lanes(PyObject *lanes, taken_lanes *taken) {
    size_t at = 0;
    taken->lanes = copy_of(lanes, &taken->part_count);
    if (taken->lanes == NULL) {
        return -1;
    }
    taken->lane_count = (size_t)PyTuple_Size(taken->lanes);
    taken->items = PyMem_Calloc(taken->lane_count, sizeof *taken->items);
    taken->parts = PyMem_Calloc(taken->part_count, sizeof *taken->parts);
    taken->views = PyMem_Calloc(taken->part_count, 2 * sizeof *taken->views);
    if (taken->items == NULL || taken->parts == NULL || taken->views == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < taken->lane_count; i++) {
        PyObject *lane = PyTuple_GetItem(taken->lanes, (Py_ssize_t)i);
        size_t count = (size_t)PyTuple_Size(lane);
        taken->items[i] = (bk_lane){.parts = taken->parts + at, .count = count};
        for (size_t p = 0; p < count; p++, at++) {
            if (take_part(PyTuple_GetItem(lane, (Py_ssize_t)p), taken->views + 2 * at, taken->parts + at) < 0) {
                return -1;
            }
            taken->offset_bytes += taken->parts[at].offsets_size;
        }
    }
    return 0;
}

static void release_lanes(taken_lanes *taken) {
    for (size_t i = 0; taken->views != NULL && i < 2 * taken->part_count; i++) {
        PyBuffer_Release(&taken->views[i]);
    }
    PyMem_Free(taken->views);
    PyMem_Free(taken->parts);
    PyMem_Free(taken->items);
    Py_XDECREF(taken->lanes);
}

static void raise_unequal(const taken_lanes *taken) {
    PyObject *sizes = PyList_New((Py_ssize_t)taken->lane_count);
    for (size_t i = 0; sizes != NULL && i < taken->lane_count; i++) {
        PyObject *size = PyLong_FromUnsignedLongLong(taken->items[i].entries);
        if (size == NULL || PyList_SetItem(sizes, (Py_ssize_t)i, size) < 0) {
            Py_CLEAR(sizes);
        }
    }
    if (sizes != NULL) {
        BK_INVALID("lanes of %R entries cannot be merged", sizes);
        Py_DECREF(sizes);
    }
}

static void raise_lanes(bk_lanes_status status, const taken_lanes *taken, const bk_lanes_result *found) {
    switch (status) {
    case BK_LANES_BAD_OFFSETS_SIZE:
        BK_INVALID("offsets must be one or more native int64: %zd bytes given", (Py_ssize_t)found->size);
        break;
    case BK_LANES_BAD_OFFSETS:
        BK_INVALID("offsets %lld and %lld are no part of %zd bytes", (long long)found->first, (long long)found->second,
                   (Py_ssize_t)found->size);
        break;
    case BK_LANES_UNEQUAL:
        raise_unequal(taken);
        break;
    default:
        bk_raise_changed();
    }
}

static PyObject *merged(const taken_lanes *taken) {
    bk_lanes_result found;
    PyObject *offsets = NULL, *values = NULL, *result = NULL;
    PyThreadState *state = bk_let_go(taken->offset_bytes);
    bk_lanes_status status = bk_measure_lanes(taken->items, taken->lane_count, &found);
    bk_take_back(state);
    if (status == BK_LANES_OK) {
        offsets = bk_new_bytes((found.entries + 1) * 8);
        values = bk_new_bytes(found.value_bytes);
        if (offsets == NULL || values == NULL) {
            goto done;
        }
        uint8_t *offsets_out = bk_bytes_of(offsets), *values_out = bk_bytes_of(values);
        state = bk_let_go((size_t)found.value_bytes);
        status = bk_interleave(taken->items, taken->lane_count, &found, offsets_out, values_out);
        bk_take_back(state);
    }
    if (status != BK_LANES_OK) {
        raise_lanes(status, taken, &found);
        goto done;
    }
    result = PyTuple_Pack(2, offsets, values);
done:
    Py_XDECREF(offsets);
    Py_XDECREF(values);
    return result;
}

PyObject *bk_interleave_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    taken_lanes taken = {0};
    PyObject *result = NULL;
    (void)module;
    if (bk_check_count("interleave", nargs, 1, 1) < 0) {
        return NULL;
    }
    if (take_lanes(args[0], &taken) == 0) {
        result = merged(&taken);
    }
    release_lanes(&taken);
    return result;
}

/* --- select_frames, frame_adds_v3 --------------------------------------------------------------------------------- */

static void raise_selection(bk_lanes_status status, const bk_v3_adds *adds, const bk_lanes_result *found) {
    const bk_selection *given = &adds->adds;
    Py_ssize_t size = (Py_ssize_t)found->size;
    switch (status) {
    case BK_LANES_BAD_START:
        BK_INVALID("start must be 0..%zd: %lld", size, (long long)given->start);
        break;
    case BK_LANES_BAD_FIRST_ENTRY:
        BK_INVALID("first_entry_id must not be negative: %lld", (long long)given->first_entry_id);
        break;
    case BK_LANES_BAD_ENSEMBLE:
        BK_INVALID("ensemble_size must be 1..2147483647: %lld", (long long)given->ensemble_size);
        break;
    case BK_LANES_BAD_POSITION:
        BK_INVALID("position must be 0..%lld: %lld", (long long)given->ensemble_size - 1, (long long)given->position);
        break;
    case BK_LANES_BAD_WRITE_QUORUM:
        BK_INVALID("write_quorum_size must be 1..%lld: %lld", (long long)given->ensemble_size,
                   (long long)given->write_quorum_size);
        break;
    case BK_LANES_ENTRY_OVERFLOW:
        BK_INVALID("%zd entries from %lld do not fit in 64 bits", size, (long long)given->first_entry_id);
        break;
    case BK_LANES_BAD_LEDGER:
        BK_INVALID("ledger_id must not be negative: %lld", (long long)adds->ledger_id);
        break;
    case BK_LANES_BAD_NUMBER:
        BK_INVALID("first_number must not be negative: %lld", (long long)adds->first_number);
        break;
    case BK_LANES_NUMBER_OVERFLOW:
        BK_INVALID("%zd numbers from %lld do not fit in 64 bits", size, (long long)adds->first_number);
        break;
    case BK_LANES_NO_ADD:
        BK_INVALID("frame %lld of %zd bytes is no add", (long long)found->first, size);
        break;
    case BK_LANES_ADD_TOO_LONG:
        BK_INVALID("frame %lld of %zd bytes does not fit in a frame of v3", (long long)found->first, size);
        break;
    default:
        raise_lanes(status, NULL, found); /* of these none is about lanes */
    }
}

typedef bk_lanes_status (*selecting)(const bk_v3_adds *adds, uint8_t *out, size_t capacity, bk_lanes_result *result);

static bk_lanes_status select_only(const bk_v3_adds *adds, uint8_t *out, size_t capacity, bk_lanes_result *result) {
    return bk_select_frames(&adds->adds, out, capacity, result);
}

static PyObject *framed(const bk_v3_adds *adds, selecting function) {
    bk_lanes_result found;
    PyObject *frames = NULL;
    bk_lanes_status status = function(adds, NULL, 0, &found);
    if (status == BK_LANES_OK) {
        size_t size = (size_t)found.value_bytes;
        frames = bk_new_bytes(size);
        if (frames == NULL) {
            return NULL;
        }
        uint8_t *out = bk_bytes_of(frames);
        PyThreadState *state = bk_let_go(size);
        status = function(adds, out, size, &found);
        bk_take_back(state);
        if (status == BK_LANES_OK && found.value_bytes != size) {
            status = BK_LANES_NO_ROOM; /* less than a moment ago */
        }
    }
    if (status != BK_LANES_OK) {
        raise_selection(status, adds, &found);
        Py_CLEAR(frames);
    }
    return frames;
}

static int take_selection(PyObject *const *args, Py_buffer *frames, Py_buffer *offsets, bk_selection *taken) {
    if (bk_take_view(args[0], frames) < 0 || bk_take_view(args[1], offsets) < 0 ||
        bk_take_int(args[2], "start", &taken->start) < 0 ||
        bk_take_int(args[3], "first_entry_id", &taken->first_entry_id) < 0 ||
        bk_take_int(args[4], "position", &taken->position) < 0 ||
        bk_take_int(args[5], "ensemble_size", &taken->ensemble_size) < 0 ||
        bk_take_int(args[6], "write_quorum_size", &taken->write_quorum_size) < 0) {
        return -1;
    }
    taken->frames = frames->buf;
    taken->size = (size_t)frames->len;
    taken->offsets = offsets->buf;
    taken->offsets_size = (size_t)offsets->len;
    return 0;
}

PyObject *bk_select_frames_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer frames = {0}, offsets = {0};
    bk_v3_adds adds = {0};
    PyObject *result = NULL;
    (void)module;
    if (bk_check_count("select_frames", nargs, 7, 7) < 0) {
        return NULL;
    }
    if (take_selection(args, &frames, &offsets, &adds.adds) == 0) {
        result = framed(&adds, select_only);
    }
    PyBuffer_Release(&frames);
    PyBuffer_Release(&offsets);
    return result;
}

PyObject *bk_frame_adds_v3_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer frames = {0}, offsets = {0};
    bk_v3_adds adds = {0};
    int64_t recovery, deferred_sync;
    PyObject *result = NULL;
    (void)module;
    if (bk_check_count("frame_adds_v3", nargs, 11, 11) < 0) {
        return NULL;
    }
    if (take_selection(args, &frames, &offsets, &adds.adds) == 0 &&
        bk_take_int(args[7], "ledger_id", &adds.ledger_id) == 0 &&
        bk_take_int(args[8], "first_number", &adds.first_number) == 0 &&
        bk_take_int(args[9], "recovery", &recovery) == 0 &&
        bk_take_int(args[10], "deferred_sync", &deferred_sync) == 0) {
        adds.recovery = recovery != 0;
        adds.deferred_sync = deferred_sync != 0;
        result = framed(&adds, bk_frame_adds_v3);
    }
    PyBuffer_Release(&frames);
    PyBuffer_Release(&offsets);
    return result;
}

/* --- v3_read_frames ----------------------------------------------------------------------------------------------- */

static PyObject *read_frames(const uint8_t *data, size_t start, size_t stop) {
    bk_v3_reads found;
    PyObject *frames = NULL, *result = NULL;
    bk_v3_reads_status status = bk_read_frames_v3(data, start, stop, NULL, 0, &found);
    if (status == BK_V3_READS_OK) {
        size_t size = (size_t)found.frame_bytes;
        frames = bk_new_bytes(size);
        if (frames == NULL) {
            return NULL;
        }
        uint8_t *out = bk_bytes_of(frames);
        PyThreadState *state = bk_let_go(size);
        status = bk_read_frames_v3(data, start, stop, out, size, &found);
        bk_take_back(state);
        if (status == BK_V3_READS_OK && found.frame_bytes != size) {
            status = BK_V3_READS_NO_ROOM;
        }
    }
    if (status == BK_V3_READS_BAD_FRAME) {
        BK_INVALID("frame %zd is no answer with an entry", (Py_ssize_t)found.count);
    } else if (status != BK_V3_READS_OK) {
        bk_raise_changed();
    } else if (found.has_max_lac) {
        result = Py_BuildValue("(OLL)", frames, (long long)found.step, (long long)found.max_lac);
    } else {
        result = Py_BuildValue("(OLO)", frames, (long long)found.step, Py_None);
    }
    Py_XDECREF(frames);
    return result;
}

PyObject *bk_v3_read_frames_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view = {0};
    int64_t start, stop;
    PyObject *result = NULL;
    (void)module;
    if (bk_check_count("v3_read_frames", nargs, 3, 3) < 0 || bk_take_view(args[0], &view) < 0) {
        return NULL;
    }
    if (bk_take_int(args[1], "start", &start) == 0 && bk_take_int(args[2], "stop", &stop) == 0 &&
        bk_check_range(start, stop, view.len) == 0) {
        result = read_frames(view.buf, (size_t)start, (size_t)stop);
    }
    PyBuffer_Release(&view);
    return result;
}
