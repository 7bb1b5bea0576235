# The preset `fuzz`: bin/fuzz_<target>, libFuzzer programs under ASan and UBSan, one for each parser of the Hub, one for
# the tokenizers, one for chat templates and one for grammars. `./x check --fuzz` builds and runs them; the fuzz_test.cpp of these rooms has them.
add_custom_target(fuzzers)
function(hotswap_fuzzer target room)
  add_executable(fuzz_${target} EXCLUDE_FROM_ALL "${CMAKE_CURRENT_SOURCE_DIR}/${room}/fuzz_test.cpp"
                 ${HOTSWAP_OBJECTS_${room}})
  hotswap_compile(fuzz_${target} "${HOTSWAP_LINK_${room}}" ON std)
  target_compile_definitions(fuzz_${target} PRIVATE HOTSWAP_FUZZ_TARGET="${target}")
  target_link_options(fuzz_${target} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzzers fuzz_${target})
endfunction()
foreach(target names variants metadata lock build_toml answers bundle)
  hotswap_fuzzer(${target} hub)
endforeach()
hotswap_fuzzer(tokenizer tokenizers)
hotswap_fuzzer(template chat)
hotswap_fuzzer(grammar grammar)
