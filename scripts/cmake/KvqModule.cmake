# kvq_module(<name> [FOLDER kernels/layout] [LINK core stats …] [PRIVATE lib …] [PUBLIC lib …]
#            [PRECOMPILE header …] [PRECOMPILED_BY module])
#
# One folder = one object library `kvq_<name>` of all its *.cpp. It sees only the headers of the modules that it LINKs (and
# of those that they link), because every module's include path holds nothing but `kvq/<folder>`: an include of any other
# module fails to build. tests/deps checks that direct includes stay within LINK. All modules together become libkvq.so.
#
# PRECOMPILE: headers of others that take seconds to parse, read once for all files of the module and of the modules that
# name it in PRECOMPILED_BY. They save time only: the `dev` preset builds without, so that no file leaves out an include.
function(kvq_module name)
  cmake_parse_arguments(M "" "FOLDER;PRECOMPILED_BY" "LINK;PRIVATE;PUBLIC;PRECOMPILE" ${ARGN})
  if(NOT M_FOLDER)
    set(M_FOLDER ${name})
  endif()
  # Include path of exactly this module: a tree that holds one link named kvq/<folder>.
  set(link "${CMAKE_BINARY_DIR}/include/${name}/kvq/${M_FOLDER}")
  get_filename_component(parent "${link}" DIRECTORY)
  file(MAKE_DIRECTORY "${parent}")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}" "${link}" SYMBOLIC)

  add_library(kvq_${name}_headers INTERFACE)
  target_include_directories(kvq_${name}_headers INTERFACE "${CMAKE_BINARY_DIR}/include/${name}")
  list(TRANSFORM M_LINK REPLACE "(.+)" "kvq_\\1_headers" OUTPUT_VARIABLE header_deps)
  target_link_libraries(kvq_${name}_headers INTERFACE ${header_deps} ${M_PUBLIC})

  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  set_property(GLOBAL APPEND PROPERTY KVQ_MODULES ${name})
  set_property(GLOBAL PROPERTY KVQ_FOLDER_${name} "${CMAKE_CURRENT_SOURCE_DIR}")
  set_property(GLOBAL APPEND PROPERTY KVQ_EXTERNAL_LIBS ${M_PRIVATE} ${M_PUBLIC})
  if(NOT sources)
    return()
  endif()
  add_library(kvq_${name} OBJECT ${sources})
  set_target_properties(kvq_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(kvq_${name} PRIVATE kvq_options kvq_${name}_headers ${M_PRIVATE})
  kvq_unity(kvq_${name})
  if(M_PRECOMPILE)
    target_precompile_headers(kvq_${name} PRIVATE ${M_PRECOMPILE})
  elseif(M_PRECOMPILED_BY)
    target_precompile_headers(kvq_${name} REUSE_FROM kvq_${M_PRECOMPILED_BY})
  endif()
endfunction()
