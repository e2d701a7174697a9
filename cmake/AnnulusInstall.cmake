# The package: find_package(annulus), targets annulus::core, annulus::nccl, annulus::io, annulus::annulus.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(annulus_core INTERFACE)
target_link_libraries(annulus_core INTERFACE annulus_nn annulus_kernels annulus_base)
add_library(annulus_annulus INTERFACE)
target_link_libraries(annulus_annulus INTERFACE annulus_core annulus_nccl annulus_io)

foreach(name core nccl io annulus)
  add_library(annulus::${name} ALIAS annulus_${name})
  set_target_properties(annulus_${name} PROPERTIES EXPORT_NAME ${name})
endforeach()

if(ANNULUS_VIRTUAL_GPU)
  return()  # a test instrument: nobody installs programs that run CUDA code on it
endif()

install(TARGETS annulus_base annulus_kernels annulus_nn annulus_core annulus_nccl annulus_io annulus_annulus
        EXPORT annulus-targets)
install(EXPORT annulus-targets NAMESPACE annulus:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/annulus)
foreach(folder core kernels nccl io)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION include/annulus FILES_MATCHING PATTERN "*.h"
          PATTERN device EXCLUDE REGEX "${ANNULUS_PRIVATE_HEADERS}" EXCLUDE)
endforeach()
configure_package_config_file(cmake/annulus-config.cmake.in ${PROJECT_BINARY_DIR}/annulus-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/annulus)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/annulus-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/annulus-config.cmake ${PROJECT_BINARY_DIR}/annulus-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/annulus)
