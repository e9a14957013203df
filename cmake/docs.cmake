# Ask the program for its man page and completions:  PROGRAM docs man|bash|zsh  ->  FOLDER/
# What it cannot write is left out with a word about it, never installed empty.

file(MAKE_DIRECTORY "${FOLDER}")
foreach(pair "man:plimsoll.1" "bash:plimsoll" "zsh:_plimsoll")
  string(REGEX MATCH "^([a-z]+):(.+)$" pair "${pair}")
  set(kind "${CMAKE_MATCH_1}")
  set(file "${FOLDER}/${CMAKE_MATCH_2}")
  execute_process(COMMAND "${PROGRAM}" docs "${kind}" OUTPUT_VARIABLE text RESULT_VARIABLE result ERROR_QUIET)
  if(result EQUAL 0 AND NOT text STREQUAL "")
    file(WRITE "${file}" "${text}")
    message(STATUS "wrote ${file}")
  else()
    file(REMOVE "${file}")
    message(STATUS "left out ${file}: 'plimsoll docs ${kind}' gave nothing")
  endif()
endforeach()
