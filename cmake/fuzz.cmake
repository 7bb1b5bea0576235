# The preset `fuzz`: bin/fuzz_<target>, one libFuzzer program for each parser of the Hub, under ASan and UBSan.
# `./x check --fuzz` builds and runs them; hotswap/hub/fuzz_test.cpp has the targets.
add_custom_target(fuzzers)
foreach(target names variants metadata lock build_toml answers bundle)
  add_executable(fuzz_${target} EXCLUDE_FROM_ALL "${CMAKE_CURRENT_SOURCE_DIR}/hub/fuzz_test.cpp" ${HOTSWAP_OBJECTS_hub})
  hotswap_compile(fuzz_${target} "${HOTSWAP_LINK_hub}" ON "")
  target_compile_definitions(fuzz_${target} PRIVATE HOTSWAP_FUZZ_TARGET="${target}")
  target_link_options(fuzz_${target} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzzers fuzz_${target})
endforeach()
