// One public function per op; the stream's device chooses the implementation. Every op family declares
// its function once in annulus::kernels and repeats it for the back ends with
//   namespace cpu { decltype(kernels::op) op; }    // defined in op_cpu.cpp
//   namespace cuda { decltype(kernels::op) op; }   // defined in op.cu
// and op_cpu.cpp, which every build has, defines the public function with ANNULUS_DISPATCH.
#pragma once

#include "core/base/error.h"
#include "core/base/stream.h"

#if ANNULUS_HAS_CUDA
#define ANNULUS_DISPATCH(stream, function, ...) \
  ((stream).device().is_cuda() ? cuda::function((stream), __VA_ARGS__) : cpu::function((stream), __VA_ARGS__))
#else
#define ANNULUS_DISPATCH(stream, function, ...) cpu::function((stream), __VA_ARGS__)
#endif
