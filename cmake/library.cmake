# The public library: libplimsoll.so with versioned symbols, libplimsoll.a with everything else hidden, headers, pkg-config
# and CMake files.
#
# cmake/plimsoll.map lists every exported function; tests/cli/library_abi.py compares it with the headers and with the
# library. A new function is added there, at its header, and nowhere else.

set(abi 0) # of the soname; raised when a function or struct changes incompatibly
set(map "${PROJECT_SOURCE_DIR}/cmake/plimsoll.map")

add_library(plimsoll_shared SHARED $<TARGET_OBJECTS:plimsoll_objects> ${backend})
set_target_properties(plimsoll_shared PROPERTIES OUTPUT_NAME plimsoll LINKER_LANGUAGE C VERSION ${PROJECT_VERSION}
  SOVERSION ${abi} EXPORT_NAME plimsoll LINK_DEPENDS "${map}")
set_target_properties(plimsoll_shared PROPERTIES BUILD_RPATH "$ORIGIN" INSTALL_RPATH "") # a wheel has libyaml beside it
target_link_options(plimsoll_shared PRIVATE "LINKER:--version-script=${map}" "LINKER:--no-undefined" "LINKER:--as-needed"
  "LINKER:-Bsymbolic" "LINKER:-z,now")
set(private_libraries plimsoll_flags plimsoll_yaml plimsoll_zlib plimsoll_zstd ${http_library} ${uring_library} Threads::Threads m ${CMAKE_DL_LIBS})
if(plimsoll_cuda)
  list(APPEND private_libraries "${PLIMSOLL_CUDART}" rt)
endif()
target_link_libraries(plimsoll_shared PRIVATE ${private_libraries})
target_include_directories(plimsoll_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# The plug-in for PyTorch, over the public API alone.
add_library(plimsoll_torch MODULE python/torch_plugin.c)
set_target_properties(plimsoll_torch PROPERTIES OUTPUT_NAME plimsoll_torch INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
target_compile_options(plimsoll_torch PRIVATE -fexceptions) # PyTorch's exceptions pass through
target_link_libraries(plimsoll_torch PRIVATE plimsoll_flags plimsoll_shared Threads::Threads ${CMAKE_DL_LIBS})
install(TARGETS plimsoll_torch LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")

# One relocatable object whose hidden symbols are local: names of ours cannot clash with a program's own.
set(joined "${PROJECT_BINARY_DIR}/plimsoll-joined.o")
add_custom_command(OUTPUT "${joined}"
  COMMAND "${CMAKE_C_COMPILER}" -nostdlib -r -o "${joined}" -Wl,--whole-archive $<TARGET_FILE:libplimsoll> -Wl,--no-whole-archive
  COMMAND "${CMAKE_OBJCOPY}" --localize-hidden "${joined}"
  DEPENDS libplimsoll VERBATIM)
add_library(plimsoll_archive STATIC "${joined}")
set_target_properties(plimsoll_archive PROPERTIES OUTPUT_NAME plimsoll ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/archive"
  LINKER_LANGUAGE C)

install(TARGETS plimsoll_shared EXPORT plimsoll LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES "${PROJECT_BINARY_DIR}/archive/libplimsoll.a" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/plimsoll" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(EXPORT plimsoll NAMESPACE plimsoll:: DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/plimsoll" FILE plimsoll-config.cmake)
include(CMakePackageConfigHelpers)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/plimsoll-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/plimsoll-config-version.cmake" DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/plimsoll")

# What a program that links the archive needs besides it.
set(PKGCONFIG_PRIVATE "-lyaml -lz -lzstd -lpthread -lm -ldl")
if(TARGET plimsoll_uring)
  string(APPEND PKGCONFIG_PRIVATE " -luring")
endif()
string(REGEX REPLACE "[^/]+" ".." PKGCONFIG_UP "${CMAKE_INSTALL_LIBDIR}") # a folder for every level of lib/TRIPLET
configure_file("${PROJECT_SOURCE_DIR}/cmake/plimsoll.pc.in" "${PROJECT_BINARY_DIR}/plimsoll.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/plimsoll.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
