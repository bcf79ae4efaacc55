/* Optimizer steps in one pass over memory. Each number is computed by the operations of
   kernels/steps.py in their order, so the bits are those of NumPy. */
#include "native.h"
#include <math.h>

#define REAL float
#define OF(name) name##_float
#define ROOT sqrtf
#include "optimizers.h"
#undef REAL
#undef OF
#undef ROOT

#define REAL double
#define OF(name) name##_double
#define ROOT sqrt
#include "optimizers.h"

#define STEP(name, of, fits)                                                                       \
    static int name(Arguments *a) {                                                                \
        if (!(fits)) return NOT_MADE_FOR;                                                          \
        if (a->type == NPY_FLOAT) of##_float(a, a->number);                                        \
        else of##_double(a, a->number);                                                            \
        return DONE;                                                                               \
    }

/* p, g, m, v, largest or None, beta1, beta2, a, e, decay, shrink */
STEP(adam_loop, adam, 1)
/* p, g, velocity or None, momentum, decay, lr, rate of the velocity, whether g moves p, as it does
   without a velocity */
STEP(sgd_loop, sgd, a->at[2] || a->number[4])
/* p, g, squares, velocity or None, mean or None, lr, alpha, 1 - alpha, eps, decay, momentum */
STEP(rmsprop_loop, rmsprop, 1)

Kernel optimizer_kernels[] = {
    KERNEL(adam_loop, "=r@ r@ =r@ =r@ =?r@ # # # # # #"),
    KERNEL(sgd_loop, "=r@ r@ =?r@ # # # # !"),
    KERNEL(rmsprop_loop, "=r@ r@ =r@ =?r@ =?r@ # # # # # #"),
    END_OF_KERNELS,
};
