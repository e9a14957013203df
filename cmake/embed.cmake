# data/*.yaml, data/*.html and data/*.js become part of the program: one generated C file holds them all, with a table of them at its end.
# See src/base/embedded.h for how they are read. Run as a script, this file writes that C file:
#
#   cmake -DFOLDER=data -DNAMES=devices.yaml,page.html -DOUTPUT=embedded_data.c -P cmake/embed.cmake

if(CMAKE_SCRIPT_MODE_FILE)
  set(text "/* Made from data/ by the build. */\n#include \"base/embedded.h\"\n")
  set(rows "")
  string(REPLACE "," ";" NAMES "${NAMES}")
  foreach(name IN LISTS NAMES)
    get_filename_component(short "${name}" NAME_WLE)
    string(MAKE_C_IDENTIFIER "${name}" symbol)
    file(READ "${FOLDER}/${name}" bytes HEX)
    # Sixteen bytes to a line, as character constants: the number of a byte above 127 does not fit a signed char.
    string(REPEAT "[0-9a-f]" 32 line)
    string(REGEX REPLACE "(${line})" "\\1\n    " bytes "${bytes}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
    string(APPEND text "
extern const char plim_data_${symbol}[];
const char plim_data_${symbol}[] = {
    ${bytes}'\\0',
};
")
    string(APPEND rows "    {\"${short}\", plim_data_${symbol}, sizeof plim_data_${symbol} - 1},\n")
  endforeach()
  string(APPEND text "\nconst struct plim_data plim_data_table[] = {\n${rows}    {NULL, NULL, 0},\n};\n")
  file(WRITE "${OUTPUT}" "${text}")
  return()
endif()

set(PLIMSOLL_EMBED_SCRIPT "${CMAKE_CURRENT_LIST_FILE}")

# plimsoll_embed(VAR): VAR becomes the generated C file.
function(plimsoll_embed out)
  set(folder "${PROJECT_SOURCE_DIR}/data")
  set(output "${PROJECT_BINARY_DIR}/embedded_data.c")
  set(names "")
  file(GLOB inputs CONFIGURE_DEPENDS "${folder}/*.yaml" "${folder}/*.html" "${folder}/*.js")
  foreach(input IN LISTS inputs)
    get_filename_component(name "${input}" NAME)
    list(APPEND names "${name}")
  endforeach()
  # The names are part of the command, so that removing a file runs it again just as adding one does.
  string(REPLACE ";" "," names "${names}")
  add_custom_command(OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" "-DFOLDER=${folder}" "-DNAMES=${names}" "-DOUTPUT=${output}"
            -P "${PLIMSOLL_EMBED_SCRIPT}"
    DEPENDS ${inputs} "${PLIMSOLL_EMBED_SCRIPT}"
    COMMENT "Embedding data/" VERBATIM)
  set(${out} "${output}" PARENT_SCOPE)
endfunction()
