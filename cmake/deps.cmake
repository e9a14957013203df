# The libraries we stand on, each as one interface target.
#
# pkg-config says where they are; CMAKE_PREFIX_PATH is searched as well, so that a folder with unpacked packages
# does when pkg-config does not know about it.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig QUIET)

# plimsoll_dependency(NAME PKG_CONFIG_NAME HEADER LIBRARY) -> target plimsoll_NAME, if it was found
function(plimsoll_dependency name module header library)
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(${name}_pc QUIET ${module})
  endif()
  find_path(PLIMSOLL_${name}_INCLUDE ${header} HINTS ${${name}_pc_INCLUDE_DIRS})
  find_library(PLIMSOLL_${name}_LIBRARY NAMES ${library} HINTS ${${name}_pc_LIBRARY_DIRS})
  mark_as_advanced(PLIMSOLL_${name}_INCLUDE PLIMSOLL_${name}_LIBRARY)
  if(PLIMSOLL_${name}_INCLUDE AND PLIMSOLL_${name}_LIBRARY)
    add_library(plimsoll_${name} INTERFACE)
    target_include_directories(plimsoll_${name} SYSTEM INTERFACE "${PLIMSOLL_${name}_INCLUDE}")
    target_link_libraries(plimsoll_${name} INTERFACE "${PLIMSOLL_${name}_LIBRARY}")
    message(STATUS "${module}: ${PLIMSOLL_${name}_LIBRARY}")
  endif()
endfunction()

plimsoll_dependency(yaml yaml-0.1 yaml.h yaml)
if(NOT TARGET plimsoll_yaml)
  message(FATAL_ERROR "libyaml is missing. Install it with tools/deps.sh (Debian: libyaml-dev), or point "
                      "PKG_CONFIG_PATH or CMAKE_PREFIX_PATH at it")
endif()

plimsoll_dependency(zlib zlib zlib.h z)
plimsoll_dependency(zstd libzstd zstd.h zstd)
if(NOT TARGET plimsoll_zlib OR NOT TARGET plimsoll_zstd)
  message(FATAL_ERROR "zlib or libzstd is missing (compressed data files are read with them). Install them with "
                      "tools/deps.sh (Debian: zlib1g-dev libzstd-dev), or point PKG_CONFIG_PATH or "
                      "CMAKE_PREFIX_PATH at them")
endif()

if(PLIMSOLL_HTTP)
  plimsoll_dependency(http libmicrohttpd microhttpd.h microhttpd)
  if(TARGET plimsoll_http) # opened when it is needed (src/net/mhd_api.h), not linked
    set_target_properties(plimsoll_http PROPERTIES INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}")
  endif()
endif()
if(PLIMSOLL_HTTP AND NOT TARGET plimsoll_http)
  message(STATUS "libmicrohttpd is missing: no `plimsoll serve` (tools/deps.sh installs it; Debian: libmicrohttpd-dev)")
endif()

# The disk tier reads and writes through io_uring where this is; its few calls go into the program, so that it also starts
# where the library is not installed.
plimsoll_dependency(uring liburing liburing.h "liburing.a;uring")
if(NOT TARGET plimsoll_uring)
  message(STATUS "liburing is missing: the disk tier uses threads (tools/deps.sh installs it; Debian: liburing-dev)")
endif()

if(PLIMSOLL_CURL)
  plimsoll_dependency(curl libcurl curl/curl.h curl)
  if(TARGET plimsoll_curl) # opened when it is needed (src/net/post.c), not linked
    set_target_properties(plimsoll_curl PROPERTIES INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}")
  else()
    message(STATUS "libcurl is missing: no webhooks (tools/deps.sh installs it; Debian: libcurl4-openssl-dev)")
  endif()
endif()

# plimsoll_mpi_dependency(NAME PKG_CONFIG_NAME LIBRARY MARK): likewise of an MPI, whose header has MARK: distributions give all of
# them the name mpi.h, and one of them the place where it is looked for.
function(plimsoll_mpi_dependency name module library mark)
  plimsoll_dependency(${name} ${module} mpi.h ${library})
  if(TARGET plimsoll_${name})
    file(STRINGS "${PLIMSOLL_${name}_INCLUDE}/mpi.h" found LIMIT_COUNT 1 REGEX "#define ${mark}")
    if(NOT found)
      message(STATUS "${module}: ${PLIMSOLL_${name}_INCLUDE}/mpi.h is another MPI's: not used")
    endif()
    set(plimsoll_${name}_usable "${found}" PARENT_SCOPE)
  endif()
endfunction()

# Open MPI and MPICH, each that is here; sanitizers have no use for them.
if(PLIMSOLL_MPI AND NOT PLIMSOLL_SANITIZE)
  plimsoll_mpi_dependency(mpi ompi-c mpi OMPI_MAJOR_VERSION)
  plimsoll_mpi_dependency(mpich mpich mpich MPICH_NUMVERSION)
  if(NOT plimsoll_mpi_usable AND NOT plimsoll_mpich_usable)
    message(STATUS "no MPI: one rank only (tools/deps.sh installs one; Debian: libopenmpi-dev openmpi-bin)")
  endif()
endif()

if(PLIMSOLL_TESTS)
  plimsoll_dependency(cmocka cmocka cmocka.h cmocka)
endif()
