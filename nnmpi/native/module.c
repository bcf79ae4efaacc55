#define NNMPI_NATIVE_MODULE
#include "native.h"

#define GLUE(a, b) a##b
#define NAMED(a, b) GLUE(a, b)
#define QUOTED(x) #x
#define TEXT(x) QUOTED(x)

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, TEXT(MODULE), NULL, -1};

PyMODINIT_FUNC NAMED(PyInit_, MODULE)(void) {
    import_array();
    PyObject *module = PyModule_Create(&definition);
    PyMethodDef *tables[] = {
        activation_methods, attention_methods, column_methods,    depthwise_methods,
        direct_methods,     epilogue_methods,  gate_methods,     linear_methods,
        norm_methods,       optimizer_methods, products_methods,  row_methods,
        shared_methods,     softmax_methods,   winograd_methods,
    };
    for (size_t i = 0; module && i < sizeof tables / sizeof *tables; i++)
        if (PyModule_AddFunctions(module, tables[i]) < 0) Py_CLEAR(module);
    return module;
}
