# make install: program, library, public headers, plimsoll.pc, man page and completions.

set(installed libplimsoll)
if(TARGET plimsoll)
  list(APPEND installed plimsoll)
endif()
if(PLIMSOLL_SHARED)
  list(APPEND installed libplimsoll_shared)
endif()
install(TARGETS ${installed})
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/plimsoll" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# plimsoll.pc finds its prefix from its own place, so that `cmake --install --prefix` may choose any. Without the
# shared library everybody links statically, and what we stand on is theirs to link as well.
file(RELATIVE_PATH PC_TO_PREFIX "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" PC_TO_PREFIX "${PC_TO_PREFIX}")
if(PLIMSOLL_SHARED)
  set(PC_LIBS "")
  set(PC_REQUIRES "Requires.private")
else()
  set(PC_LIBS " -lm -pthread")
  set(PC_REQUIRES "Requires")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/plimsoll.pc.in" "${PROJECT_BINARY_DIR}/plimsoll.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/plimsoll.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

# The program knows its own options, so it writes its man page and completions (cmake/docs.cmake).
if(TARGET plimsoll AND NOT CMAKE_CROSSCOMPILING)
  set(docs "${PROJECT_BINARY_DIR}/docs")
  add_custom_target(docs DEPENDS plimsoll
    COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:plimsoll>" "-DFOLDER=${docs}"
            -P "${PROJECT_SOURCE_DIR}/cmake/docs.cmake"
    VERBATIM)
  install(CODE "
    set(PROGRAM \"$<TARGET_FILE:plimsoll>\")
    set(FOLDER \"${docs}\")
    include(\"${PROJECT_SOURCE_DIR}/cmake/docs.cmake\")")
  install(FILES "${docs}/plimsoll.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" OPTIONAL)
  install(FILES "${docs}/plimsoll" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" OPTIONAL)
  install(FILES "${docs}/_plimsoll" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions" OPTIONAL)
endif()
