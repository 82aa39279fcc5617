# libtorch from the PyPI wheel as imported targets of our own.
# Why not find_package(Torch): it forces CUDA on, ignores CMAKE_CUDA_ARCHITECTURES, adds flags of its own, and its GPU
# detection fails on CMake 3.25 with C++20. Only libtorch_cpu and libc10 are linked; CUDA is opened at run time.
set(KVQ_TORCH_DIR "" CACHE PATH "folder 'torch' of a torch 2.11 wheel or libtorch (holds lib/ and include/)")
if(NOT KVQ_TORCH_DIR)
  set(KVQ_TORCH_DIR "${CMAKE_SOURCE_DIR}/build/deps/torch-2.11.0/torch")
endif()
if(NOT EXISTS "${KVQ_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "KVQ_TORCH_DIR=${KVQ_TORCH_DIR} holds no lib/libtorch_cpu.so: run scripts/quickstart --build-only, "
                      "or point KVQ_TORCH_DIR at the 'torch' folder of a torch 2.11 wheel")
endif()
add_library(kvq_torch INTERFACE)
foreach(name c10 torch_cpu)
  add_library(kvq_${name} SHARED IMPORTED)
  set_target_properties(kvq_${name} PROPERTIES IMPORTED_LOCATION "${KVQ_TORCH_DIR}/lib/lib${name}.so")
  target_link_libraries(kvq_torch INTERFACE kvq_${name})
endforeach()
# Only torch's own folders: the wheel also ships fmt, sleef and others, whose versions are not those of the system's libraries.
foreach(folder ATen c10 torch caffe2)
  file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/include/torch")
  file(CREATE_LINK "${KVQ_TORCH_DIR}/include/${folder}" "${CMAKE_BINARY_DIR}/include/torch/${folder}" SYMBOLIC)
endforeach()
target_include_directories(kvq_torch SYSTEM INTERFACE "${CMAKE_BINARY_DIR}/include/torch"
                                                      "${CMAKE_BINARY_DIR}/include/torch/torch/csrc/api/include")
# libcudart and libcupti are needed by libtorch_cpu of the CUDA wheel and are found at run time, not at link time.
target_link_options(kvq_torch INTERFACE -Wl,--allow-shlib-undefined)
