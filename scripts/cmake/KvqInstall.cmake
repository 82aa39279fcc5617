# `cmake --install`: tools, libkvq, public headers and a CMake package.
#
#   find_package(kvq REQUIRED)                       # -DCMAKE_PREFIX_PATH=<prefix>
#   target_link_libraries(program PRIVATE kvq::kvq)
#
# libtorch stays where it is: its folder is recorded (KVQ_TORCH_DIR) as run path of libkvq and of the tools, and as the
# package's default, which -DKVQ_TORCH_DIR of the consumer overrides.
include(CMakePackageConfigHelpers)

get_filename_component(torch_folder "${KVQ_TORCH_DIR}" REALPATH BASE_DIR "${CMAKE_SOURCE_DIR}")
set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/kvq")

# Run paths are not inherited: libkvq needs libtorch's folder itself. libtorch_cpu finds its own needs (libcudart, libcupti:
# beside it on a machine without a CUDA toolkit) by its own run path.
set_target_properties(kvq PROPERTIES INSTALL_RPATH "$ORIGIN;${torch_folder}/lib")
target_include_directories(kvq INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_compile_features(kvq INTERFACE cxx_std_20)
install(TARGETS kvq EXPORT kvqTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" NAMELINK_COMPONENT Development)

if(TARGET kvq_cuda)  # beside libkvq, which opens it
  set_target_properties(kvq_cuda PROPERTIES INSTALL_RPATH "$ORIGIN;${torch_folder}/lib")
  # Not built by the quickstart, which asks for the tools alone.
  install(TARGETS kvq_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" OPTIONAL)
endif()

file(RELATIVE_PATH bin_to_lib "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
foreach(tool kvq-fisher kvq-threshold kvq-fit kvq-eval)
  if(TARGET ${tool})
    set_target_properties(${tool} PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib};${torch_folder}/lib")
    install(TARGETS ${tool} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
endforeach()

# <kvq/module/header.h>, as in the build. What is not meant for users lives in a folder `internal` or ends in _body.h.
get_property(modules GLOBAL PROPERTY KVQ_MODULES)
foreach(module ${modules})
  get_property(folder GLOBAL PROPERTY KVQ_FOLDER_${module})
  file(RELATIVE_PATH inside "${CMAKE_SOURCE_DIR}" "${folder}")
  string(REGEX REPLACE "^lib/" "" inside "${inside}")
  file(GLOB headers CONFIGURE_DEPENDS "${folder}/*.h")
  list(FILTER headers EXCLUDE REGEX "(_body|_internal)\\.h$")
  install(FILES ${headers} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/kvq/${inside}")
endforeach()

install(EXPORT kvqTargets NAMESPACE kvq:: DESTINATION "${package_folder}")
configure_package_config_file("${CMAKE_SOURCE_DIR}/scripts/cmake/kvqConfig.cmake.in" "${CMAKE_BINARY_DIR}/kvqConfig.cmake"
                              INSTALL_DESTINATION "${package_folder}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/kvqConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/kvqConfig.cmake" "${CMAKE_BINARY_DIR}/kvqConfigVersion.cmake"
              "${CMAKE_SOURCE_DIR}/scripts/cmake/KvqTorch.cmake"
        DESTINATION "${package_folder}")
install(FILES "${CMAKE_SOURCE_DIR}/LICENSE" "${CMAKE_SOURCE_DIR}/lib/artifacts/FORMAT.md" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/kvq")
