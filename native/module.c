/* bk_core.kernels._native: the only C file that knows Python.
 *
 * It turns arguments into pointers and lengths, lets go of the GIL for big inputs, and turns a status into the
 * exception that bk_core/kernels/pure.py raises for the same input, to the letter. It keeps no Python object between
 * calls.
 */
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdarg.h>
#include <string.h>

#include "crc32c.h"
#include "digest.h"
#include "entries.h"
#include "frames.h"

#define GIL_BYTES (64 * 1024) /* above this, other threads may run meanwhile */

/* --- errors ------------------------------------------------------------------------------------------------------- */

/* Raises bk_core.errors.<name>(message, **context). Takes over both references; either may be NULL after a failure. */
static void raise_with(const char *name, PyObject *message, PyObject *context) {
    PyObject *module = NULL, *type = NULL, *arguments = NULL, *error = NULL;
    if (message != NULL && context != NULL) {
        module = PyImport_ImportModule("bk_core.errors");
    }
    if (module != NULL) {
        type = PyObject_GetAttrString(module, name);
    }
    if (type != NULL) {
        arguments = PyTuple_Pack(1, message);
    }
    if (arguments != NULL) {
        error = PyObject_Call(type, arguments, context);
    }
    if (error != NULL) {
        PyErr_SetObject(type, error);
    }
    Py_XDECREF(error);
    Py_XDECREF(arguments);
    Py_XDECREF(type);
    Py_XDECREF(module);
    Py_XDECREF(context);
    Py_XDECREF(message);
}

static void raise_error(const char *name, const char *format, ...) {
    va_list values;
    va_start(values, format);
    PyObject *message = PyUnicode_FromFormatV(format, values);
    va_end(values);
    raise_with(name, message, PyDict_New());
}

#define INVALID(...)  raise_error("InvalidArgumentError", __VA_ARGS__)
#define PROTOCOL(...) raise_error("RemoteProtocolError", __VA_ARGS__)

static void raise_digest_error(const bk_entries_result *result, PyObject *message) {
    raise_with("DigestError", message,
               Py_BuildValue("{s:n,s:L,s:L}", "item", (Py_ssize_t)result->item, "ledger", (long long)result->ledger_id,
                             "entry", (long long)result->entry_id));
}

static void raise_changed(void) {
    INVALID("the input changed while it was being read");
}

static void raise_bad_digest_type(int64_t type) {
    INVALID("digest_type must be 1 (CRC32), 2 (HMAC), 3 (CRC32C) or 4 (DUMMY): %lld", (long long)type);
}

static void raise_bad_hmac_key(size_t size) {
    INVALID("hmac_key must be 20 bytes for HMAC: %zd given", (Py_ssize_t)size);
}

/* --- arguments ---------------------------------------------------------------------------------------------------- */

static int check_count(const char *function, Py_ssize_t given, Py_ssize_t least, Py_ssize_t most) {
    if (given < least || given > most) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd positional arguments but %zd were given", function, least,
                     most, given);
        return -1;
    }
    return 0;
}

/* A view that has not been taken has obj == NULL, and releasing it does nothing. */
static int take_view(PyObject *object, Py_buffer *view) {
    if (!PyObject_CheckBuffer(object)) {
        PyObject *type_name = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");
        if (type_name != NULL) {
            PyErr_Format(PyExc_TypeError, "a bytes-like object is required, not '%U'", type_name);
            Py_DECREF(type_name);
        }
        return -1;
    }
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0) {
        if (PyErr_ExceptionMatches(PyExc_BufferError)) {
            PyErr_Clear();
            INVALID("a buffer must be C-contiguous");
        }
        return -1;
    }
    if (view->buf == NULL) {
        view->buf = (void *)""; /* empty; the plain C never sees a null pointer */
    }
    return 0;
}

static int take_int(PyObject *object, const char *name, int64_t *value) {
    int overflow = 0;
    PyObject *index = PyNumber_Index(object);
    if (index == NULL) {
        return -1;
    }
    long long taken = PyLong_AsLongLongAndOverflow(index, &overflow);
    Py_DECREF(index);
    if (overflow != 0) {
        INVALID("%s must fit in 64 bits", name);
        return -1;
    }
    *value = taken;
    return taken == -1 && PyErr_Occurred() ? -1 : 0;
}

/* bytes of this size, or NULL with MemoryError. */
static PyObject *new_bytes(uint64_t size) {
    if (size > (uint64_t)PY_SSIZE_T_MAX) {
        return PyErr_NoMemory();
    }
    return PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
}

static uint8_t *bytes_of(PyObject *object) {
    return (uint8_t *)PyBytes_AsString(object);
}

static PyThreadState *let_go(size_t bytes) {
    return bytes > GIL_BYTES ? PyEval_SaveThread() : NULL;
}

static void take_back(PyThreadState *state) {
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
}

/* --- crc32c ------------------------------------------------------------------------------------------------------- */

static PyObject *crc32c(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view = {0};
    int64_t value = 0;
    PyObject *result = NULL;
    (void)module;
    if (check_count("crc32c", nargs, 1, 2) < 0 || take_view(args[0], &view) < 0) {
        return NULL;
    }
    if (nargs == 2 && take_int(args[1], "value", &value) < 0) {
        goto done;
    }
    if (value < 0 || value > INT64_C(0xFFFFFFFF)) {
        INVALID("value must be 0..4294967295: %lld", (long long)value);
        goto done;
    }
    PyThreadState *state = let_go((size_t)view.len);
    uint32_t crc = bk_crc32c((uint32_t)value, view.buf, (size_t)view.len);
    take_back(state);
    result = PyLong_FromUnsignedLong(crc);
done:
    PyBuffer_Release(&view);
    return result;
}

/* --- scan_frames -------------------------------------------------------------------------------------------------- */

static void raise_scan(bk_scan_status status, const bk_scan_result *result, int64_t frame_bytes_max) {
    switch (status) {
    case BK_SCAN_BAD_LIMIT:
        INVALID("frame_bytes_max must be 5..2147483647: %lld", (long long)frame_bytes_max);
        break;
    case BK_SCAN_EMPTY:
        PROTOCOL("a frame without payload");
        break;
    case BK_SCAN_TOO_LONG:
        PROTOCOL("a frame of %lld bytes, length included, is over the limit of %lld", (long long)result->frame_bytes,
                 (long long)frame_bytes_max);
        break;
    default:
        raise_changed();
    }
}

static PyObject *scan_frames(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view = {0};
    bk_scan_result found;
    int64_t limit;
    PyObject *bounds = NULL, *result = NULL;
    (void)module;
    if (check_count("scan_frames", nargs, 2, 2) < 0 || take_view(args[0], &view) < 0) {
        return NULL;
    }
    if (take_int(args[1], "frame_bytes_max", &limit) < 0) {
        goto done;
    }
    /* Only length prefixes are read, a few nanoseconds for each frame, and the caller made room for all of them. */
    PyThreadState *state = let_go((size_t)view.len);
    bk_scan_status status = bk_scan_frames(view.buf, (size_t)view.len, limit, NULL, 0, &found);
    take_back(state);
    if (status == BK_SCAN_OK) {
        size_t capacity = found.count;
        bounds = new_bytes((uint64_t)capacity * 16);
        if (bounds == NULL) {
            goto done;
        }
        uint8_t *out = bytes_of(bounds);
        state = let_go((size_t)view.len);
        status = bk_scan_frames(view.buf, (size_t)view.len, limit, out, capacity, &found);
        take_back(state);
        if (status == BK_SCAN_OK && found.count != capacity) {
            status = BK_SCAN_NO_ROOM; /* fewer frames than a moment ago */
        }
    }
    if (status != BK_SCAN_OK) {
        raise_scan(status, &found, limit);
        goto done;
    }
    result = Py_BuildValue("(On)", bounds, (Py_ssize_t)found.consumed);
done:
    Py_XDECREF(bounds);
    PyBuffer_Release(&view);
    return result;
}

/* --- frame_adds --------------------------------------------------------------------------------------------------- */

static void raise_adds(bk_adds_status status, const bk_adds *adds, const bk_adds_result *result) {
    Py_ssize_t index = (Py_ssize_t)result->index;
    long long value = (long long)result->value;
    switch (status) {
    case BK_ADDS_BAD_OFFSETS_SIZE:
        INVALID("offsets must be one or more native int64: %zd bytes given", (Py_ssize_t)adds->offsets_size);
        break;
    case BK_ADDS_BAD_LEDGER:
        INVALID("ledger_id must not be negative: %lld", (long long)adds->ledger_id);
        break;
    case BK_ADDS_BAD_ENTRY:
        INVALID("first_entry_id must not be negative: %lld", (long long)adds->first_entry_id);
        break;
    case BK_ADDS_BAD_LAC:
        INVALID("last_add_confirmed must be -1 or more: %lld", (long long)adds->last_add_confirmed);
        break;
    case BK_ADDS_BAD_LENGTH:
        INVALID("length_before must not be negative: %lld", (long long)adds->length_before);
        break;
    case BK_ADDS_BAD_DIGEST_TYPE:
        raise_bad_digest_type(adds->digest_type);
        break;
    case BK_ADDS_BAD_HMAC_KEY:
        raise_bad_hmac_key(adds->hmac_key_size);
        break;
    case BK_ADDS_BAD_MASTER_KEY:
        INVALID("master_key must be 20 bytes: %zd given", (Py_ssize_t)adds->master_key_size);
        break;
    case BK_ADDS_BAD_FLAGS:
        INVALID("flags must be 0..65535: %lld", (long long)adds->flags);
        break;
    case BK_ADDS_OFFSET_OUTSIDE:
        INVALID("offset %zd is %lld, outside the %zd bytes of payloads", index, value, (Py_ssize_t)adds->payloads_size);
        break;
    case BK_ADDS_OFFSET_DECREASING:
        INVALID("offset %zd is %lld, below the one before it", index, value);
        break;
    case BK_ADDS_PAYLOAD_TOO_LONG:
        INVALID("payload %zd of %lld bytes does not fit in a frame", index, value);
        break;
    case BK_ADDS_ENTRY_OVERFLOW:
        INVALID("%zd entries from %lld do not fit in 64 bits", (Py_ssize_t)result->count,
                (long long)adds->first_entry_id);
        break;
    case BK_ADDS_LENGTH_OVERFLOW:
        INVALID("%lld payload bytes after %lld do not fit in 64 bits", value, (long long)adds->length_before);
        break;
    default:
        raise_changed();
    }
}

static PyObject *frame_checked_adds(const bk_adds *adds) {
    bk_adds_result measured;
    PyObject *frames = NULL, *frame_offsets = NULL, *result = NULL;
    bk_adds_status status = bk_measure_adds(adds, &measured);
    if (status == BK_ADDS_OK) {
        uint64_t frame_bytes = measured.frame_bytes;
        uint64_t offset_bytes = ((uint64_t)measured.count + 1) * 8;
        frames = new_bytes(frame_bytes);
        frame_offsets = new_bytes(offset_bytes);
        if (frames == NULL || frame_offsets == NULL) {
            goto done;
        }
        uint8_t *frames_out = bytes_of(frames);
        uint8_t *offsets_out = bytes_of(frame_offsets);
        PyThreadState *state = let_go((size_t)frame_bytes);
        status = bk_write_adds(adds, frames_out, (size_t)frame_bytes, offsets_out, (size_t)offset_bytes, &measured);
        take_back(state);
        if (status == BK_ADDS_OK && measured.frame_bytes != frame_bytes) {
            status = BK_ADDS_NO_ROOM; /* smaller than a moment ago */
        }
    }
    if (status != BK_ADDS_OK) {
        raise_adds(status, adds, &measured);
        goto done;
    }
    result = PyTuple_Pack(2, frames, frame_offsets);
done:
    Py_XDECREF(frames);
    Py_XDECREF(frame_offsets);
    return result;
}

static PyObject *frame_adds(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer payloads = {0}, offsets = {0}, hmac_key = {0}, master_key = {0};
    bk_adds adds;
    PyObject *result = NULL;
    (void)module;
    if (check_count("frame_adds", nargs, 10, 10) < 0) {
        return NULL;
    }
    if (take_view(args[0], &payloads) < 0 || take_view(args[1], &offsets) < 0 ||
        take_int(args[2], "ledger_id", &adds.ledger_id) < 0 ||
        take_int(args[3], "first_entry_id", &adds.first_entry_id) < 0 ||
        take_int(args[4], "last_add_confirmed", &adds.last_add_confirmed) < 0 ||
        take_int(args[5], "length_before", &adds.length_before) < 0 ||
        take_int(args[6], "digest_type", &adds.digest_type) < 0 || take_view(args[7], &hmac_key) < 0 ||
        take_view(args[8], &master_key) < 0 || take_int(args[9], "flags", &adds.flags) < 0) {
        goto done;
    }
    adds.payloads = payloads.buf;
    adds.payloads_size = (size_t)payloads.len;
    adds.offsets = offsets.buf;
    adds.offsets_size = (size_t)offsets.len;
    adds.hmac_key = hmac_key.buf;
    adds.hmac_key_size = (size_t)hmac_key.len;
    adds.master_key = master_key.buf;
    adds.master_key_size = (size_t)master_key.len;
    result = frame_checked_adds(&adds);
done:
    PyBuffer_Release(&payloads);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&hmac_key);
    PyBuffer_Release(&master_key);
    return result;
}

/* --- unpack_entries ----------------------------------------------------------------------------------------------- */

static void raise_entries(bk_entries_status status, const bk_entries *entries, const bk_entries_result *result) {
    Py_ssize_t item = (Py_ssize_t)result->item;
    long long got = (long long)result->got, wanted = (long long)result->wanted;
    long long ledger_id = (long long)result->ledger_id, entry_id = (long long)result->entry_id;
    switch (status) {
    case BK_ENTRIES_BAD_HEADER_BYTES:
        INVALID("header_bytes must be 0..2147483647: %lld", (long long)entries->header_bytes);
        break;
    case BK_ENTRIES_BAD_LEDGER:
        INVALID("ledger_id must not be negative: %lld", (long long)entries->ledger_id);
        break;
    case BK_ENTRIES_BAD_DIGEST_TYPE:
        raise_bad_digest_type(entries->digest_type);
        break;
    case BK_ENTRIES_BAD_HMAC_KEY:
        raise_bad_hmac_key(entries->hmac_key_size);
        break;
    case BK_ENTRIES_CUT_LENGTH:
        PROTOCOL("item %zd is cut off: %lld of 4 length bytes", item, got);
        break;
    case BK_ENTRIES_SHORT:
        PROTOCOL("item %zd has %lld bytes and needs at least %lld", item, got, wanted);
        break;
    case BK_ENTRIES_CUT:
        PROTOCOL("item %zd is cut off: %lld of %lld bytes", item, got, wanted);
        break;
    case BK_ENTRIES_WRONG_DIGEST:
        raise_digest_error(result,
                           PyUnicode_FromFormat("item %zd: wrong digest (its header says ledger %lld, entry %lld)",
                                                item, ledger_id, entry_id));
        break;
    case BK_ENTRIES_WRONG_LEDGER:
        raise_digest_error(result,
                           PyUnicode_FromFormat("item %zd: ledger %lld, entry %lld where ledger %lld was expected",
                                                item, ledger_id, entry_id, (long long)entries->ledger_id));
        break;
    default:
        raise_changed();
    }
}

/* Fills four fresh bytes objects, which the caller owns even after a failure. -1 with an exception set. */
static int fill_columns(const bk_entries *entries, PyObject *outputs[4]) {
    bk_entries_result found;
    PyThreadState *state = let_go(entries->size);
    bk_entries_status status = bk_measure_entries(entries, &found);
    take_back(state);
    if (status == BK_ENTRIES_OK) {
        bk_columns columns = {.count = found.count, .value_bytes = found.value_bytes};
        uint64_t count = found.count;
        uint64_t sizes[4] = {count * 8, (count + 1) * 8, found.value_bytes, count * 16};
        for (int i = 0; i < 4; i++) {
            outputs[i] = new_bytes(sizes[i]);
            if (outputs[i] == NULL) {
                return -1;
            }
        }
        columns.entry_ids = bytes_of(outputs[0]);
        columns.offsets = bytes_of(outputs[1]);
        columns.values = bytes_of(outputs[2]);
        columns.lacs_and_lengths = bytes_of(outputs[3]);
        state = let_go(entries->size);
        status = bk_unpack_entries(entries, &columns, &found);
        take_back(state);
        if (status == BK_ENTRIES_OK && (found.count != columns.count || found.value_bytes != columns.value_bytes)) {
            status = BK_ENTRIES_NO_ROOM; /* less than a moment ago */
        }
    }
    if (status != BK_ENTRIES_OK) {
        raise_entries(status, entries, &found);
        return -1;
    }
    return 0;
}

static PyObject *unpack_entries(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer data = {0}, hmac_key = {0};
    bk_entries entries;
    PyObject *outputs[4] = {NULL, NULL, NULL, NULL};
    PyObject *result = NULL;
    (void)module;
    if (check_count("unpack_entries", nargs, 5, 5) < 0) {
        return NULL;
    }
    if (take_view(args[0], &data) < 0 || take_int(args[1], "header_bytes", &entries.header_bytes) < 0 ||
        take_int(args[2], "ledger_id", &entries.ledger_id) < 0 ||
        take_int(args[3], "digest_type", &entries.digest_type) < 0 || take_view(args[4], &hmac_key) < 0) {
        goto done;
    }
    entries.data = data.buf;
    entries.size = (size_t)data.len;
    entries.hmac_key = hmac_key.buf;
    entries.hmac_key_size = (size_t)hmac_key.len;
    if (fill_columns(&entries, outputs) == 0) {
        result = PyTuple_Pack(4, outputs[0], outputs[1], outputs[2], outputs[3]);
    }
    for (int i = 0; i < 4; i++) {
        Py_XDECREF(outputs[i]);
    }
done:
    PyBuffer_Release(&data);
    PyBuffer_Release(&hmac_key);
    return result;
}

/* --- the module --------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(crc32c_doc, "crc32c($module, data, value=0, /)\n--\n\n"
                         "CRC-32C of data, continued from an earlier result.");
PyDoc_STRVAR(scan_frames_doc, "scan_frames($module, data, frame_bytes_max, /)\n--\n\n"
                              "Bounds of the complete frames of a receive buffer, and where the rest begins.");
PyDoc_STRVAR(frame_adds_doc, "frame_adds($module, payloads, offsets, ledger_id, first_entry_id,\n"
                             "           last_add_confirmed, length_before, digest_type, hmac_key,\n"
                             "           master_key, flags, /)\n--\n\n"
                             "Consecutive v2 ADD frames, digest included, and where each begins.");
PyDoc_STRVAR(unpack_entries_doc,
             "unpack_entries($module, data, header_bytes, ledger_id, digest_type,\n"
             "               hmac_key, /)\n--\n\n"
             "Columns of many entry bodies: entry ids, offsets, values, (LAC, length) pairs. Checks every digest.");

#define FAST(name, function, doc) {name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, doc}

static PyMethodDef methods[] = {
    FAST("crc32c", crc32c, crc32c_doc),
    FAST("scan_frames", scan_frames, scan_frames_doc),
    FAST("frame_adds", frame_adds, frame_adds_doc),
    FAST("unpack_entries", unpack_entries, unpack_entries_doc),
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) {
    /* Under the one GIL: multi-phase modules share it between interpreters unless they ask for their own. */
    bk_digest_init();
    return PyModule_AddStringConstant(module, "CRC32C_KERNEL", bk_crc32c_kernel());
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "bk_core.kernels._native",
    .m_doc = "The kernels in C; bk_core/kernels/pure.py says what they mean.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void) {
    return PyModuleDef_Init(&definition);
}
