# What is built and how. ANNULUS_HAS_CUDA says afterwards whether CUDA is in the build.
set(ANNULUS_CUDA AUTO CACHE STRING "Build with CUDA: AUTO (if nvcc is found), ON or OFF")
set_property(CACHE ANNULUS_CUDA PROPERTY STRINGS AUTO ON OFF)
option(ANNULUS_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(ANNULUS_BUILD_BENCH "Build the benches" ${PROJECT_IS_TOP_LEVEL})
option(ANNULUS_BUILD_TOOLS "Build annulus-train and the other programs" ON)
option(ANNULUS_WARNINGS_AS_ERRORS "Fail on any compiler warning" OFF)
set(ANNULUS_SANITIZE "" CACHE STRING "Sanitizers to build with, for instance address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Exact reproducibility: no contraction that differs between compilers, no fast-math.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

option(ANNULUS_VIRTUAL_GPU "Run CUDA code on the virtual GPU of the tests, without nvcc" OFF)

# The tests use it in every build but those whose sanitizer claims the same compiler hooks or knows no fibers.
set(ANNULUS_HAS_VIRTUAL_GPU OFF)
if(ANNULUS_VIRTUAL_GPU OR (ANNULUS_BUILD_TESTS AND NOT ANNULUS_SANITIZE))
  set(ANNULUS_HAS_VIRTUAL_GPU ON)
endif()

set(ANNULUS_HAS_CUDA OFF)
set(ANNULUS_CUDA_REASON "switched off by ANNULUS_CUDA=OFF")
if(ANNULUS_VIRTUAL_GPU)
  set(ANNULUS_HAS_CUDA ON)
  set(ANNULUS_CUDA_REASON "the virtual GPU, because of ANNULUS_VIRTUAL_GPU")
elseif(ANNULUS_CUDA STREQUAL "AUTO" OR ANNULUS_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  set(problem "nvcc was not found; put it on PATH or set CMAKE_CUDA_COMPILER")
  if(CMAKE_CUDA_COMPILER)
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE version)
    string(REGEX MATCH "release ([0-9.]+)" version "${version}")
    set(version ${CMAKE_MATCH_1})
    set(problem "")
    if(version VERSION_LESS 12.5)
      set(problem "${CMAKE_CUDA_COMPILER} is of CUDA ${version}; 12.5 or later is needed")
    endif()
  endif()
  if(NOT problem)
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      # Machine code for A100 and H100/H200, and PTX for later devices.
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
    endif()
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)   # Debian 12's CMake predates it
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(ANNULUS_HAS_CUDA ON)
    set(ANNULUS_CUDA_REASON "nvcc ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
  elseif(ANNULUS_CUDA STREQUAL "AUTO")
    set(ANNULUS_CUDA_REASON "${problem}")
  else()
    message(FATAL_ERROR "ANNULUS_CUDA=ON, but ${problem}")
  endif()
endif()

# Headers for this tree alone, which may hold CUDA syntax or need a library's headers: they are not installed.
set(ANNULUS_PRIVATE_HEADERS "(/device/[a-z0-9_]*|_cpu|cuda_check|nccl_rank|hdf5_handle|checkpoint_hdf5|checkpoint_layout)\\.h$")

# One library per row of the include rule (docs/design.md).
#   annulus_add_library(NAME SOURCES... [CUDA SOURCES...])
# Sources after CUDA are part of a build with CUDA only.
function(annulus_add_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "CUDA")
  add_library(${name} ${arg_UNPARSED_ARGUMENTS})
  list(TRANSFORM arg_CUDA PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_target_properties(${name} PROPERTIES ANNULUS_CUDA_SOURCES "${arg_CUDA}")
  if(ANNULUS_VIRTUAL_GPU)
    annulus_use_virtual_gpu(${name} ${arg_CUDA})
  elseif(ANNULUS_HAS_CUDA)
    target_sources(${name} PRIVATE ${arg_CUDA})
    target_link_libraries(${name} PRIVATE CUDA::cudart_static)   # needs no driver to start a program
  endif()
  target_compile_definitions(${name} PRIVATE ANNULUS_HAS_CUDA=$<BOOL:${ANNULUS_HAS_CUDA}>)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                            $<INSTALL_INTERFACE:include/annulus>)
  annulus_warnings(${name})
endfunction()

function(annulus_warnings name)
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall>)
  if(ANNULUS_WARNINGS_AS_ERRORS)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>
                                           $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>
      # A kernel that spills registers or keeps an array in local memory does not pass either.
      $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=--warn-on-spills,--warn-on-local-memory-usage,--warning-as-error>)
  endif()
endfunction()

if(ANNULUS_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${ANNULUS_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${ANNULUS_SANITIZE})
endif()
