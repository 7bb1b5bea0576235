# Headers that are read once for all files of a kind: hotswap_pch_std, torch, ops, cli, and those of tests.
set(std_headers <algorithm> <cstdint> <filesystem> <functional> <map> <memory> <optional> <string> <string_view> <vector> <nlohmann/json.hpp>)
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/pch.cpp" CONTENT "// only carries the precompiled header\n")
function(hotswap_pch name)  # hotswap_pch(NAME [LINK targets...] HEADERS headers...)
  cmake_parse_arguments(ARG "" "" "LINK;HEADERS" ${ARGN})
  add_library(hotswap_pch_${name} OBJECT "${CMAKE_CURRENT_BINARY_DIR}/pch.cpp")
  target_precompile_headers(hotswap_pch_${name} PRIVATE ${std_headers} ${ARG_HEADERS})
  target_link_libraries(hotswap_pch_${name} PRIVATE ${ARG_LINK} nlohmann_json::nlohmann_json Threads::Threads)
endfunction()
hotswap_pch(std)
hotswap_pch(torch LINK torch::torch HEADERS <ATen/core/Tensor.h>)
# Of rooms most of whose files call operators of torch: each header of one brings 270 more, TensorOperators.h 2500.
hotswap_pch(ops LINK torch::torch HEADERS <ATen/core/Tensor.h> <ATen/TensorOperators.h>)
# The command line's own: CLI11 alone takes seconds in each of its files.
hotswap_pch(cli LINK torch::torch HEADERS <ATen/core/Tensor.h> <CLI/CLI.hpp>)
# The tests' own.
hotswap_pch(std_test LINK GTest::gtest HEADERS <gtest/gtest.h>)
# The packages' tests too, which call ops by the dispatcher.
hotswap_pch(torch_test LINK torch::torch GTest::gtest HEADERS <ATen/core/Tensor.h> <ATen/core/dispatch/Dispatcher.h>
            <ATen/TensorOperators.h> <gtest/gtest.h> <fstream> <sstream>)
target_compile_options(hotswap_pch_std_test PRIVATE ${HOTSWAP_TEST_OPTIONS})
target_compile_options(hotswap_pch_torch_test PRIVATE ${HOTSWAP_TEST_OPTIONS})
