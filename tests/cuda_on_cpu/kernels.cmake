# src/device/cuda with a card that is the CPU: one library of everything that is the same for all cards, one for each card of the
# sources that ask for __CUDA_ARCH__, and the op tests with each. CXX is there. The tests with code for 9.0 are the target
# cuda_on_cpu_90_tests, which `make test-long` builds: the sources for one card take as long to compile as all others.

set(folder "${CMAKE_CURRENT_SOURCE_DIR}/cuda_on_cpu")
set(translated "${CMAKE_CURRENT_BINARY_DIR}/cuda_on_cpu/src")
set(cards 80 90)
set(by_card linear_f8 attention_hopper attention_hopper_backward attention_paged_hopper attention_paged_decode attention_paged8 attention_paged8_decode attention_paged8_prompt
  quantised_product quantised_product_q8_0
  quantised_product_q4_0 quantised_product_q4_k quantised_product_q5_k quantised_product_q6_k)

file(GLOB cu_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/device/cuda/*.cu")
file(GLOB cu_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/device/cuda/*.cuh")
list(FILTER cu_sources EXCLUDE REGEX "expert_linear_hopper\\.cu$") # absent.cpp
set(common)
set(special)
set(made)
foreach(source IN LISTS cu_sources)
  get_filename_component(name "${source}" NAME_WE)
  set(target "${translated}/device/cuda/${name}.cpp")
  list(APPEND made "${target}")
  if(name IN_LIST by_card)
    list(APPEND special "${target}")
  else()
    list(APPEND common "${target}")
  endif()
endforeach()
# Headers too, so that what includes them is compiled again in the same build.
foreach(header IN LISTS cu_headers)
  get_filename_component(name "${header}" NAME)
  list(APPEND made "${translated}/device/cuda/${name}")
endforeach()

# Only what changed is written anew.
set(stamp "${CMAKE_CURRENT_BINARY_DIR}/cuda_on_cpu/translated")
add_custom_command(OUTPUT "${stamp}" BYPRODUCTS ${made}
  COMMAND Python3::Interpreter "${folder}/translate.py" ${cu_sources} ${cu_headers} --root "${PROJECT_SOURCE_DIR}/src" --to "${translated}"
  COMMAND "${CMAKE_COMMAND}" -E touch "${stamp}"
  DEPENDS "${folder}/translate.py" ${cu_sources} ${cu_headers} COMMENT "Translating CUDA to C++" VERBATIM)
add_custom_target(cuda_on_cpu_sources DEPENDS "${stamp}")

# Every access of a kernel is announced to memory.cpp; nothing of the sanitizer is linked.
set(announced -fsanitize=thread)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND announced --param tsan-instrument-func-entry-exit=0)
else()
  list(APPEND announced "SHELL:-mllvm -tsan-instrument-func-entry-exit=0")
endif()

# cuda_on_cpu_library(NAME ARCH SOURCES...)
function(cuda_on_cpu_library name arch)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${ARGN})
  add_dependencies(${name} cuda_on_cpu_sources)
  target_include_directories(${name} PRIVATE "${translated}" "${folder}/include" "${folder}" "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  target_compile_definitions(${name} PRIVATE __CUDA_ARCH__=${arch}0 $<$<EQUAL:${arch},90>:__CUDA_ARCH_FEAT_SM90_ALL>)
  target_compile_options(${name} PRIVATE -std=gnu++17 -Og -g1 -w -fPIC -fno-exceptions -fno-rtti -fno-threadsafe-statics
    -fno-strict-aliasing -ffp-contract=off "SHELL:-include cuda_runtime.h")
endfunction()

cuda_on_cpu_library(cuda_on_cpu_kernels 80 ${common})
target_compile_options(cuda_on_cpu_kernels PRIVATE ${announced})
cuda_on_cpu_library(cuda_on_cpu_block 80 cuda_on_cpu/block.cpp cuda_on_cpu/memory.cpp cuda_on_cpu/instructions.cpp cuda_on_cpu/absent.cpp)
target_compile_options(cuda_on_cpu_block PRIVATE -O2)

# Backend and runtime: cuBLASLt is looked for by name, and found in cublaslt.c.
add_library(cuda_on_cpu_backend OBJECT EXCLUDE_FROM_ALL ${cuda_sources} cuda_on_cpu/runtime.c cuda_on_cpu/cublaslt.c)
target_link_libraries(cuda_on_cpu_backend PRIVATE plimsoll_flags)
target_include_directories(cuda_on_cpu_backend BEFORE PRIVATE "${folder}/include" "${folder}")
target_compile_definitions(cuda_on_cpu_backend PRIVATE dlopen=cuda_cpu_dlopen dlsym=cuda_cpu_dlsym dlclose=cuda_cpu_dlclose)

foreach(card IN LISTS cards)
  cuda_on_cpu_library(cuda_on_cpu_${card} ${card} ${special})
  target_compile_options(cuda_on_cpu_${card} PRIVATE ${announced})
  set(tests test_ops test_quantised_rows test_paged_rows test_paged_fresh)
  if(card EQUAL 80)
    list(APPEND tests test_fused test_together test_adapter_rows)
  endif()
  foreach(test IN LISTS tests)
    set(name cuda_on_cpu_${card}_${test})
    set(left_out)
    if(card EQUAL 90)
      set(left_out EXCLUDE_FROM_ALL)
    endif()
    add_executable(${name} ${left_out} op/${test}.c support/process.c $<TARGET_OBJECTS:cuda_on_cpu_kernels> $<TARGET_OBJECTS:cuda_on_cpu_${card}>
      $<TARGET_OBJECTS:cuda_on_cpu_block> $<TARGET_OBJECTS:cuda_on_cpu_backend>)
    set_target_properties(${name} PROPERTIES OUTPUT_NAME "${test}" LINKER_LANGUAGE C
      RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/cuda_on_cpu/${card}")
    target_compile_definitions(${name} PRIVATE PLIMSOLL_CUDA_ON_CPU)
    target_include_directories(${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
    target_link_libraries(${name} PRIVATE ${test_libraries})
  endforeach()
endforeach()
add_custom_target(cuda_on_cpu_90_tests DEPENDS cuda_on_cpu_90_test_ops cuda_on_cpu_90_test_quantised_rows cuda_on_cpu_90_test_paged_rows
  cuda_on_cpu_90_test_paged_fresh)
