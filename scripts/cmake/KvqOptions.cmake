# What every target of the project compiles with; one INTERFACE target so that no folder sets flags by itself.
option(KVQ_BUILD_TESTS "build the tests" ON)
option(KVQ_WERROR "warnings are errors" OFF)
set(KVQ_SANITIZE "" CACHE STRING "sanitizers for everything, e.g. address;undefined")

add_library(kvq_options INTERFACE)
target_compile_features(kvq_options INTERFACE cxx_std_20)
target_compile_options(kvq_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers
                                             $<$<BOOL:${KVQ_WERROR}>:-Werror>)
# Bit-identical encoders (simulated, CPU, CUDA) need the arithmetic that is written: no contraction into FMA by accident.
target_compile_options(kvq_options INTERFACE -ffp-contract=off)
if(KVQ_SANITIZE)
  list(JOIN KVQ_SANITIZE "," _kvq_sanitize)
  target_compile_options(kvq_options INTERFACE -fsanitize=${_kvq_sanitize} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_link_options(kvq_options INTERFACE -fsanitize=${_kvq_sanitize})
endif()
