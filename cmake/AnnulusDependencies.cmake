# Every dependency, and what it is for (README.md has the same list).
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)                        # messages
find_package(dnnl REQUIRED)                       # arithmetic of the CPU back end (oneDNN)
find_package(ZLIB REQUIRED)                       # .gz datasets
set(HDF5_PREFER_PARALLEL OFF)
find_package(HDF5 REQUIRED COMPONENTS C)          # checkpoints and HDF5 datasets
find_package(nlohmann_json REQUIRED)              # the manifest of checkpoints, configuration files, metrics
if(ANNULUS_BUILD_TOOLS OR ANNULUS_BUILD_BENCH)
  find_package(CLI11 REQUIRED)                    # command lines
endif()
if(ANNULUS_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(ANNULUS_HAS_VIRTUAL_GPU)
  find_package(Boost REQUIRED COMPONENTS context)  # device threads of the virtual GPU
endif()
if(ANNULUS_HAS_CUDA AND NOT ANNULUS_VIRTUAL_GPU)
  # The runtime, linked statically, and cuBLASLt, for matrix products: neither needs a driver to start a program.
  find_package(CUDAToolkit REQUIRED)
endif()
set(ANNULUS_HAS_NCCL ${ANNULUS_VIRTUAL_GPU})
set(ANNULUS_NCCL_REASON "${ANNULUS_CUDA_REASON}")
if(ANNULUS_HAS_CUDA AND NOT ANNULUS_VIRTUAL_GPU)
  find_path(ANNULUS_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})   # collectives between devices
  find_library(ANNULUS_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  set(ANNULUS_NCCL_REASON "${ANNULUS_NCCL_LIBRARY}")
  if(ANNULUS_NCCL_INCLUDE_DIR AND ANNULUS_NCCL_LIBRARY)
    set(ANNULUS_HAS_NCCL ON)
  else()
    set(ANNULUS_NCCL_REASON "nccl.h or libnccl was not found; set ANNULUS_NCCL_INCLUDE_DIR and ANNULUS_NCCL_LIBRARY")
  endif()
endif()
