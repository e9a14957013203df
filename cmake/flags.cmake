# plimsoll_flags: what every file of the project is compiled with.
#
# -ffp-contract=off: the compiler may not fuse a multiply and an add on its own, because it would do so in one
# call path and not in another, and results that must be bit-identical (recompute, accumulation, thread count)
# would differ. Kernels that want a fused multiply-add say so with an intrinsic. Kernels for one instruction set
# carry function target attributes; no file has machine flags of its own, so the baseline runs anywhere.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# New compilers bring new warnings. They must not keep anybody from building, so AUTO makes warnings errors only
# where we have seen the code compile clean.
set(werror ${PLIMSOLL_WERROR})
if(werror STREQUAL "AUTO")
  set(werror OFF)
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_C_COMPILER_VERSION VERSION_GREATER_EQUAL 12
     AND CMAKE_C_COMPILER_VERSION VERSION_LESS 14)
    set(werror ON)
  elseif(CMAKE_C_COMPILER_ID STREQUAL "Clang" AND CMAKE_C_COMPILER_VERSION VERSION_GREATER_EQUAL 14
         AND CMAKE_C_COMPILER_VERSION VERSION_LESS 15)
    set(werror ON)
  endif()
endif()

add_library(plimsoll_flags INTERFACE)
target_include_directories(plimsoll_flags INTERFACE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
target_compile_definitions(plimsoll_flags INTERFACE PLIMSOLL_VERSION="${PROJECT_VERSION}")
target_compile_options(plimsoll_flags INTERFACE
  -fno-math-errno -ffp-contract=off -fvisibility=hidden
  -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wundef
  -Wno-missing-field-initializers $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation>  # clang does not know the latter
  $<$<C_COMPILER_ID:Clang>:-Wno-c2x-extensions>  # a callback leaves the parameters it does not read unnamed, as gcc allows
  $<$<BOOL:${werror}>:-Werror>)

# Release builds are reproducible: two checkouts give the same bytes, because no path of theirs is recorded.
target_compile_options(plimsoll_flags INTERFACE
  $<$<CONFIG:Release>:-ffile-prefix-map=${PROJECT_BINARY_DIR}=./build -ffile-prefix-map=${PROJECT_SOURCE_DIR}=.>)
set(CMAKE_C_ARCHIVE_CREATE "<CMAKE_AR> qcD <TARGET> <LINK_FLAGS> <OBJECTS>")
set(CMAKE_C_ARCHIVE_APPEND "<CMAKE_AR> qD <TARGET> <LINK_FLAGS> <OBJECTS>")
set(CMAKE_C_ARCHIVE_FINISH "<CMAKE_RANLIB> -D <TARGET>")

if(PLIMSOLL_SANITIZE STREQUAL "address")
  set(instrument -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(PLIMSOLL_SANITIZE STREQUAL "thread")
  set(instrument -fsanitize=thread -fno-omit-frame-pointer)
elseif(PLIMSOLL_SANITIZE)
  message(FATAL_ERROR "PLIMSOLL_SANITIZE is '${PLIMSOLL_SANITIZE}'; write address, thread or nothing")
else()
  set(instrument "")
endif()
target_compile_options(plimsoll_flags INTERFACE ${instrument})
target_link_options(plimsoll_flags INTERFACE ${instrument})

if(PLIMSOLL_COVERAGE)
  # Atomic counters: the kernels run on several threads.
  target_compile_options(plimsoll_flags INTERFACE --coverage -fprofile-update=atomic)
  target_link_options(plimsoll_flags INTERFACE --coverage)
endif()

if(PLIMSOLL_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "The fuzz targets need clang (libFuzzer); this is ${CMAKE_C_COMPILER_ID}. "
                        "Configure with --preset fuzz")
  endif()
  target_compile_options(plimsoll_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
