// The part of the CUDA runtime that this project uses, for the virtual GPU: found before the toolkit's header
// of the same name, it lets an ordinary C++ compiler build .cu files. What a name means is in NVIDIA's CUDA
// Runtime API manual; what the virtual GPU checks beyond that is in ../README.md.
#pragma once

#include <math.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#define ANNULUS_VIRTUAL_GPU 1

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719
};
struct cudaUUID_t {
  char bytes[16];
};

struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
};

enum cudaMemcpyKind { cudaMemcpyDefault = 4 };

inline constexpr unsigned cudaHostAllocDefault = 0;
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDefault = 0;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaEventRecordDefault = 0;
inline constexpr unsigned cudaEventRecordExternal = 1;

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };

namespace virtual_gpu {
struct Stream;
struct Event;
struct Graph;
struct GraphExec;
}  // namespace virtual_gpu
using cudaStream_t = virtual_gpu::Stream*;
using cudaEvent_t = virtual_gpu::Event*;
using cudaGraph_t = virtual_gpu::Graph*;
using cudaGraphExec_t = virtual_gpu::GraphExec*;

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);

constexpr unsigned long long cudaEnableDefault = 0;
enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess = 0,
  cudaDriverEntryPointSymbolNotFound = 1
};
/// Creates no context.
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* result);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);

cudaError_t cudaMalloc(void** data, std::size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemcpyAsync(void* destination, const void* source, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* destination, int value, std::size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
};

namespace virtual_gpu {

// Where the calling device thread is. They never change within a thread, so they may be called once.
[[gnu::const]] uint3 thread_index();
[[gnu::const]] uint3 block_index();
[[gnu::const]] uint3 block_extent();
[[gnu::const]] uint3 grid_extent();

/// The block's dynamic shared memory: exactly the bytes that the launch asked for.
void* shared_memory();

void block_barrier();
void warp_barrier(unsigned mask);

/// Meets the other lanes of `mask` and returns the bits that lane (own lane ^ lane_mask) brought.
std::uint64_t warp_exchange_xor(unsigned mask, std::uint64_t bits, unsigned lane_mask);

/// Queues a kernel: `call` runs one thread of it on the arguments at `arguments`, which `release` deletes.
cudaError_t launch(const cudaLaunchConfig_t& config, void (*call)(const void*), const void* arguments,
                   std::size_t argument_bytes, void (*release)(const void*), const char* signature);

template <class... Parameters>
struct KernelCall {
  void (*kernel)(Parameters...);
  std::tuple<std::remove_const_t<Parameters>...> arguments;

  static void call(const void* self) {
    const KernelCall& c = *static_cast<const KernelCall*>(self);
    std::apply(c.kernel, c.arguments);
  }
  static void release(const void* self) { delete static_cast<const KernelCall*>(self); }
};

}  // namespace virtual_gpu

namespace virtual_gpu {

// Reads like a member, asks like a function: one coordinate of where the calling thread is.
template <uint3 (*where)(), unsigned uint3::*axis>
struct Coordinate {
  operator unsigned() const { return where().*axis; }
};

template <uint3 (*where)()>
struct Coordinates {
  Coordinate<where, &uint3::x> x;
  Coordinate<where, &uint3::y> y;
  Coordinate<where, &uint3::z> z;
};

}  // namespace virtual_gpu

inline constexpr ::virtual_gpu::Coordinates<::virtual_gpu::thread_index> threadIdx;
inline constexpr ::virtual_gpu::Coordinates<::virtual_gpu::block_index> blockIdx;
inline constexpr ::virtual_gpu::Coordinates<::virtual_gpu::block_extent> blockDim;
inline constexpr ::virtual_gpu::Coordinates<::virtual_gpu::grid_extent> gridDim;

inline void __syncthreads() { ::virtual_gpu::block_barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { ::virtual_gpu::warp_barrier(mask); }

template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned lane_mask) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = ::virtual_gpu::warp_exchange_xor(mask, bits, lane_mask);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  using Call = ::virtual_gpu::KernelCall<Parameters...>;
  const Call* call = new Call{kernel, {static_cast<Parameters>(arguments)...}};
  return ::virtual_gpu::launch(*config, Call::call, call, sizeof(Call), Call::release, __PRETTY_FUNCTION__);
}
