#include "binding.h"

#include <stdarg.h>

#define GIL_BYTES (64 * 1024) /* above this, other threads may run meanwhile */

/* --- errors ------------------------------------------------------------------------------------------------------- */

void bk_raise_with(const char *name, PyObject *message, PyObject *context) {
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

void bk_raise(const char *name, const char *format, ...) {
    va_list values;
    va_start(values, format);
    PyObject *message = PyUnicode_FromFormatV(format, values);
    va_end(values);
    bk_raise_with(name, message, PyDict_New());
}

void bk_raise_changed(void) {
    BK_INVALID("the input changed while it was being read");
}

void bk_raise_scan(bk_scan_status status, const bk_scan_result *result, int64_t frame_bytes_max) {
    switch (status) {
    case BK_SCAN_BAD_LIMIT:
        BK_INVALID("frame_bytes_max must be 5..2147483647: %lld", (long long)frame_bytes_max);
        break;
    case BK_SCAN_EMPTY:
        BK_PROTOCOL("a frame without payload");
        break;
    case BK_SCAN_TOO_LONG:
        BK_PROTOCOL("a frame of %lld bytes, length included, is over the limit of %lld", (long long)result->frame_bytes,
                    (long long)frame_bytes_max);
        break;
    default:
        bk_raise_changed();
    }
}

/* --- arguments ---------------------------------------------------------------------------------------------------- */

int bk_check_count(const char *function, Py_ssize_t given, Py_ssize_t least, Py_ssize_t most) {
    if (given < least || given > most) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd positional arguments but %zd were given", function, least,
                     most, given);
        return -1;
    }
    return 0;
}

static int take_view(PyObject *object, Py_buffer *view, int flags, const char *otherwise) {
    if (!PyObject_CheckBuffer(object)) {
        PyObject *type_name = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");
        if (type_name != NULL) {
            PyErr_Format(PyExc_TypeError, "a bytes-like object is required, not '%U'", type_name);
            Py_DECREF(type_name);
        }
        return -1;
    }
    if (PyObject_GetBuffer(object, view, flags) < 0) {
        if (PyErr_ExceptionMatches(PyExc_BufferError)) {
            PyErr_Clear();
            BK_INVALID("%s", otherwise);
        }
        return -1;
    }
    if (view->buf == NULL) {
        view->buf = (void *)""; /* empty; the plain C never sees a null pointer */
    }
    return 0;
}

int bk_take_view(PyObject *object, Py_buffer *view) {
    return take_view(object, view, PyBUF_SIMPLE, "a buffer must be C-contiguous");
}

int bk_take_writable(PyObject *object, Py_buffer *view) {
    return take_view(object, view, PyBUF_WRITABLE, "a buffer to write to must be writable and C-contiguous");
}

int bk_take_int(PyObject *object, const char *name, int64_t *value) {
    int overflow = 0;
    PyObject *index = PyNumber_Index(object);
    if (index == NULL) {
        return -1;
    }
    long long taken = PyLong_AsLongLongAndOverflow(index, &overflow);
    Py_DECREF(index);
    if (overflow != 0) {
        BK_INVALID("%s must fit in 64 bits", name);
        return -1;
    }
    *value = taken;
    return taken == -1 && PyErr_Occurred() ? -1 : 0;
}

int bk_check_range(int64_t start, int64_t stop, Py_ssize_t size) {
    if (start < 0 || start > size) {
        BK_INVALID("start must be 0..%zd: %lld", size, (long long)start);
        return -1;
    }
    if (stop < start || stop > size) {
        BK_INVALID("stop must be %lld..%zd: %lld", (long long)start, size, (long long)stop);
        return -1;
    }
    return 0;
}

PyObject *bk_new_bytes(uint64_t size) {
    if (size > (uint64_t)PY_SSIZE_T_MAX) {
        return PyErr_NoMemory();
    }
    return PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
}

uint8_t *bk_bytes_of(PyObject *object) {
    return (uint8_t *)PyBytes_AsString(object);
}

PyThreadState *bk_let_go(size_t bytes) {
    return bytes > GIL_BYTES ? PyEval_SaveThread() : NULL;
}

void bk_take_back(PyThreadState *state) {
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
}
