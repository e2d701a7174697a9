// Functions that both host and device code call.
#pragma once

#if defined(__CUDACC__)
#define ANNULUS_HOST_DEVICE __host__ __device__
#else
#define ANNULUS_HOST_DEVICE
#endif
