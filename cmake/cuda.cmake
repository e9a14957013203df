# The CUDA backend: src/device/cuda/*.cu by nvcc, its .c files with the CUDA headers, the runtime linked statically
# (it finds the driver when the program runs, so one program serves machines with and without a GPU).
# In a program without it src/device/cuda/cuda_absent.c stands in and says so when a GPU is asked for.
#
#   PLIMSOLL_CUDA=AUTO|ON|OFF   PLIMSOLL_CUDA_TARGETS="-gencode=... ..."
#
# nvcc takes minutes, so AUTO has it in the program only where a card is present. Where nvcc is and a card is not, the
# tests still compile and link it once, for one kind of card (tests/CMakeLists.txt, plimsoll_fake_cuda).
#
# Sets plimsoll_cuda (the program has it) and plimsoll_cuda_compiles (this build can compile it).

set(PLIMSOLL_CUDA AUTO CACHE STRING "Build the CUDA backend: ON, OFF, or AUTO (where nvcc and a card are found)")
set(PLIMSOLL_CUDA_TARGETS
  "-gencode=arch=compute_80,code=[sm_80,compute_80];-gencode=arch=compute_90a,code=sm_90a"
  CACHE STRING "What nvcc makes code for; cards between these run the portable form")

# plimsoll_find_card(RESULT): is there an NVIDIA card, whatever it can do?
function(plimsoll_find_card result)
  file(GLOB cards "/dev/nvidia[0-9]*")
  if(NOT cards)
    find_program(nvidia_smi nvidia-smi NO_CACHE)
    if(nvidia_smi)
      execute_process(COMMAND "${nvidia_smi}" -L OUTPUT_VARIABLE cards ERROR_QUIET RESULT_VARIABLE code)
      if(NOT code EQUAL 0 OR NOT cards MATCHES "GPU")
        set(cards)
      endif()
    endif()
  endif()
  set(${result} ${cards} PARENT_SCOPE)
endfunction()

find_program(PLIMSOLL_NVCC nvcc HINTS /usr/local/cuda/bin $ENV{CUDA_HOME}/bin)
mark_as_advanced(PLIMSOLL_NVCC)
plimsoll_find_card(card)
set(plimsoll_cuda OFF)
set(plimsoll_cuda_compiles OFF)
if(NOT PLIMSOLL_CUDA STREQUAL "OFF" AND PLIMSOLL_NVCC)
  get_filename_component(cuda_root "${PLIMSOLL_NVCC}" REALPATH)
  get_filename_component(cuda_root "${cuda_root}" DIRECTORY)
  get_filename_component(cuda_root "${cuda_root}" DIRECTORY)
  find_library(PLIMSOLL_CUDART cudart_static HINTS "${cuda_root}" PATH_SUFFIXES lib64 lib targets/sbsa-linux/lib
    targets/x86_64-linux/lib)
  find_path(PLIMSOLL_CUDA_INCLUDE cublasLt.h HINTS "${cuda_root}/include" /usr/include)
  mark_as_advanced(PLIMSOLL_CUDART PLIMSOLL_CUDA_INCLUDE)
  if(PLIMSOLL_CUDART AND PLIMSOLL_CUDA_INCLUDE)
    set(plimsoll_cuda_compiles ON)
    set(plimsoll_cuda_version "unknown version") # said by `plimsoll version`
    if(EXISTS "${PLIMSOLL_CUDA_INCLUDE}/cuda.h")
      file(STRINGS "${PLIMSOLL_CUDA_INCLUDE}/cuda.h" number REGEX "#define CUDA_VERSION [0-9]+$")
      if(number MATCHES "([0-9]+)$") # 13000 is 13.0
        math(EXPR major "${CMAKE_MATCH_1} / 1000")
        math(EXPR minor "${CMAKE_MATCH_1} % 1000 / 10")
        set(plimsoll_cuda_version "${major}.${minor}")
      endif()
    endif()
    if(PLIMSOLL_CUDA STREQUAL "ON" OR card)
      set(plimsoll_cuda ON)
      message(STATUS "CUDA ${plimsoll_cuda_version}: ${PLIMSOLL_NVCC}")
    else()
      message(STATUS "CUDA: left out, no NVIDIA card is here; to have it all the same: make PLIMSOLL_CUDA=ON")
    endif()
  endif()
endif()
if(PLIMSOLL_CUDA STREQUAL "AUTO" AND card AND NOT plimsoll_cuda)
  message(STATUS "CUDA: left out, a card is here but not nvcc, libcudart_static and cublasLt.h; install the CUDA toolkit "
                 "and make again")
endif()
if(PLIMSOLL_CUDA STREQUAL "ON" AND NOT plimsoll_cuda)
  message(FATAL_ERROR "PLIMSOLL_CUDA is ON, but nvcc, libcudart_static or cublasLt.h was not found; install the "
                      "CUDA toolkit or set PLIMSOLL_CUDA=OFF")
endif()

# plimsoll_cuda_sources(OBJECTS_VAR): objects made of every .cu, empty where they cannot be compiled. Those that only
# tests link (no card, not asked for) are made for the cards that use all of the code, and fast: no card runs them.
function(plimsoll_cuda_sources result)
  set(objects)
  set(nvcc_werror)
  if(NOT PLIMSOLL_WERROR STREQUAL "OFF")
    set(nvcc_werror -Werror all-warnings)
  endif()
  set(targets ${PLIMSOLL_CUDA_TARGETS})
  set(level -O3)
  if(NOT plimsoll_cuda)
    set(targets "-gencode=arch=compute_90a,code=sm_90a")
    set(level -O0)
    execute_process(COMMAND "${PLIMSOLL_NVCC}" --help OUTPUT_VARIABLE nvcc_help ERROR_QUIET)
    if(nvcc_help MATCHES "--Ofast-compile")
      list(APPEND targets "--Ofast-compile=max")
    endif()
  endif()
  if(plimsoll_cuda_compiles)
    file(GLOB cu_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/device/cuda/*.cu")
    foreach(source IN LISTS cu_sources)
      get_filename_component(name "${source}" NAME_WE)
      set(object "${PROJECT_BINARY_DIR}/cuda/${name}.o")
      add_custom_command(OUTPUT "${object}"
        COMMAND ${CMAKE_COMMAND} -E make_directory "${PROJECT_BINARY_DIR}/cuda"
        COMMAND "${PLIMSOLL_NVCC}" -std=c++17 ${level} ${targets} ${nvcc_werror}
          -Xcompiler -fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-fvisibility=hidden -I "${PROJECT_SOURCE_DIR}/src" -I "${PROJECT_SOURCE_DIR}/include"
          -MD -MF "${object}.d" -c "${source}" -o "${object}"
        DEPENDS "${source}" DEPFILE "${object}.d"
        COMMENT "Building CUDA object ${name}.o" VERBATIM)
      list(APPEND objects "${object}")
    endforeach()
  endif()
  set(${result} ${objects} PARENT_SCOPE)
endfunction()
