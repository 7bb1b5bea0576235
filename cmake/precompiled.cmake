# Headers that are read once for all files of a kind: hotswap_pch_std, torch, and those of tests.
set(std_headers <algorithm> <cstdint> <filesystem> <functional> <map> <memory> <optional> <string> <string_view> <vector> <nlohmann/json.hpp>)
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/pch.cpp" CONTENT "// only carries the precompiled header\n")
set_source_files_properties("${CMAKE_CURRENT_BINARY_DIR}/pch.cpp" PROPERTIES COMPILE_OPTIONS "${HOTSWAP_TEST_OPTIONS}")
function(hotswap_pch name)  # hotswap_pch(NAME [LINK targets...] HEADERS headers...)
  cmake_parse_arguments(ARG "" "" "LINK;HEADERS" ${ARGN})
  add_library(hotswap_pch_${name} OBJECT "${CMAKE_CURRENT_BINARY_DIR}/pch.cpp")
  target_precompile_headers(hotswap_pch_${name} PRIVATE ${std_headers} ${ARG_HEADERS})
  target_link_libraries(hotswap_pch_${name} PRIVATE ${ARG_LINK} nlohmann_json::nlohmann_json Threads::Threads)
endfunction()
hotswap_pch(std)
# Each header of an operator brings 270 more, TensorOperators.h 2500. One for all rooms: to make another takes longer than the
# second by which a file without operators would be quicker.
hotswap_pch(torch LINK torch::torch HEADERS <ATen/core/Tensor.h> <ATen/TensorOperators.h>)
# The tests' own.
hotswap_pch(std_test LINK GTest::gtest HEADERS <gtest/gtest.h>)
# The packages' tests too, which call ops by the dispatcher.
hotswap_pch(torch_test LINK torch::torch GTest::gtest HEADERS <ATen/core/Tensor.h> <ATen/core/dispatch/Dispatcher.h>
            <ATen/TensorOperators.h> <gtest/gtest.h> <fstream> <sstream>)
# Of a target that uses one. g++ looks for memory to free, in the whole precompiled header too, whenever it has taken a share
# more; the share of 128 MB, its default, costs a twentieth of its time. Here of 512 MB (in KiB).
set(HOTSWAP_PCH_OPTIONS $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=524288>)
target_compile_options(hotswap_pch_std_test PRIVATE ${HOTSWAP_TEST_OPTIONS})
target_compile_options(hotswap_pch_torch_test PRIVATE ${HOTSWAP_TEST_OPTIONS})
