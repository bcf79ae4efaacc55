/* Arenas: memory for NumPy's arrays in a mapping of a file.

   An array that is made while an arena is in use (PyDataMem_SetHandler, NEP 49) is allocated in it
   and keeps it alive. Pages can be written to the file and dropped, and come back when they are
   read or touched. The system does that, so no bug here can change the data of an array. Blocks
   begin at pages, each with a tag; arrays shorter than SMALL are allocated on the heap, and so are
   those for which the arena has no room. Freed memory keeps its pages until `trim` and is used
   again first: to touch a new page takes longer than to compute with it.

       arena(fd, length) -> handler              use(handler or None) -> the previous one
       tag(handler, tag, bytes)                  tags new blocks; beyond this many bytes of them
                                                 free memory loses its pages
       retag(handler, address, tag)              changes the tag of the block at this address
       blocks(handler, tag) -> [(start, end)]    where blocks are, in bytes; neighbours are joined
       trim(handler, bytes)                      lets at most this much free memory keep its pages
       start_write, end_write(handler, start, end)   writes pages and drops them
       start_read, end_read(handler, start, end)     has pages in memory

   Functions of a range release the GIL. They give the disk all its work before they wait for it. */
#include "blocks.h"

#ifdef __linux__
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL (1 << 16)
#define NAME "mem_handler" /* of capsules: NumPy prescribes it */

typedef struct {
    PyDataMem_Handler handler;
    char *memory;
    int fd;
    npy_intp length, page;
    npy_intp allowance; /* bytes of new blocks and warm memory together, from `tag` on */
    long tag;
    Blocks used, warm; /* warm: free blocks that have pages; neighbours are joined */
} Arena;

static int is_inside(const Arena *a, const void *p) {
    return (const char *)p >= a->memory && (const char *)p < a->memory + a->length;
}

/* The start of the first gap between used and warm blocks that is long enough. */
static npy_intp cold(const Arena *a, npy_intp bytes) {
    npy_intp at = 0, i = 0, j = 0;
    while (i < a->used.count || j < a->warm.count) {
        int is_used = j == a->warm.count ||
                      (i < a->used.count && a->used.at[i].start < a->warm.at[j].start);
        Block next = is_used ? a->used.at[i++] : a->warm.at[j++];
        if (next.start - at >= bytes) break;
        at = next.end;
    }
    return a->length - at < bytes ? -1 : at;
}

/* Drops pages without writing them. Their blocks on the disk stay reserved if the file system can
   do that, and are else allocated again at once: to allocate one at each page fault takes three
   times as long, and the disk may be full by then. */
static int zeroed(const Arena *a, npy_intp start, npy_intp n) {
    int same = FALLOC_FL_KEEP_SIZE;
    if (!fallocate(a->fd, FALLOC_FL_ZERO_RANGE | same, start, n)) return 0;
    if (fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | same, start, n)) return -1;
    return fallocate(a->fd, same, start, n);
}

/* Leaves at most this many bytes warm. The last blocks go, since the first ones are reused
   first. */
static int shrink(Arena *a, npy_intp most) {
    npy_intp there = bytes_of(&a->warm);
    while (there > most && a->warm.count) {
        Block *last = a->warm.at + a->warm.count - 1;
        npy_intp n = last->end - last->start, pages = (there - most + a->page - 1) / a->page;
        if (n > pages * a->page) n = pages * a->page;
        if (zeroed(a, last->end - n, n)) return -1;
        last->end -= n;
        there -= n;
        if (last->end == last->start) a->warm.count--;
    }
    return 0;
}

static void *allocate(void *context, size_t size) {
    Arena *a = context;
    if (size < SMALL || size > (size_t)a->length) return malloc(size);
    if (!has_room(&a->used) || !has_room(&a->warm)) return malloc(size);
    npy_intp bytes = ((npy_intp)size + a->page - 1) / a->page * a->page;
    npy_intp at = take(&a->warm, bytes);
    if (at < 0) {
        at = cold(a, bytes);
        if (at < 0 || shrink(a, a->allowance - bytes)) return malloc(size);
    }
    a->allowance -= bytes;
    insert(&a->used, block_at(&a->used, at), (Block){at, at + bytes, a->tag});
    return a->memory + at;
}

static void *allocate_zeros(void *context, size_t n, size_t size) {
    if (n && size > PY_SSIZE_T_MAX / n) return NULL;
    void *p = allocate(context, n * size);
    return p ? memset(p, 0, n * size) : NULL;
}

static void give_back(void *context, void *p, size_t size) {
    Arena *a = context;
    if (!is_inside(a, p)) {
        free(p);
        return;
    }
    npy_intp k = block_at(&a->used, (char *)p - a->memory);
    Block freed = a->used.at[k];
    delete(&a->used, k);
    a->allowance += freed.end - freed.start;
    if (has_room(&a->warm)) join(&a->warm, freed);
}

static void *allocate_again(void *context, void *p, size_t size) {
    Arena *a = context;
    if (p && !is_inside(a, p)) return realloc(p, size);
    void *q = allocate(context, size);
    if (p && q) {
        const Block *old = a->used.at + block_at(&a->used, (char *)p - a->memory);
        npy_intp bytes = old->end - old->start;
        memcpy(q, p, (size_t)bytes < size ? (size_t)bytes : size);
        give_back(context, p, 0);
    }
    return q;
}

/* ---- what Python calls */

static void release(Arena *a) {
    if (a->memory != MAP_FAILED) munmap(a->memory, (size_t)a->length);
    if (a->fd >= 0) close(a->fd);
    free(a->used.at);
    free(a->warm.at);
    free(a);
}

static void destroy(PyObject *capsule) { release(PyCapsule_GetContext(capsule)); }

static PyObject *arena(PyObject *self, PyObject *args) {
    int fd;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "in", &fd, &length)) return NULL;
    Arena *a = calloc(1, sizeof *a);
    if (!a) return PyErr_NoMemory();
    int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_NORESERVE;
    a->memory = mmap(NULL, (size_t)length, protection, flags, fd, 0);
    a->length = length;
    a->fd = a->memory == MAP_FAILED ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (a->fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        release(a);
        return NULL;
    }
    a->page = sysconf(_SC_PAGESIZE);
    a->handler = (PyDataMem_Handler){
        "nnmpi arena", 1, {a, allocate, allocate_zeros, allocate_again, give_back}};
    PyObject *capsule = PyCapsule_New(&a->handler, NAME, destroy);
    if (capsule) PyCapsule_SetContext(capsule, a);
    else release(a);
    return capsule;
}

/* The arena of a handler, which is the first argument of a function. */
static Arena *arena_of(PyObject *handler) {
    Arena *a = PyCapsule_IsValid(handler, NAME) ? PyCapsule_GetContext(handler) : NULL;
    if (!a && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "not an arena");
    return a;
}

static PyObject *use(PyObject *self, PyObject *handler) {
    return PyDataMem_SetHandler(handler == Py_None ? NULL : handler);
}

static PyObject *tag(PyObject *self, PyObject *args) {
    PyObject *handler;
    long value;
    Py_ssize_t allowance;
    if (!PyArg_ParseTuple(args, "Oln", &handler, &value, &allowance)) return NULL;
    Arena *a = arena_of(handler);
    if (!a) return NULL;
    a->tag = value;
    a->allowance = allowance;
    Py_RETURN_NONE;
}

static PyObject *retag(PyObject *self, PyObject *args) {
    PyObject *handler;
    Py_ssize_t address;
    long value;
    if (!PyArg_ParseTuple(args, "Onl", &handler, &address, &value)) return NULL;
    Arena *a = arena_of(handler);
    if (!a) return NULL;
    if (is_inside(a, (void *)address))
        a->used.at[block_at(&a->used, (char *)address - a->memory)].tag = value;
    Py_RETURN_NONE;
}

static PyObject *blocks(PyObject *self, PyObject *args) {
    PyObject *handler;
    long value;
    if (!PyArg_ParseTuple(args, "Ol", &handler, &value)) return NULL;
    Arena *a = arena_of(handler);
    PyObject *found = a ? PyList_New(0) : NULL;
    for (npy_intp k = 0; found && k < a->used.count; k++) {
        const Block *b = a->used.at;
        npy_intp start = b[k].start;
        if (b[k].tag != value) continue;
        while (k + 1 < a->used.count && b[k + 1].tag == value && b[k + 1].start == b[k].end) k++;
        PyObject *pair = Py_BuildValue("nn", start, b[k].end);
        if (!pair || PyList_Append(found, pair) < 0) Py_CLEAR(found);
        Py_XDECREF(pair);
    }
    return found;
}

static PyObject *trim(PyObject *self, PyObject *args) {
    PyObject *handler;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(args, "On", &handler, &most)) return NULL;
    Arena *a = arena_of(handler);
    if (!a) return NULL;
    if (shrink(a, most)) return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

/* `act` on the bytes from start to end, without the GIL. */
static PyObject *on_range(PyObject *args, int (*act)(Arena *, npy_intp, size_t)) {
    PyObject *handler;
    Py_ssize_t start, end;
    if (!PyArg_ParseTuple(args, "Onn", &handler, &start, &end)) return NULL;
    Arena *a = arena_of(handler);
    if (!a) return NULL;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = act(a, start, (size_t)(end - start));
    Py_END_ALLOW_THREADS
    if (failed) return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

/* Unmaps pages first: writing pages that no process has mapped needs no TLB shootdown. */
static int writes(Arena *a, npy_intp start, size_t n) {
    if (madvise(a->memory + start, n, MADV_DONTNEED)) return -1;
    return sync_file_range(a->fd, start, (off_t)n, SYNC_FILE_RANGE_WRITE);
}

static int written(Arena *a, npy_intp start, size_t n) {
    unsigned all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (sync_file_range(a->fd, start, (off_t)n, all)) return -1;
    /* once more: a page fault nearby may have mapped pages meanwhile */
    if (madvise(a->memory + start, n, MADV_DONTNEED)) return -1;
    errno = posix_fadvise(a->fd, start, (off_t)n, POSIX_FADV_DONTNEED);
    return errno;
}

static int reads(Arena *a, npy_intp start, size_t n) {
    return madvise(a->memory + start, n, MADV_WILLNEED);
}

static int there(Arena *a, npy_intp start, size_t n) {
#ifdef MADV_POPULATE_READ
    if (!madvise(a->memory + start, n, MADV_POPULATE_READ)) return 0;
#endif
    for (size_t i = 0; i < n; i += (size_t)a->page) (void)*(volatile char *)(a->memory + start + i);
    return 0;
}

static PyObject *start_write(PyObject *self, PyObject *args) { return on_range(args, writes); }
static PyObject *end_write(PyObject *self, PyObject *args) { return on_range(args, written); }
static PyObject *start_read(PyObject *self, PyObject *args) { return on_range(args, reads); }
static PyObject *end_read(PyObject *self, PyObject *args) { return on_range(args, there); }

PyMethodDef arena_functions[] = {
    {"arena", arena, METH_VARARGS, NULL},
    {"use", use, METH_O, NULL},
    {"tag", tag, METH_VARARGS, NULL},
    {"retag", retag, METH_VARARGS, NULL},
    {"blocks", blocks, METH_VARARGS, NULL},
    {"trim", trim, METH_VARARGS, NULL},
    {"start_write", start_write, METH_VARARGS, NULL},
    {"end_write", end_write, METH_VARARGS, NULL},
    {"start_read", start_read, METH_VARARGS, NULL},
    {"end_read", end_read, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
#else
PyMethodDef arena_functions[] = {{NULL, NULL, 0, NULL}};
#endif
