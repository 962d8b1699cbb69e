/* bk_core.kernels._native: the functions of runs of messages; binding.h says what belongs here. */
#include "binding.h"

#include <stdlib.h>
#include <string.h>

#include "runs.h"
#include "v3.h"

/* --- scan_responses, scan_requests -------------------------------------------------------------------------------- */

#define RUNS_ON_STACK 32 /* the common buffer is a few runs whatever its size */

/* All runs of a buffer: on the stack while they fit there, else in allocated memory. */
typedef struct {
    bk_run on_stack[RUNS_ON_STACK];
    bk_run *items;
    size_t capacity;
} run_list;

/* Twice the room. Runs without the GIL. */
static int grow(run_list *list) {
    bk_run *old = list->items == list->on_stack ? NULL : list->items;
    bk_run *items = realloc(old, 2 * list->capacity * sizeof *items);
    if (items == NULL) {
        return -1;
    }
    if (old == NULL) {
        memcpy(items, list->on_stack, sizeof list->on_stack);
    }
    list->items = items;
    list->capacity *= 2;
    return 0;
}

/* -1: no memory. result speaks of all runs together. Runs without the GIL. */
static int scan_all(bk_scan_function scan, const uint8_t *data, size_t start, size_t stop, int64_t limit,
                    run_list *list, bk_scan_status *status, bk_scan_result *result) {
    size_t count = 0;
    *status = scan(data, start, stop, limit, list->items, list->capacity, result);
    while (*status == BK_SCAN_NO_ROOM) {
        count += result->count;
        if (grow(list) < 0) {
            return -1;
        }
        *status = scan(data, result->consumed, stop, limit, list->items + count, list->capacity - count, result);
    }
    result->count += count;
    return 0;
}

static PyObject *run_tuple(const bk_run *run) {
    const int64_t values[] = {run->kind, run->ledger_id, run->entry_id, run->count, run->code, run->begin, run->end};
    PyObject *tuple = PyTuple_New(7);
    for (Py_ssize_t i = 0; tuple != NULL && i < 7; i++) {
        PyObject *value = PyLong_FromLongLong(values[i]);
        if (value == NULL || PyTuple_SetItem(tuple, i, value) < 0) {
            Py_DECREF(tuple);
            return NULL;
        }
    }
    return tuple;
}

static PyObject *run_tuples(const run_list *list, size_t count) {
    PyObject *items = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; items != NULL && i < count; i++) {
        PyObject *tuple = run_tuple(&list->items[i]);
        if (tuple == NULL || PyList_SetItem(items, (Py_ssize_t)i, tuple) < 0) {
            Py_DECREF(items);
            return NULL;
        }
    }
    return items;
}

static PyObject *scan_runs(const char *name, bk_scan_function scan, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view = {0};
    run_list list = {.items = list.on_stack, .capacity = RUNS_ON_STACK};
    bk_scan_status status = BK_SCAN_OK;
    bk_scan_result found = {0};
    int64_t start, stop, limit;
    PyObject *result = NULL;
    if (bk_check_count(name, nargs, 4, 4) < 0 || bk_take_view(args[0], &view) < 0) {
        return NULL;
    }
    if (bk_take_int(args[1], "start", &start) < 0 || bk_take_int(args[2], "stop", &stop) < 0 ||
        bk_take_int(args[3], "frame_bytes_max", &limit) < 0 || bk_check_range(start, stop, view.len) < 0) {
        goto done;
    }
    PyThreadState *state = bk_let_go((size_t)(stop - start));
    int no_memory = scan_all(scan, view.buf, (size_t)start, (size_t)stop, limit, &list, &status, &found);
    bk_take_back(state);
    if (no_memory) {
        PyErr_NoMemory();
    } else if (status != BK_SCAN_OK) {
        bk_raise_scan(status, &found, limit);
    } else {
        PyObject *items = run_tuples(&list, found.count);
        if (items != NULL) {
            result = Py_BuildValue("(NnL)", items, (Py_ssize_t)found.consumed, (long long)found.frame_bytes);
        }
    }
done:
    if (list.items != list.on_stack) {
        free(list.items);
    }
    PyBuffer_Release(&view);
    return result;
}

PyObject *bk_scan_responses_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    return scan_runs("scan_responses", bk_scan_responses, args, nargs);
}

PyObject *bk_scan_requests_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    return scan_runs("scan_requests", bk_scan_requests, args, nargs);
}

/* --- take_bodies -------------------------------------------------------------------------------------------------- */

static PyObject *taken_bodies(const uint8_t *data, size_t size) {
    bk_run_result found;
    PyObject *bodies = NULL;
    PyThreadState *state = bk_let_go(size);
    bk_run_status status = bk_take_bodies(data, size, NULL, 0, &found);
    bk_take_back(state);
    if (status == BK_RUN_OK) {
        size_t room = (size_t)found.frame_bytes;
        bodies = bk_new_bytes(room);
        if (bodies == NULL) {
            return NULL;
        }
        uint8_t *out = bk_bytes_of(bodies);
        state = bk_let_go(size);
        status = bk_take_bodies(data, size, out, room, &found);
        bk_take_back(state);
        if (status == BK_RUN_OK && found.frame_bytes != room) {
            status = BK_RUN_NO_ROOM; /* less than a moment ago */
        }
    }
    if (status == BK_RUN_OK) {
        return Py_BuildValue("(NL)", bodies, (long long)found.last);
    }
    Py_XDECREF(bodies);
    if (status == BK_RUN_CUT) {
        BK_INVALID("frame %zd is no whole add request", (Py_ssize_t)found.index);
    } else {
        bk_raise_changed();
    }
    return NULL;
}

PyObject *bk_take_bodies_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view = {0};
    int64_t start, stop;
    PyObject *result = NULL;
    (void)module;
    if (bk_check_count("take_bodies", nargs, 3, 3) < 0 || bk_take_view(args[0], &view) < 0) {
        return NULL;
    }
    if (bk_take_int(args[1], "start", &start) == 0 && bk_take_int(args[2], "stop", &stop) == 0 &&
        bk_check_range(start, stop, view.len) == 0) {
        result = taken_bodies((const uint8_t *)view.buf + start, (size_t)(stop - start));
    }
    PyBuffer_Release(&view);
    return result;
}

PyObject *bk_scan_responses_v3_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    return scan_runs("scan_responses_v3", bk_scan_responses_v3, args, nargs);
}

/* --- measure_run -------------------------------------------------------------------------------------------------- */

PyObject *bk_measure_run_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view = {0};
    bk_run_result found;
    (void)module;
    if (bk_check_count("measure_run", nargs, 1, 1) < 0 || bk_take_view(args[0], &view) < 0) {
        return NULL;
    }
    size_t size = (size_t)view.len;
    PyThreadState *state = bk_let_go(size);
    bk_run_status status = bk_measure_run(view.buf, size, &found);
    bk_take_back(state);
    PyBuffer_Release(&view);
    switch (status) {
    case BK_RUN_OK:
        return Py_BuildValue("(nLLL)", (Py_ssize_t)(size / 8 - 1), (long long)found.first, (long long)found.last,
                             (long long)found.largest);
    case BK_RUN_BAD_OFFSETS_SIZE:
        BK_INVALID("offsets must be two or more native int64: %zd bytes given", (Py_ssize_t)size);
        break;
    case BK_RUN_OFFSET_NEGATIVE:
        BK_INVALID("offset 0 is %lld, below 0", (long long)found.value);
        break;
    default:
        BK_INVALID("offset %zd is %lld, below the one before it", (Py_ssize_t)found.index, (long long)found.value);
    }
    return NULL;
}

/* --- frame_reads, frame_add_responses, frame_read_responses ------------------------------------------------------- */

static void raise_run(bk_run_status status, const bk_heads *heads, const bk_run_result *result) {
    switch (status) {
    case BK_RUN_BAD_LEDGER:
        BK_INVALID("ledger_id must not be negative: %lld", (long long)heads->ledger_id);
        break;
    case BK_RUN_BAD_ENTRY:
        BK_INVALID("first_entry_id must not be negative: %lld", (long long)heads->first_entry_id);
        break;
    case BK_RUN_BAD_COUNT:
        BK_INVALID("count must be 0..%lld: %lld", (long long)BK_RUN_COUNT_MAX, (long long)heads->count);
        break;
    case BK_RUN_BAD_STEP:
        BK_INVALID("step must be 1..2147483647: %lld", (long long)heads->step);
        break;
    case BK_RUN_BAD_FLAGS:
        BK_INVALID("flags must be 0..65535 without fencing: %lld", (long long)heads->number);
        break;
    case BK_RUN_BAD_CODE:
        BK_INVALID("code must fit in 32 bits: %lld", (long long)heads->number);
        break;
    case BK_RUN_BAD_NUMBER:
        BK_INVALID("first_number must not be negative: %lld", (long long)heads->number);
        break;
    case BK_RUN_NUMBER_OVERFLOW:
        BK_INVALID("%lld numbers from %lld do not fit in 64 bits", (long long)heads->count, (long long)heads->number);
        break;
    case BK_RUN_ENTRY_OVERFLOW:
        BK_INVALID("%lld entries from %lld do not fit in 64 bits", (long long)heads->count,
                   (long long)heads->first_entry_id);
        break;
    case BK_RUN_BODY_TOO_LONG:
        BK_INVALID("body %zd of %lld bytes does not fit in a frame", (Py_ssize_t)result->index,
                   (long long)result->value);
        break;
    default:
        bk_raise_changed();
    }
}

typedef bk_run_status (*heads_function)(const bk_heads *heads, uint8_t *frames, size_t capacity, bk_run_result *result);

static PyObject *frame_heads(const bk_heads *heads, heads_function frame) {
    bk_run_result found;
    bk_run_status status = frame(heads, NULL, 0, &found);
    if (status != BK_RUN_OK) {
        raise_run(status, heads, &found);
        return NULL;
    }
    size_t size = (size_t)found.frame_bytes;
    PyObject *frames = bk_new_bytes(size);
    if (frames != NULL) {
        uint8_t *out = bk_bytes_of(frames);
        PyThreadState *state = bk_let_go(size);
        frame(heads, out, size, &found);
        bk_take_back(state);
    }
    return frames;
}

static int take_heads(PyObject *const *args, bk_heads *heads) {
    return bk_take_int(args[0], "ledger_id", &heads->ledger_id) < 0 ||
                   bk_take_int(args[1], "first_entry_id", &heads->first_entry_id) < 0 ||
                   bk_take_int(args[2], "count", &heads->count) < 0
               ? -1
               : 0;
}

PyObject *bk_frame_reads_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    bk_heads heads = {.step = 1};
    (void)module;
    if (bk_check_count("frame_reads", nargs, 3, 5) < 0 || take_heads(args, &heads) < 0 ||
        (nargs > 3 && bk_take_int(args[3], "step", &heads.step) < 0) ||
        (nargs > 4 && bk_take_int(args[4], "flags", &heads.number) < 0)) {
        return NULL;
    }
    return frame_heads(&heads, bk_frame_reads);
}

PyObject *bk_frame_reads_v3_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    bk_heads heads = {.step = 1};
    (void)module;
    if (bk_check_count("frame_reads_v3", nargs, 5, 5) < 0 || take_heads(args, &heads) < 0 ||
        bk_take_int(args[3], "step", &heads.step) < 0 || bk_take_int(args[4], "first_number", &heads.number) < 0) {
        return NULL;
    }
    return frame_heads(&heads, bk_frame_reads_v3);
}

PyObject *bk_frame_add_responses_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    bk_heads heads = {.step = 1};
    (void)module;
    if (bk_check_count("frame_add_responses", nargs, 4, 4) < 0 || take_heads(args, &heads) < 0 ||
        bk_take_int(args[3], "code", &heads.number) < 0) {
        return NULL;
    }
    return frame_heads(&heads, bk_frame_add_responses);
}

PyObject *bk_entry_bits_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view = {0};
    bk_heads heads = {0};
    bk_run_result found;
    PyObject *bits = NULL;
    (void)module;
    if (bk_check_count("entry_bits", nargs, 3, 3) < 0 || bk_take_view(args[0], &view) < 0) {
        return NULL;
    }
    if (bk_take_int(args[1], "first_entry_id", &heads.first_entry_id) < 0 ||
        bk_take_int(args[2], "span", &heads.count) < 0) {
        goto done;
    }
    size_t size = (size_t)view.len;
    bk_run_status status = bk_entry_bits(view.buf, size, heads.first_entry_id, heads.count, NULL, &found);
    if (status == BK_RUN_OK) {
        bits = bk_new_bytes(found.frame_bytes);
        if (bits == NULL) {
            goto done;
        }
        uint8_t *out = bk_bytes_of(bits);
        PyThreadState *state = bk_let_go(size);
        status = bk_entry_bits(view.buf, size, heads.first_entry_id, heads.count, out, &found);
        bk_take_back(state);
    }
    if (status == BK_RUN_OK) {
        goto done;
    }
    Py_CLEAR(bits);
    if (status == BK_RUN_BAD_FRAMES) {
        BK_INVALID("frames must be add responses of 28 bytes: %zd bytes given", view.len);
    } else if (status == BK_RUN_BAD_COUNT) {
        BK_INVALID("span must be 0..%lld: %lld", (long long)BK_RUN_COUNT_MAX, (long long)heads.count);
    } else if (status == BK_RUN_ENTRY_OUTSIDE) {
        BK_INVALID("entry %lld is none of %lld entries from %lld", (long long)found.value, (long long)heads.count,
                   (long long)heads.first_entry_id);
    } else {
        raise_run(status, &heads, &found);
    }
done:
    PyBuffer_Release(&view);
    return bits;
}

static PyObject *frame_bodies(const bk_heads *heads, const bk_span *spans) {
    bk_run_result found;
    bk_run_status status = bk_frame_read_responses(heads, spans, NULL, 0, &found);
    if (status != BK_RUN_OK) {
        raise_run(status, heads, &found);
        return NULL;
    }
    size_t size = (size_t)found.frame_bytes;
    PyObject *frames = bk_new_bytes(size);
    if (frames != NULL) {
        uint8_t *out = bk_bytes_of(frames);
        PyThreadState *state = bk_let_go(size);
        bk_frame_read_responses(heads, spans, out, size, &found);
        bk_take_back(state);
    }
    return frames;
}

/* `bodies` is a tuple of our own: nobody can take an item out of it while the GIL is let go. */
static PyObject *frame_tuple(bk_heads *heads, PyObject *bodies) {
    size_t count = (size_t)heads->count, taken = 0;
    Py_buffer *views = PyMem_Calloc(count, sizeof *views);
    bk_span *spans = PyMem_Calloc(count, sizeof *spans);
    PyObject *result = NULL;
    if (views == NULL || spans == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (; taken < count; taken++) {
        PyObject *body = PyTuple_GetItem(bodies, (Py_ssize_t)taken);
        if (body == NULL || bk_take_view(body, &views[taken]) < 0) {
            goto done;
        }
        spans[taken] = (bk_span){.data = views[taken].buf, .size = (size_t)views[taken].len};
    }
    result = frame_bodies(heads, spans);
done:
    while (taken > 0) {
        PyBuffer_Release(&views[--taken]);
    }
    PyMem_Free(views);
    PyMem_Free(spans);
    return result;
}

/* `joined` holds the bodies behind their lengths. */
static PyObject *frame_joined(bk_heads *heads, PyObject *joined) {
    Py_buffer view = {0};
    bk_run_result found;
    bk_span *spans = NULL;
    PyObject *result = NULL;
    if (bk_take_view(joined, &view) < 0) {
        return NULL;
    }
    size_t size = (size_t)view.len;
    PyThreadState *state = bk_let_go(size);
    bk_run_status status = bk_split_bodies(view.buf, size, NULL, 0, &found);
    bk_take_back(state);
    if (status == BK_RUN_OK) {
        heads->count = (int64_t)found.index;
        spans = PyMem_Calloc(found.index, sizeof *spans);
        if (spans == NULL) {
            PyErr_NoMemory();
            goto done;
        }
        state = bk_let_go(size);
        status = bk_split_bodies(view.buf, size, spans, found.index, &found);
        bk_take_back(state);
        if (status != BK_RUN_OK || (int64_t)found.index != heads->count) {
            bk_raise_changed();
            goto done;
        }
    }
    if (heads->ledger_id < 0 || heads->first_entry_id < 0 || status == BK_RUN_OK) {
        result = frame_bodies(heads, spans); /* numbers are judged before bytes */
    } else {
        BK_INVALID("body %zd is cut off", (Py_ssize_t)found.index);
    }
done:
    PyMem_Free(spans);
    PyBuffer_Release(&view);
    return result;
}

PyObject *bk_frame_read_responses_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    bk_heads heads = {0};
    (void)module;
    if (bk_check_count("frame_read_responses", nargs, 3, 3) < 0 ||
        bk_take_int(args[0], "ledger_id", &heads.ledger_id) < 0 ||
        bk_take_int(args[1], "first_entry_id", &heads.first_entry_id) < 0) {
        return NULL;
    }
    if (!PyList_Check(args[2]) && !PyTuple_Check(args[2])) {
        return frame_joined(&heads, args[2]);
    }
    PyObject *bodies = PySequence_Tuple(args[2]);
    if (bodies == NULL) {
        return NULL;
    }
    heads.count = (int64_t)PyTuple_Size(bodies);
    PyObject *result = frame_tuple(&heads, bodies);
    Py_DECREF(bodies);
    return result;
}
