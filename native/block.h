/* Memory for what kernels bring: used again, because fresh pages cost more than what is written into them.
 *
 * An allocator gives megabytes back to the system when they are freed, and then every page of the next megabytes
 * faults. So big results are memoryviews over blocks that come back here when nobody looks at them any more.
 */
#ifndef BK_BLOCK_H
#define BK_BLOCK_H

#include "binding.h"

/* The type of blocks, for the module's state; NULL with an exception set. */
PyObject *bk_block_type(void);

/* An object of `size` bytes, not filled in, read-only for Python: bytes if they are few, else a memoryview over a
 * block. *data is where they are. NULL with MemoryError. */
PyObject *bk_new_block(PyObject *type, uint64_t size, uint8_t **data);

/* A memoryview of `size` bytes, not filled in, that Python may write to. NULL with MemoryError. */
PyObject *bk_new_writable(PyObject *type, uint64_t size);

#endif
