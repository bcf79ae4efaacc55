// What the headers of CUDA's runtime take from a header of its compiler, for the host alone.
#pragma once
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDART_CB
#define __host__
#define __device__
#define __device_builtin__
#define __cudart_builtin__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
