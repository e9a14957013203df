# The CUDA backend: src/device/cuda/*.cu by nvcc, its .c files with the CUDA headers, the runtime linked statically
# (it finds the driver when the program runs, so one program serves machines with and without a GPU).
# Without nvcc src/device/cuda/cuda_absent.c stands in and says so when a GPU is asked for.
#
#   PLIMSOLL_CUDA=AUTO|ON|OFF   PLIMSOLL_CUDA_TARGETS="-gencode=... ..."

set(PLIMSOLL_CUDA AUTO CACHE STRING "Build the CUDA backend: ON, OFF, or AUTO (when nvcc is found)")
set(PLIMSOLL_CUDA_TARGETS
  "-gencode=arch=compute_80,code=[sm_80,compute_80];-gencode=arch=compute_90a,code=sm_90a"
  CACHE STRING "What nvcc makes code for; cards between these run the portable form")

find_program(PLIMSOLL_NVCC nvcc HINTS /usr/local/cuda/bin $ENV{CUDA_HOME}/bin)
mark_as_advanced(PLIMSOLL_NVCC)
set(plimsoll_cuda OFF)
if(NOT PLIMSOLL_CUDA STREQUAL "OFF" AND PLIMSOLL_NVCC)
  get_filename_component(cuda_root "${PLIMSOLL_NVCC}" REALPATH)
  get_filename_component(cuda_root "${cuda_root}" DIRECTORY)
  get_filename_component(cuda_root "${cuda_root}" DIRECTORY)
  find_library(PLIMSOLL_CUDART cudart_static HINTS "${cuda_root}" PATH_SUFFIXES lib64 lib targets/sbsa-linux/lib
    targets/x86_64-linux/lib)
  find_path(PLIMSOLL_CUDA_INCLUDE cublasLt.h HINTS "${cuda_root}/include" /usr/include)
  mark_as_advanced(PLIMSOLL_CUDART PLIMSOLL_CUDA_INCLUDE)
  if(PLIMSOLL_CUDART AND PLIMSOLL_CUDA_INCLUDE)
    set(plimsoll_cuda ON)
    set(plimsoll_cuda_version "unknown version") # said by `plimsoll version`
    if(EXISTS "${PLIMSOLL_CUDA_INCLUDE}/cuda.h")
      file(STRINGS "${PLIMSOLL_CUDA_INCLUDE}/cuda.h" number REGEX "#define CUDA_VERSION [0-9]+$")
      if(number MATCHES "([0-9]+)$") # 13000 is 13.0
        math(EXPR major "${CMAKE_MATCH_1} / 1000")
        math(EXPR minor "${CMAKE_MATCH_1} % 1000 / 10")
        set(plimsoll_cuda_version "${major}.${minor}")
      endif()
    endif()
    message(STATUS "CUDA ${plimsoll_cuda_version}: ${PLIMSOLL_NVCC}")
  endif()
endif()
if(PLIMSOLL_CUDA STREQUAL "ON" AND NOT plimsoll_cuda)
  message(FATAL_ERROR "PLIMSOLL_CUDA is ON, but nvcc, libcudart_static or cublasLt.h was not found; install the "
                      "CUDA toolkit or set PLIMSOLL_CUDA=OFF")
endif()

# plimsoll_cuda_sources(OBJECTS_VAR): objects made of every .cu, empty without CUDA.
function(plimsoll_cuda_sources result)
  set(objects)
  set(nvcc_werror)
  if(NOT PLIMSOLL_WERROR STREQUAL "OFF")
    set(nvcc_werror -Werror all-warnings)
  endif()
  if(plimsoll_cuda)
    file(GLOB cu_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/device/cuda/*.cu")
    file(GLOB cu_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/device/cuda/*.cuh")
    foreach(source IN LISTS cu_sources)
      get_filename_component(name "${source}" NAME_WE)
      set(object "${PROJECT_BINARY_DIR}/cuda/${name}.o")
      add_custom_command(OUTPUT "${object}"
        COMMAND ${CMAKE_COMMAND} -E make_directory "${PROJECT_BINARY_DIR}/cuda"
        COMMAND "${PLIMSOLL_NVCC}" -std=c++17 -O3 ${PLIMSOLL_CUDA_TARGETS} ${nvcc_werror}
          -Xcompiler -fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-fvisibility=hidden -I "${PROJECT_SOURCE_DIR}/src"
          -MD -MF "${object}.d" -c "${source}" -o "${object}"
        DEPENDS "${source}" ${cu_headers} DEPFILE "${object}.d"
        COMMENT "Building CUDA object ${name}.o" VERBATIM)
      list(APPEND objects "${object}")
    endforeach()
  endif()
  set(${result} ${objects} PARENT_SCOPE)
endfunction()
