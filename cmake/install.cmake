# make install: program, licence, pages that errors and help refer to, examples, man page, completions and bill of materials.

if(TARGET plimsoll)
  install(TARGETS plimsoll)
endif()
set(pages LICENSE README.md ARCHITECTURE.md CHANGELOG.md)
list(TRANSFORM pages PREPEND "${PROJECT_SOURCE_DIR}/")
install(FILES ${pages} DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/examples" DESTINATION "${CMAKE_INSTALL_DOCDIR}" FILES_MATCHING PATTERN "*.c" PATTERN "*.py")
install(FILES "${PROJECT_SOURCE_DIR}/demo/small.yaml" "${PROJECT_SOURCE_DIR}/demo/corpus.txt" DESTINATION "${CMAKE_INSTALL_DOCDIR}/examples/demo")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
  FILES_MATCHING PATTERN "*.md" PATTERN "*.png" PATTERN "*.svg")

# Starts the program as variables say; units for systemd call it (docs/deploy.md).
install(PROGRAMS "${PROJECT_SOURCE_DIR}/deploy/entrypoint" DESTINATION "${CMAKE_INSTALL_LIBEXECDIR}/plimsoll")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/deploy/systemd" DESTINATION "${CMAKE_INSTALL_DOCDIR}/examples")

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

# The bill of materials names sources and libraries of this build (tools/sbom).
find_program(PLIMSOLL_PYTHON3 python3)
mark_as_advanced(PLIMSOLL_PYTHON3)
if(PLIMSOLL_PYTHON3 AND TARGET plimsoll_shared)
  install(CODE "
    execute_process(COMMAND \"${PLIMSOLL_PYTHON3}\" \"${PROJECT_SOURCE_DIR}/tools/sbom\" \"${PROJECT_BINARY_DIR}\" \"${PROJECT_BINARY_DIR}/plimsoll.spdx.json\"
      RESULT_VARIABLE result)
    if(NOT result EQUAL 0)
      message(STATUS \"left out plimsoll.spdx.json: tools/sbom failed\")
    endif()")
  install(FILES "${PROJECT_BINARY_DIR}/plimsoll.spdx.json" DESTINATION "${CMAKE_INSTALL_DOCDIR}" OPTIONAL)
endif()

# make install-python: the prefix is Python's folder of packages, which only Python knows.
install(DIRECTORY "${PROJECT_SOURCE_DIR}/python/plimsoll" DESTINATION . COMPONENT python EXCLUDE_FROM_ALL
  FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
