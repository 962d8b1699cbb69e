#include "block.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES_MIN (128u * 1024)       /* below, an allocator keeps memory anyway */
#define IDLE_BYTES_MAX  (48u * 1024 * 1024) /* of this process, kept for what comes next */
#ifdef __SANITIZE_ADDRESS__
#define BLOCK_BYTES_UNIT 1u
#define IDLE_COUNT_MAX   1
#define KEEPS_NOTHING    1 /* or nobody would notice who uses a block that was given back, or goes beyond its end */
#else
#define BLOCK_BYTES_UNIT (256u * 1024)
#define IDLE_COUNT_MAX   64
#define KEEPS_NOTHING    0
#endif

typedef struct {
    PyObject ob_base; /* PyObject_HEAD, which clang-format cannot place */
    uint8_t *data;
    size_t size;
    size_t capacity;
    int writable;
} block;

/* From the one that was given back first to the last. Touched under the GIL only. It is plain memory, of no
 * interpreter. */
static struct {
    uint8_t *data;
    size_t capacity;
} idle[IDLE_COUNT_MAX];
static size_t idle_count, idle_bytes;

static uint8_t *remove_idle(size_t index) {
    uint8_t *data = idle[index].data;
    idle_bytes -= idle[index].capacity;
    memmove(idle + index, idle + index + 1, (--idle_count - index) * sizeof *idle);
    return data;
}

/* The smallest idle block that is large enough, unless it is more than twice too large; of equals the latest one, which
 * may still be in a cache. */
static uint8_t *take_idle(size_t wanted, size_t *capacity) {
    size_t best = idle_count;
    for (size_t i = 0; i < idle_count; i++) {
        if (idle[i].capacity >= wanted && idle[i].capacity / 2 <= wanted &&
            (best == idle_count || idle[i].capacity <= idle[best].capacity)) {
            best = i;
        }
    }
    if (best == idle_count) {
        return NULL;
    }
    *capacity = idle[best].capacity;
    return remove_idle(best);
}

/* What has been idle for longest gives way: a program that goes on to blocks of another size must not find all places
 * taken by those that it wants no more. */
static void put_back(uint8_t *data, size_t capacity) {
    if (KEEPS_NOTHING || capacity > IDLE_BYTES_MAX) {
        free(data);
        return;
    }
    while (idle_count == IDLE_COUNT_MAX || capacity > IDLE_BYTES_MAX - idle_bytes) {
        free(remove_idle(0));
    }
    idle[idle_count].data = data;
    idle[idle_count++].capacity = capacity;
    idle_bytes += capacity;
}

static void block_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    block *it = (block *)self;
    if (it->data != NULL) {
        put_back(it->data, it->capacity);
    }
    PyObject_Free(self);
    Py_DECREF(type);
}

static int block_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    block *it = (block *)self;
    return PyBuffer_FillInfo(view, self, it->data, (Py_ssize_t)it->size, !it->writable, flags);
}

static PyType_Slot block_slots[] = {
    {Py_tp_dealloc, (void *)block_dealloc},
    {Py_bf_getbuffer, (void *)block_getbuffer},
    {0, NULL},
};

static PyType_Spec block_spec = {
    .name = "bk_core.kernels._native.Block",
    .basicsize = sizeof(block),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = block_slots,
};

PyObject *bk_block_type(void) {
    return PyType_FromSpec(&block_spec);
}

static PyObject *new_view(PyObject *type, uint64_t size, int writable, uint8_t **data) {
    if (size > (uint64_t)PY_SSIZE_T_MAX - BLOCK_BYTES_UNIT) {
        return PyErr_NoMemory();
    }
    block *it = PyObject_New(block, (PyTypeObject *)type);
    if (it == NULL) {
        return NULL;
    }
    it->size = (size_t)size;
    it->writable = writable;
    it->capacity = ((size_t)size + BLOCK_BYTES_UNIT - 1) / BLOCK_BYTES_UNIT * BLOCK_BYTES_UNIT;
    it->data = take_idle(it->capacity, &it->capacity);
    if (it->data == NULL) {
        it->data = malloc(it->capacity);
    }
    PyObject *view = NULL;
    if (it->data == NULL) {
        PyErr_NoMemory();
    } else {
        *data = it->data;
        view = PyMemoryView_FromObject((PyObject *)it);
    }
    Py_DECREF(it);
    return view;
}

PyObject *bk_new_block(PyObject *type, uint64_t size, uint8_t **data) {
    if (size < BLOCK_BYTES_MIN) {
        PyObject *bytes = bk_new_bytes(size);
        *data = bytes == NULL ? NULL : bk_bytes_of(bytes);
        return bytes;
    }
    return new_view(type, size, 0, data);
}

PyObject *bk_new_writable(PyObject *type, uint64_t size) {
    if (size < BLOCK_BYTES_MIN) {
        PyObject *bytes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)size);
        PyObject *view = bytes == NULL ? NULL : PyMemoryView_FromObject(bytes);
        Py_XDECREF(bytes);
        return view;
    }
    uint8_t *data;
    return new_view(type, size, 1, &data);
}
