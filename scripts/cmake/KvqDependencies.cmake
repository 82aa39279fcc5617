# Well-kept libraries from the system's packages, as targets with one spelling on every distribution.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
# Its messages say where in the document a value of the wrong type stands.
set_property(TARGET nlohmann_json::nlohmann_json APPEND PROPERTY INTERFACE_COMPILE_DEFINITIONS JSON_DIAGNOSTICS=1)
find_package(CLI11 REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(ZLIB REQUIRED)
find_path(TOMLPLUSPLUS_INCLUDE toml++/toml.h REQUIRED)
# C libraries without CMake files of their own.
foreach(name pcre2 utf8proc)
  string(TOUPPER ${name} upper)
  find_path(${upper}_INCLUDE ${name}.h REQUIRED)
  find_library(${upper}_LIBRARY NAMES ${name}-8 ${name} REQUIRED)
  add_library(kvq_${name} INTERFACE)
  target_include_directories(kvq_${name} SYSTEM INTERFACE "${${upper}_INCLUDE}")
  target_link_libraries(kvq_${name} INTERFACE "${${upper}_LIBRARY}")
endforeach()

# The serial C library by hand: FindHDF5 runs h5cc, which drags in MPI or static libraries on some systems.
find_path(HDF5_INCLUDE hdf5.h PATH_SUFFIXES hdf5/serial REQUIRED)
find_library(HDF5_LIBRARY NAMES hdf5_serial hdf5 PATH_SUFFIXES hdf5/serial REQUIRED)
add_library(kvq_hdf5 INTERFACE)
target_include_directories(kvq_hdf5 SYSTEM INTERFACE "${HDF5_INCLUDE}")
target_link_libraries(kvq_hdf5 INTERFACE "${HDF5_LIBRARY}")
