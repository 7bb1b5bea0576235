#include "hotswap/hub/package/abi_check.h"

#include <cstring>

#include "hotswap/base/file.h"
#include "hotswap/base/test_support.h"
#include "hotswap/hub/package/digest.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

TEST(Elf, ThisTestItself) {
  const Elf elf = read_elf("/proc/self/exe");
#if defined(__x86_64__)
  EXPECT_EQ(elf.machine, "x86_64");
#endif
  const auto needs = [&](const std::string& prefix) {
    return std::any_of(elf.needed.begin(), elf.needed.end(),
                       [&](const std::string& n) { return n.starts_with(prefix); });
  };
  EXPECT_TRUE(needs("libc.so"));
  EXPECT_TRUE(needs("libstdc++.so"));
  const auto start = std::find_if(elf.undefined.begin(), elf.undefined.end(),
                                  [](const ElfSymbol& s) { return s.name == "__libc_start_main"; });
  ASSERT_NE(start, elf.undefined.end());
  EXPECT_TRUE(start->version.starts_with("GLIBC_2.")) << start->version;
}

TEST(Elf, BytesThatAreNone) {
  const std::string whole = read_file("/proc/self/exe");
  const auto parsed = [](const std::string& bytes) {
    return message_of([&] { parse_elf({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "x.so"); });
  };
  EXPECT_EQ(parsed(whole), "no error");
  for (const size_t size : {size_t{0}, size_t{3}, size_t{63}, size_t{64}, size_t{4096}, whole.size() / 2}) {
    EXPECT_NE(parsed(whole.substr(0, size)), "no error") << size;
  }
  expect_has(parsed("#!/bin/sh\n" + std::string(100, ' ')), {"no ELF file", "x.so"});
  std::string thirty_two = whole;
  thirty_two[4] = 1;
  expect_has(parsed(thirty_two), {"another kind of ELF"});
  // Any byte of the header and of the section table may lie: an Error at most, never a crash or a loop.
  uint64_t table = 0;
  std::memcpy(&table, whole.data() + 40, 8);
  for (size_t at = 0; at < 64 + 40 * 64; ++at) {
    std::string bad = whole.substr(0, 64);
    const size_t place = at < 64 ? at : table + at - 64;
    if (place >= whole.size()) break;
    bad = whole;
    bad[place] = static_cast<char>(bad[place] ^ 0xff);
    parsed(bad);
    at += 6;
  }
}

Elf good() {
  return {.machine = "x86_64",
          .needed = {"libtorch_cpu.so", "libstdc++.so.6", "libc.so.6"},
          .undefined = {{"memcpy", "GLIBC_2.14"},
                        {"aoti_torch_empty_strided", ""},
                        {"torch_call_dispatcher", ""},
                        {"_ZNSt13runtime_errorD1Ev", "GLIBCXX_3.4"},
                        {"PyModule_Create2", "", true},
                        {"__gmon_start__", "", true}},
          .defined = {{"PyInit__norm_cpu_abc", ""}}};
}
const VariantName kStable = *VariantName::parse("torch-stable-abi210-cpu-x86_64-linux");
const VariantName kTorch = *VariantName::parse("torch211-cu130-x86_64-linux");

TEST(AbiCheck, EveryProblem) {
  EXPECT_TRUE(check_abi(good(), kStable, "_norm_cpu_abc").empty());
  EXPECT_EQ(stable_abi_level(good())->str(), "2.10");
  struct Row {
    const char *symbol, *version;
    const VariantName& variant;
    const char* says;  // null: fine
  };
  const Row table[] = {
      {"memcpy", "GLIBC_2.28", kStable, nullptr},
      {"__libc_single_threaded", "GLIBC_2.32", kStable, "newer than manylinux_2_28's GLIBC_2.28"},
      {"_dl_x", "GLIBC_PRIVATE", kStable, "GLIBC_PRIVATE"},
      {"_ZNSsC1Ev", "GLIBCXX_3.4.24", kStable, nullptr},
      {"_ZNSt7__cxx1118basic_stringstreamC1Ev", "GLIBCXX_3.4.26", kStable, "GLIBCXX_3.4.24"},
      {"x", "CXXABI_1.3.12", kStable, "CXXABI_1.3.11"},
      {"_Unwind_Resume", "GCC_3.0", kStable, nullptr},
      {"_ZN2at4_ops3add4callERKNS_6TensorE", "", kStable, "not in torch's stable ABI"},
      {"_ZNK3c105Error4whatEv", "", kStable, "not in torch's stable ABI"},
      {"_ZTVN3c105ErrorE", "", kStable, "not in torch's stable ABI"},
      {"_ZN2at4_ops3add4callERKNS_6TensorE", "", kTorch, nullptr},
      {"torch_from_blob", "", kStable, "of torch 2.11's stable ABI, newer than its variant's 2.10"},
      {"torch_from_blob", "", kTorch, nullptr},
      {"torch_of_tomorrow", "", kStable, "no known stable ABI"},
      {"PyList_New", "", kStable, "declare it weak"},
      {"PyList_New", "", kTorch, nullptr},
      {"_PyObject_New", "", kTorch, "not in Python's stable ABI"},
      {"cudaLaunchKernel", "", kTorch, nullptr},
      {"my_own_helper", "", kStable, "no library that it names"},
      {"_Z6helperv", "", kTorch, "no library that it names"},
  };
  for (const Row& row : table) {
    Elf elf = good();
    elf.undefined.push_back({row.symbol, row.version});
    const auto problems = check_abi(elf, row.variant, "_norm_cpu_abc");
    EXPECT_EQ(problems.size(), row.says ? 1u : 0u) << row.symbol << ": " << join(problems, "; ");
    if (row.says) expect_has(join(problems), {row.says, row.symbol});
  }
  Elf elf = good();
  elf.machine = "aarch64";
  elf.needed.emplace_back("libpython3.11.so.1.0");
  elf.defined.clear();
  const auto problems = check_abi(elf, kStable, "_norm_cpu_abc");
  EXPECT_EQ(problems.size(), 3u);
  expect_has(join(problems), {"is built for aarch64", "libpython3.11", "PyInit__norm_cpu_abc"});
  elf.undefined.push_back({"torch_of_tomorrow", ""});
  EXPECT_FALSE(stable_abi_level(elf));
}

TEST(AbiCheck, OfAVariantsFolder) {
  TempFolder folder;
  const std::string v = "torch-stable-abi210-cpu-x86_64-linux/";
  folder.write(
      v + "metadata.json",
      R"({"name": "ab", "id": "_ab", "version": 1, "license": "mit", "python-depends": ["requests"], "backend": {"type": "cpu"}})");
  folder.write(v + "_ab.abi3.so", "no library");
  const auto problems = join(check_variant(folder.path() / v.substr(0, v.size() - 1)), "\n");
  expect_has(problems, {"no digest", "'requests'", "no __init__.py", "_ab.abi3.so: its header beyond its end"});
  folder.write(
      "torch-cpu/metadata.json",
      R"({"name": "ab", "id": "_ab", "version": 1, "license": "mit", "python-depends": [], "backend": {"type": "cpu"}})");
  folder.write("torch-cpu/__init__.py", "");
  write_digests(folder.path() / "torch-cpu");
  EXPECT_TRUE(check_variant(folder.path() / "torch-cpu").empty());
  folder.write("torch-cpu/__init__.py", "import os");
  expect_has(join(check_variant(folder.path() / "torch-cpu")), {"File hash mismatch for __init__.py"});
  expect_has(join(check_variant(folder.path())), {"is no name of a variant", "metadata.json"});
}

}  // namespace
}  // namespace hotswap
