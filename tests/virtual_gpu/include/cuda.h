// The part of the CUDA driver's interface that this project uses, for the virtual GPU.
#pragma once

enum CUresult : int { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_DEVICE = 101 };
using CUdevice = int;

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active);
