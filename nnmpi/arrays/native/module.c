#define NNMPI_NATIVE_MODULE
#include "native.h"
#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18
#endif

#define GLUE(a, b) a##b
#define NAMED(a, b) GLUE(a, b)
#define QUOTED(x) #x
#define TEXT(x) QUOTED(x)

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, TEXT(MODULE), NULL, -1};

/* Adds a Python function to the module; its `self` is a capsule with the kernel. */
static int add(PyObject *module, Kernel *kernel) {
    describe(kernel);
    PyObject *self = PyCapsule_New(kernel, NULL, NULL);
    PyObject *function = self ? PyCFunction_NewEx(&kernel->method, self, NULL) : NULL;
    int status = function ? PyModule_AddObjectRef(module, kernel->method.ml_name, function) : -1;
    Py_XDECREF(self);
    Py_XDECREF(function);
    return status;
}

/* AMX tiles are 8 KB of state, which the system saves only for processes that have asked for it. */
static int may_use_tiles(void) {
#ifdef __AMX_BF16__
    return !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
#else
    return 1;
#endif
}

PyMODINIT_FUNC NAMED(PyInit_, MODULE)(void) {
    import_array();
    if (!may_use_tiles()) {
        PyErr_SetString(PyExc_ImportError, "the system does not let this process use AMX");
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    Kernel *tables[] = {
        activation_kernels, attention_kernels, column_kernels,  depthwise_kernels,
        direct_kernels,     epilogue_kernels,  gate_kernels,    half_kernels,
        linear_kernels,     norm_kernels,      optimizer_kernels, product_kernels,
        row_kernels,        row_norm_kernels,  shared_kernels,  softmax_kernels,
        winograd_kernels,
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (Kernel *k = tables[i]; module && k->compute; k++)
            if (add(module, k) < 0) Py_CLEAR(module);
    if (module && PyModule_AddFunctions(module, arena_functions) < 0) Py_CLEAR(module);
    if (module && PyModule_AddFunctions(module, shared_functions) < 0) Py_CLEAR(module);
    return module;
}
