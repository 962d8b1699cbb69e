/* What the files that know Python share: arguments, the GIL, and exceptions of bk_core.errors.
 *
 * module.c and module_*.c turn arguments into pointers and lengths, let go of the GIL for big inputs, and turn a
 * status into the exception that bk_core/kernels/pure.py raises for the same input, to the letter. They keep no Python
 * object between calls.
 */
#ifndef BK_BINDING_H
#define BK_BINDING_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <stdint.h>

#include "entries.h"
#include "frames.h"

/* Raises bk_core.errors.<name>(message, **context). Takes over both references; either may be NULL after a failure. */
void bk_raise_with(const char *name, PyObject *message, PyObject *context);
void bk_raise(const char *name, const char *format, ...);
void bk_raise_changed(void);
void bk_raise_entries(bk_entries_status status, const bk_entries *entries, const bk_entries_result *result);
void bk_raise_scan(bk_scan_status status, const bk_scan_result *result, int64_t frame_bytes_max);

#define BK_INVALID(...)  bk_raise("InvalidArgumentError", __VA_ARGS__)
#define BK_PROTOCOL(...) bk_raise("RemoteProtocolError", __VA_ARGS__)

/* Each answers 0, or -1 with an exception set. A view that has not been taken has obj == NULL, and releasing it does
 * nothing. */
int bk_check_count(const char *function, Py_ssize_t given, Py_ssize_t least, Py_ssize_t most);
int bk_take_view(PyObject *object, Py_buffer *view);
int bk_take_writable(PyObject *object, Py_buffer *view);
int bk_take_int(PyObject *object, const char *name, int64_t *value);
int bk_check_range(int64_t start, int64_t stop, Py_ssize_t size); /* 0 <= start <= stop <= size */

/* bytes of this size, not filled in, or NULL with MemoryError. */
PyObject *bk_new_bytes(uint64_t size);
uint8_t *bk_bytes_of(PyObject *object);

/* The type of blocks (block.h), borrowed from the module's state. */
PyObject *bk_block_type_of(PyObject *module);

/* For work on more than 64 KiB other threads may run between the two. */
PyThreadState *bk_let_go(size_t bytes);
void bk_take_back(PyThreadState *state);

/* The functions of the other files; module.c lists them. */
PyObject *bk_unpack_part_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_new_block_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_scan_responses_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_scan_requests_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_take_bodies_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_measure_run_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_frame_reads_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_frame_reads_v3_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_frame_add_responses_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_frame_read_responses_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_entry_bits_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_skip_frames_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_interleave_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_select_frames_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_frame_adds_v3_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_scan_responses_v3_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bk_v3_read_frames_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
