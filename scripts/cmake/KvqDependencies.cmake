# Well-kept libraries from the system's packages, as targets with one spelling on every distribution.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(ZLIB REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
find_path(TOMLPLUSPLUS_INCLUDE toml++/toml.h REQUIRED)

# The serial C library by hand: FindHDF5 runs h5cc, which drags in MPI or static libraries on some systems.
find_path(HDF5_INCLUDE hdf5.h PATH_SUFFIXES hdf5/serial REQUIRED)
find_library(HDF5_LIBRARY NAMES hdf5_serial hdf5 PATH_SUFFIXES hdf5/serial REQUIRED)
add_library(kvq_hdf5 INTERFACE)
target_include_directories(kvq_hdf5 SYSTEM INTERFACE "${HDF5_INCLUDE}")
target_link_libraries(kvq_hdf5 INTERFACE "${HDF5_LIBRARY}")
