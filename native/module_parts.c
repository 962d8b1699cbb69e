/* Entries of an answer that arrives in parts, and the memory that they go to. */
#include "binding.h"
#include "block.h"

#define BLOCK_SIZE_MAX 0x7FFFFFFF

PyObject *bk_new_block_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    int64_t size;
    if (bk_check_count("new_block", nargs, 1, 1) < 0 || bk_take_int(args[0], "size", &size) < 0) {
        return NULL;
    }
    if (size < 0 || size > BLOCK_SIZE_MAX) {
        BK_INVALID("size must be 0..2147483647: %lld", (long long)size);
        return NULL;
    }
    return bk_new_writable(bk_block_type_of(module), (uint64_t)size);
}

/* Numbers from left to right, before any byte is looked at. */
static int check_numbers(const bk_entries *entries, size_t offsets_size, int64_t taken) {
    bk_entries_result found;
    bk_entries none = *entries;
    none.size = 0;
    none.first_entry_id = 0;
    bk_entries_status status = bk_measure_entries(&none, &found);
    if (status != BK_ENTRIES_OK) {
        bk_raise_entries(status, entries, &found);
        return -1;
    }
    if (entries->first_entry_id < 0) {
        BK_INVALID("first_entry_id must not be negative: %lld", (long long)entries->first_entry_id);
        return -1;
    }
    if (offsets_size < 8 || offsets_size % 8 != 0) {
        BK_INVALID("offsets must be one or more native int64: %zd bytes given", (Py_ssize_t)offsets_size);
        return -1;
    }
    int64_t most = (int64_t)(offsets_size / 8 - 1);
    if (taken < 0 || taken > most) {
        BK_INVALID("taken must be 0..%lld: %lld", (long long)most, (long long)taken);
        return -1;
    }
    return 0;
}

static PyObject *unpack(const bk_entries *entries, const bk_columns *columns, size_t taken) {
    bk_entries_result found;
    PyThreadState *state = bk_let_go(entries->size);
    bk_entries_status status = bk_unpack_part(entries, columns, taken, &found);
    bk_take_back(state);
    if (status == BK_ENTRIES_NO_ROOM) {
        BK_INVALID("entry %zd does not fit in the values", (Py_ssize_t)found.item);
        return NULL;
    }
    if (status != BK_ENTRIES_OK) {
        bk_raise_entries(status, entries, &found);
        return NULL;
    }
    return Py_BuildValue("(nnL)", (Py_ssize_t)found.consumed, (Py_ssize_t)found.count, (long long)found.next);
}

PyObject *bk_unpack_part_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer data = {0}, hmac_key = {0}, values = {0}, offsets = {0};
    bk_entries entries = {.step = 1};
    int64_t taken;
    PyObject *result = NULL;
    (void)module;
    if (bk_check_count("unpack_part", nargs, 8, 8) < 0) {
        return NULL;
    }
    if (bk_take_view(args[0], &data) < 0 || bk_take_int(args[1], "ledger_id", &entries.ledger_id) < 0 ||
        bk_take_int(args[2], "digest_type", &entries.digest_type) < 0 || bk_take_view(args[3], &hmac_key) < 0 ||
        bk_take_int(args[4], "first_entry_id", &entries.first_entry_id) < 0 || bk_take_writable(args[5], &values) < 0 ||
        bk_take_writable(args[6], &offsets) < 0 || bk_take_int(args[7], "taken", &taken) < 0) {
        goto done;
    }
    entries.data = data.buf;
    entries.size = (size_t)data.len;
    entries.hmac_key = hmac_key.buf;
    entries.hmac_key_size = (size_t)hmac_key.len;
    if (check_numbers(&entries, (size_t)offsets.len, taken) < 0) {
        goto done;
    }
    bk_columns columns = {.count = (size_t)offsets.len / 8 - 1,
                          .value_bytes = (size_t)values.len,
                          .offsets = offsets.buf,
                          .values = values.buf};
    result = unpack(&entries, &columns, (size_t)taken);
done:
    PyBuffer_Release(&data);
    PyBuffer_Release(&hmac_key);
    PyBuffer_Release(&values);
    PyBuffer_Release(&offsets);
    return result;
}
