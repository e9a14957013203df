# make install: program, licence, pages that errors and help refer to, man page and completions.

if(TARGET plimsoll)
  install(TARGETS plimsoll)
endif()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/README.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
  FILES_MATCHING PATTERN "*.md" PATTERN "*.png" PATTERN "*.svg")

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
