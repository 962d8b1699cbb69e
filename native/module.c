/* bk_core.kernels._native: the functions of many entries, and the module itself; binding.h says what belongs here. */
#include "binding.h"

#include <string.h>

#include "block.h"
#include "crc32c.h"
#include "digest.h"
#include "entries.h"
#include "frames.h"

/* --- state -------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject *block_type;
} module_state;

PyObject *bk_block_type_of(PyObject *module) {
    return ((module_state *)PyModule_GetState(module))->block_type;
}

/* --- errors of digests and keys ----------------------------------------------------------------------------------- */

static void raise_digest_error(const bk_entries_result *result, PyObject *message) {
    bk_raise_with("DigestError", message,
                  Py_BuildValue("{s:n,s:L,s:L}", "item", (Py_ssize_t)result->item, "ledger",
                                (long long)result->ledger_id, "entry", (long long)result->entry_id));
}

static void raise_bad_digest_type(int64_t type) {
    BK_INVALID("digest_type must be 1 (CRC32), 2 (HMAC), 3 (CRC32C) or 4 (DUMMY): %lld", (long long)type);
}

static void raise_bad_hmac_key(size_t size) {
    BK_INVALID("hmac_key must be 20 bytes for HMAC: %zd given", (Py_ssize_t)size);
}

/* --- crc32c ------------------------------------------------------------------------------------------------------- */

static PyObject *crc_of(uint32_t value, const uint8_t *data, size_t size) {
    PyThreadState *state = bk_let_go(size);
    uint32_t crc = bk_crc32c(value, data, size);
    bk_take_back(state);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *crc32c(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view = {0};
    int64_t value = 0;
    PyObject *result = NULL;
    (void)module;
    if (nargs == 1 && PyBytes_Check(args[0])) { /* needs no view: it cannot change, and the caller keeps it */
        return crc_of(0, bk_bytes_of(args[0]), (size_t)PyBytes_Size(args[0]));
    }
    if (bk_check_count("crc32c", nargs, 1, 2) < 0 || bk_take_view(args[0], &view) < 0) {
        return NULL;
    }
    if (nargs == 2 && bk_take_int(args[1], "value", &value) < 0) {
        goto done;
    }
    if (value < 0 || value > INT64_C(0xFFFFFFFF)) {
        BK_INVALID("value must be 0..4294967295: %lld", (long long)value);
        goto done;
    }
    result = crc_of((uint32_t)value, view.buf, (size_t)view.len);
done:
    PyBuffer_Release(&view);
    return result;
}

/* --- scan_frames -------------------------------------------------------------------------------------------------- */

static PyObject *scan_frames(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view = {0};
    bk_scan_result found;
    int64_t limit;
    PyObject *bounds = NULL, *result = NULL;
    (void)module;
    if (bk_check_count("scan_frames", nargs, 2, 2) < 0 || bk_take_view(args[0], &view) < 0) {
        return NULL;
    }
    if (bk_take_int(args[1], "frame_bytes_max", &limit) < 0) {
        goto done;
    }
    /* Only length prefixes are read, a few nanoseconds for each frame, and the caller made room for all of them. */
    PyThreadState *state = bk_let_go((size_t)view.len);
    bk_scan_status status = bk_scan_frames(view.buf, (size_t)view.len, limit, NULL, 0, &found);
    bk_take_back(state);
    if (status == BK_SCAN_OK) {
        size_t capacity = found.count;
        bounds = bk_new_bytes((uint64_t)capacity * 16);
        if (bounds == NULL) {
            goto done;
        }
        uint8_t *out = bk_bytes_of(bounds);
        state = bk_let_go((size_t)view.len);
        status = bk_scan_frames(view.buf, (size_t)view.len, limit, out, capacity, &found);
        bk_take_back(state);
        if (status == BK_SCAN_OK && found.count != capacity) {
            status = BK_SCAN_NO_ROOM; /* fewer frames than a moment ago */
        }
    }
    if (status != BK_SCAN_OK) {
        bk_raise_scan(status, &found, limit);
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
        BK_INVALID("offsets must be one or more native int64: %zd bytes given", (Py_ssize_t)adds->offsets_size);
        break;
    case BK_ADDS_BAD_LEDGER:
        BK_INVALID("ledger_id must not be negative: %lld", (long long)adds->ledger_id);
        break;
    case BK_ADDS_BAD_ENTRY:
        BK_INVALID("first_entry_id must not be negative: %lld", (long long)adds->first_entry_id);
        break;
    case BK_ADDS_BAD_LAC:
        BK_INVALID("last_add_confirmed must be -1 or more: %lld", (long long)adds->last_add_confirmed);
        break;
    case BK_ADDS_BAD_LENGTH:
        BK_INVALID("length_before must not be negative: %lld", (long long)adds->length_before);
        break;
    case BK_ADDS_BAD_DIGEST_TYPE:
        raise_bad_digest_type(adds->digest_type);
        break;
    case BK_ADDS_BAD_HMAC_KEY:
        raise_bad_hmac_key(adds->hmac_key_size);
        break;
    case BK_ADDS_BAD_MASTER_KEY:
        BK_INVALID("master_key must be 20 bytes: %zd given", (Py_ssize_t)adds->master_key_size);
        break;
    case BK_ADDS_BAD_FLAGS:
        BK_INVALID("flags must be 0..65535: %lld", (long long)adds->flags);
        break;
    case BK_ADDS_OFFSET_OUTSIDE:
        BK_INVALID("offset %zd is %lld, outside the %zd bytes of payloads", index, value,
                   (Py_ssize_t)adds->payloads_size);
        break;
    case BK_ADDS_OFFSET_DECREASING:
        BK_INVALID("offset %zd is %lld, below the one before it", index, value);
        break;
    case BK_ADDS_PAYLOAD_TOO_LONG:
        BK_INVALID("payload %zd of %lld bytes does not fit in a frame", index, value);
        break;
    case BK_ADDS_ENTRY_OVERFLOW:
        BK_INVALID("%zd entries from %lld do not fit in 64 bits", (Py_ssize_t)result->count,
                   (long long)adds->first_entry_id);
        break;
    case BK_ADDS_LENGTH_OVERFLOW:
        BK_INVALID("%lld payload bytes after %lld do not fit in 64 bits", value, (long long)adds->length_before);
        break;
    default:
        bk_raise_changed();
    }
}

static PyObject *frame_checked_adds(PyObject *module, const bk_adds *adds) {
    bk_adds_result measured;
    PyObject *frames = NULL, *frame_offsets = NULL, *result = NULL;
    PyThreadState *state = bk_let_go(adds->offsets_size);
    bk_adds_status status = bk_measure_adds(adds, &measured);
    bk_take_back(state);
    if (status == BK_ADDS_OK) {
        uint64_t frame_bytes = measured.frame_bytes;
        uint64_t offset_bytes = ((uint64_t)measured.count + 1) * 8;
        uint8_t *frames_out = NULL;
        frames = bk_new_block(bk_block_type_of(module), frame_bytes, &frames_out);
        frame_offsets = bk_new_bytes(offset_bytes);
        if (frames == NULL || frame_offsets == NULL) {
            goto done;
        }
        uint8_t *offsets_out = bk_bytes_of(frame_offsets);
        state = bk_let_go((size_t)frame_bytes);
        status = bk_write_adds(adds, frames_out, (size_t)frame_bytes, offsets_out, (size_t)offset_bytes, &measured);
        bk_take_back(state);
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
    if (bk_check_count("frame_adds", nargs, 10, 10) < 0) {
        return NULL;
    }
    if (bk_take_view(args[0], &payloads) < 0 || bk_take_view(args[1], &offsets) < 0 ||
        bk_take_int(args[2], "ledger_id", &adds.ledger_id) < 0 ||
        bk_take_int(args[3], "first_entry_id", &adds.first_entry_id) < 0 ||
        bk_take_int(args[4], "last_add_confirmed", &adds.last_add_confirmed) < 0 ||
        bk_take_int(args[5], "length_before", &adds.length_before) < 0 ||
        bk_take_int(args[6], "digest_type", &adds.digest_type) < 0 || bk_take_view(args[7], &hmac_key) < 0 ||
        bk_take_view(args[8], &master_key) < 0 || bk_take_int(args[9], "flags", &adds.flags) < 0) {
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
    result = frame_checked_adds(module, &adds);
done:
    PyBuffer_Release(&payloads);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&hmac_key);
    PyBuffer_Release(&master_key);
    return result;
}

/* --- unpack_entries ----------------------------------------------------------------------------------------------- */

void bk_raise_entries(bk_entries_status status, const bk_entries *entries, const bk_entries_result *result) {
    Py_ssize_t item = (Py_ssize_t)result->item;
    long long got = (long long)result->got, wanted = (long long)result->wanted;
    long long ledger_id = (long long)result->ledger_id, entry_id = (long long)result->entry_id;
    switch (status) {
    case BK_ENTRIES_BAD_HEADER_BYTES:
        BK_INVALID("header_bytes must be 0..2147483647: %lld", (long long)entries->header_bytes);
        break;
    case BK_ENTRIES_BAD_LEDGER:
        BK_INVALID("ledger_id must not be negative: %lld", (long long)entries->ledger_id);
        break;
    case BK_ENTRIES_BAD_DIGEST_TYPE:
        raise_bad_digest_type(entries->digest_type);
        break;
    case BK_ENTRIES_BAD_HMAC_KEY:
        raise_bad_hmac_key(entries->hmac_key_size);
        break;
    case BK_ENTRIES_BAD_FIRST_ENTRY:
        BK_INVALID("first_entry_id must be -1 or more: %lld", (long long)entries->first_entry_id);
        break;
    case BK_ENTRIES_BAD_STEP:
        BK_INVALID("step must be 1..2147483647: %lld", (long long)entries->step);
        break;
    case BK_ENTRIES_ENTRY_OVERFLOW:
        BK_INVALID("%zd entries from %lld do not fit in 64 bits", (Py_ssize_t)result->count,
                   (long long)entries->first_entry_id);
        break;
    case BK_ENTRIES_CUT_LENGTH:
        BK_PROTOCOL("item %zd is cut off: %lld of 4 length bytes", item, got);
        break;
    case BK_ENTRIES_SHORT:
        BK_PROTOCOL("item %zd has %lld bytes and needs at least %lld", item, got, wanted);
        break;
    case BK_ENTRIES_CUT:
        BK_PROTOCOL("item %zd is cut off: %lld of %lld bytes", item, got, wanted);
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
    case BK_ENTRIES_WRONG_ENTRY:
        raise_digest_error(result,
                           PyUnicode_FromFormat("item %zd: ledger %lld, entry %lld where entry %lld was expected", item,
                                                ledger_id, entry_id, wanted));
        break;
    default:
        bk_raise_changed();
    }
}

/* Fills four fresh objects, which the caller owns even after a failure. -1 with an exception set. */
static int fill_columns(PyObject *module, const bk_entries *entries, PyObject *outputs[4]) {
    bk_entries_result found;
    PyThreadState *state = bk_let_go(entries->size);
    bk_entries_status status = bk_measure_entries(entries, &found);
    bk_take_back(state);
    if (status == BK_ENTRIES_OK) {
        bk_columns columns = {.count = found.count, .value_bytes = found.value_bytes};
        uint64_t count = found.count;
        uint64_t sizes[4] = {count * 8, (count + 1) * 8, found.value_bytes, count * 16};
        uint8_t **targets[4] = {&columns.entry_ids, &columns.offsets, &columns.values, &columns.lacs_and_lengths};
        for (int i = 0; i < 4; i++) {
            outputs[i] = bk_new_block(bk_block_type_of(module), sizes[i], targets[i]);
            if (outputs[i] == NULL) {
                return -1;
            }
        }
        state = bk_let_go(entries->size);
        status = bk_unpack_entries(entries, &columns, &found);
        bk_take_back(state);
        if (status == BK_ENTRIES_OK && (found.count != columns.count || found.value_bytes != columns.value_bytes)) {
            status = BK_ENTRIES_NO_ROOM; /* less than a moment ago */
        }
    }
    if (status != BK_ENTRIES_OK) {
        bk_raise_entries(status, entries, &found);
        return -1;
    }
    return 0;
}

static PyObject *unpack_entries(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer data = {0}, hmac_key = {0};
    bk_entries entries;
    PyObject *outputs[4] = {NULL, NULL, NULL, NULL};
    PyObject *result = NULL;
    if (bk_check_count("unpack_entries", nargs, 5, 7) < 0) {
        return NULL;
    }
    if (bk_take_view(args[0], &data) < 0 || bk_take_int(args[1], "header_bytes", &entries.header_bytes) < 0 ||
        bk_take_int(args[2], "ledger_id", &entries.ledger_id) < 0 ||
        bk_take_int(args[3], "digest_type", &entries.digest_type) < 0 || bk_take_view(args[4], &hmac_key) < 0) {
        goto done;
    }
    entries.first_entry_id = -1;
    entries.step = 1;
    if ((nargs > 5 && bk_take_int(args[5], "first_entry_id", &entries.first_entry_id) < 0) ||
        (nargs > 6 && bk_take_int(args[6], "step", &entries.step) < 0)) {
        goto done;
    }
    entries.data = data.buf;
    entries.size = (size_t)data.len;
    entries.hmac_key = hmac_key.buf;
    entries.hmac_key_size = (size_t)hmac_key.len;
    if (fill_columns(module, &entries, outputs) == 0) {
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
             "               hmac_key, first_entry_id=-1, step=1, /)\n--\n\n"
             "Columns of many entry bodies: entry ids, offsets, values, (LAC, length) pairs. Checks every digest.");
PyDoc_STRVAR(unpack_part_doc, "unpack_part($module, data, ledger_id, digest_type, hmac_key, first_entry_id,\n"
                              "            values, offsets, taken, /)\n--\n\n"
                              "The next of many entry bodies into columns that are there. Checks every digest.");
PyDoc_STRVAR(new_block_doc, "new_block($module, size, /)\n--\n\n"
                            "Memory to write to, not filled in, which is used again when nobody has it.");
PyDoc_STRVAR(scan_responses_doc,
             "scan_responses($module, data, start, stop, frame_bytes_max, /)\n--\n\n"
             "Runs of v2 responses in a receive buffer, the end of the last frame, and what is wanted.");
PyDoc_STRVAR(scan_requests_doc,
             "scan_requests($module, data, start, stop, frame_bytes_max, /)\n--\n\n"
             "Runs of v2 requests in a receive buffer, the end of the last frame, and what is wanted.");
PyDoc_STRVAR(take_bodies_doc, "take_bodies($module, data, start, stop, /)\n--\n\n"
                              "Bodies of add frames, each behind its length, and the greatest last add confirmed.");
PyDoc_STRVAR(measure_run_doc, "measure_run($module, offsets, /)\n--\n\n"
                              "Number of entries, first and last offset, and the largest entry.");
PyDoc_STRVAR(frame_reads_doc, "frame_reads($module, ledger_id, first_entry_id, count, step=1, flags=0, /)\n--\n\n"
                              "Plain v2 read requests for every step-th entry.");
PyDoc_STRVAR(frame_reads_v3_doc,
             "frame_reads_v3($module, ledger_id, first_entry_id, count, step, first_number, /)\n--\n\n"
             "Plain v3 read requests with consecutive numbers for every step-th entry.");
PyDoc_STRVAR(frame_add_responses_doc, "frame_add_responses($module, ledger_id, first_entry_id, count, code, /)\n--\n\n"
                                      "v2 add responses for consecutive entries.");
PyDoc_STRVAR(frame_read_responses_doc, "frame_read_responses($module, ledger_id, first_entry_id, bodies, /)\n--\n\n"
                                       "OK v2 read responses for consecutive entries.");
PyDoc_STRVAR(entry_bits_doc, "entry_bits($module, frames, first_entry_id, span, /)\n--\n\n"
                             "The entries of add responses as bits.");
PyDoc_STRVAR(skip_frames_doc, "skip_frames($module, data, start, stop, count, /)\n--\n\n"
                              "The position behind some length-prefixed items.");
PyDoc_STRVAR(interleave_doc, "interleave($module, lanes, /)\n--\n\n"
                             "The entries of all lanes in turn: offsets and values.");
PyDoc_STRVAR(select_frames_doc, "select_frames($module, frames, offsets, start, first_entry_id, position,\n"
                                "              ensemble_size, write_quorum_size, /)\n--\n\n"
                                "Those of a run of framed adds whose write set has a position.");
PyDoc_STRVAR(frame_adds_v3_doc, "frame_adds_v3($module, frames, offsets, start, first_entry_id, position,\n"
                                "              ensemble_size, write_quorum_size, ledger_id, first_number,\n"
                                "              recovery, deferred_sync, /)\n--\n\n"
                                "The same adds as requests of v3.");
PyDoc_STRVAR(scan_responses_v3_doc,
             "scan_responses_v3($module, data, start, stop, frame_bytes_max, /)\n--\n\n"
             "Runs of v3 responses in a receive buffer, the end of the last frame, and what is wanted.");
PyDoc_STRVAR(v3_read_frames_doc, "v3_read_frames($module, data, start, stop, /)\n--\n\n"
                                 "v3 read responses as those of v2, the step of their entries, the highest LAC told.");

#define FAST(name, function, doc) {name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, doc}

static PyMethodDef methods[] = {
    FAST("crc32c", crc32c, crc32c_doc),
    FAST("scan_frames", scan_frames, scan_frames_doc),
    FAST("frame_adds", frame_adds, frame_adds_doc),
    FAST("unpack_entries", unpack_entries, unpack_entries_doc),
    FAST("unpack_part", bk_unpack_part_call, unpack_part_doc),
    FAST("new_block", bk_new_block_call, new_block_doc),
    FAST("scan_responses", bk_scan_responses_call, scan_responses_doc),
    FAST("scan_requests", bk_scan_requests_call, scan_requests_doc),
    FAST("take_bodies", bk_take_bodies_call, take_bodies_doc),
    FAST("measure_run", bk_measure_run_call, measure_run_doc),
    FAST("frame_reads", bk_frame_reads_call, frame_reads_doc),
    FAST("frame_reads_v3", bk_frame_reads_v3_call, frame_reads_v3_doc),
    FAST("frame_add_responses", bk_frame_add_responses_call, frame_add_responses_doc),
    FAST("frame_read_responses", bk_frame_read_responses_call, frame_read_responses_doc),
    FAST("entry_bits", bk_entry_bits_call, entry_bits_doc),
    FAST("skip_frames", bk_skip_frames_call, skip_frames_doc),
    FAST("interleave", bk_interleave_call, interleave_doc),
    FAST("select_frames", bk_select_frames_call, select_frames_doc),
    FAST("frame_adds_v3", bk_frame_adds_v3_call, frame_adds_v3_doc),
    FAST("scan_responses_v3", bk_scan_responses_v3_call, scan_responses_v3_doc),
    FAST("v3_read_frames", bk_v3_read_frames_call, v3_read_frames_doc),
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) {
    /* Under the one GIL: multi-phase modules share it between interpreters unless they ask for their own. */
    bk_digest_init();
    module_state *state = PyModule_GetState(module);
    state->block_type = bk_block_type();
    if (state->block_type == NULL) {
        return -1;
    }
    return PyModule_AddStringConstant(module, "CRC32C_KERNEL", bk_crc32c_kernel());
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
    module_state *state = PyModule_GetState(module);
    if (state != NULL) {
        Py_VISIT(state->block_type);
    }
    return 0;
}

static int clear(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    if (state != NULL) {
        Py_CLEAR(state->block_type);
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "bk_core.kernels._native",
    .m_doc = "The kernels in C; bk_core/kernels/pure.py says what they mean.",
    .m_size = sizeof(module_state),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
};

PyMODINIT_FUNC PyInit__native(void) {
    return PyModuleDef_Init(&definition);
}
