# The virtual GPU (tests/virtual_gpu): .cu files as ordinary C++ that runs on the CPU, thread by thread.
# ANNULUS_VIRTUAL_GPU=ON builds the product with it. Otherwise the tests build the libraries that they need a
# second time, as annulus_virtual_*.

# Builds a library's .cu files for the virtual GPU. To be called in the folder of the target.
function(annulus_use_virtual_gpu name)
  target_compile_definitions(${name} PRIVATE ANNULUS_HAS_CUDA=1 ANNULUS_HAS_NCCL=1)
  target_link_libraries(${name} PRIVATE annulus_virtual_gpu)
  if(ARGN)
    target_sources(${name} PRIVATE ${ARGN})
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX)
    annulus_check_device_code(${ARGN})
  endif()
endfunction()

# Compiles sources with a call before every memory access (see tests/virtual_gpu/access_checks.cpp).
function(annulus_check_device_code)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS
    "-fno-sanitize=all;-fsanitize=thread,alignment;-fno-sanitize-recover=alignment;-g1;-Wno-unknown-pragmas;-Wno-tsan")
endfunction()

# annulus_virtual_twin(base): annulus_virtual_base, from the sources of annulus_base with its .cu files.
function(annulus_virtual_twin part)
  get_target_property(folder annulus_${part} SOURCE_DIR)
  get_target_property(sources annulus_${part} SOURCES)
  get_property(cuda_sources TARGET annulus_${part} PROPERTY ANNULUS_CUDA_SOURCES)
  list(FILTER sources EXCLUDE REGEX "\\.cu$")
  list(TRANSFORM sources PREPEND ${folder}/)
  add_library(annulus_virtual_${part} STATIC ${sources})
  target_compile_features(annulus_virtual_${part} PUBLIC cxx_std_20)
  target_include_directories(annulus_virtual_${part} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(annulus_virtual_${part} PRIVATE $<TARGET_PROPERTY:annulus_${part},COMPILE_OPTIONS>)
  annulus_use_virtual_gpu(annulus_virtual_${part} ${cuda_sources})
  foreach(scope LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
    get_target_property(libraries annulus_${part} ${scope})
    list(FILTER libraries EXCLUDE REGEX "CUDA::|libnccl")
    list(TRANSFORM libraries REPLACE "annulus_" "annulus_virtual_")
    set_property(TARGET annulus_virtual_${part} APPEND PROPERTY ${scope} ${libraries})
  endforeach()
endfunction()
