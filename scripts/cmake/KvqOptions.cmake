# What every target of the project compiles with; one INTERFACE target so that no folder sets flags by itself.
option(KVQ_BUILD_TESTS "build the tests" ON)
option(KVQ_WERROR "warnings are errors" OFF)
option(KVQ_UNITY "compile the sources of a folder together: half the time for all of them, more for one" OFF)
set(KVQ_SANITIZE "" CACHE STRING "sanitizers for everything, e.g. address;undefined")

add_library(kvq_options INTERFACE)
target_compile_features(kvq_options INTERFACE cxx_std_20)
target_compile_options(kvq_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers
                                             $<$<BOOL:${KVQ_WERROR}>:-Werror>)
# Bit-identical encoders (simulated, CPU, CUDA) need the arithmetic that is written: no contraction into FMA by accident.
target_compile_options(kvq_options INTERFACE -ffp-contract=off)
# kvq_unity(<target>): KVQ_UNITY for a target. What files keep to themselves needs names that differ within a folder. The
# loops are left out: they choose an instruction set for what follows in their file.
function(kvq_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${KVQ_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "_loops\\.cpp$")
  if(sources)
    set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

if(KVQ_SANITIZE)
  list(JOIN KVQ_SANITIZE "," _kvq_sanitize)
  target_compile_options(kvq_options INTERFACE -fsanitize=${_kvq_sanitize} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_link_options(kvq_options INTERFACE -fsanitize=${_kvq_sanitize})
endif()
