# Run by `cmake --install`, after install.cmake has set where from and where to: installs the headers of
# public_headers.txt, and fails where one of them includes a header that is not there.
cmake_minimum_required(VERSION 3.22)
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/public_headers.txt" public REGEX "^hotswap/")
foreach(header IN LISTS public)
  file(STRINGS "${HOTSWAP_SOURCE_DIR}/${header}" lines REGEX "^#include \"hotswap/")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" target "${line}")
    if(NOT target IN_LIST public)
      message(FATAL_ERROR "expected ${header} to include public headers only; got ${target}; declare what it needs of it, "
                          "or add it to cmake/public_headers.txt")
    endif()
  endforeach()
endforeach()
foreach(header IN LISTS public)
  get_filename_component(folder "${header}" DIRECTORY)
  file(INSTALL "${HOTSWAP_SOURCE_DIR}/${header}" DESTINATION "${HOTSWAP_INCLUDE_DESTINATION}/${folder}")
endforeach()
