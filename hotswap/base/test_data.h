// For tests: folders of golden files. Those that a Python script makes when a test first asks, and the recorded ones
// beside the checkout, which are an extra where they are.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <vector>

#include "hotswap/base/test_support.h"

namespace hotswap::test_support {

// The folder of the checkout, or of those of its files that were taken elsewhere together with the test programs.
inline std::filesystem::path source_folder() { return env(EnvVar::kTestSource).value_or(HOTSWAP_SOURCE_DIR); }
inline std::string test_python() { return env(EnvVar::kTestPython).value_or(HOTSWAP_TEST_PYTHON); }

struct PythonRun {
  int status = 0;      // its exit status
  std::string output;  // stdout and stderr
};

// Runs a script by the tests' Python; it must not hang. A sanitizer's runtime, preloaded or not, is nothing for Python.
inline PythonRun run_script(const std::filesystem::path& script, const std::string& arguments,
                            const std::filesystem::path& working_folder = ".", int seconds = 300) {
  const std::string command =
      cat("cd ", working_folder.string(),
          " && env -u LD_PRELOAD HF_HUB_OFFLINE=1 USE_HUB_KERNELS=0 PYTHONDONTWRITEBYTECODE=1 ", "timeout ", seconds,
          " ", test_python(), " ", script.string(), " ", arguments, " 2>&1");
  PythonRun run;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {-1, "popen failed"};
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) run.output.append(buffer.data(), n);
  run.status = WEXITSTATUS(::pclose(pipe));
  return run;
}

// Why tests whose scripts import these modules cannot run; none where they can. In a checkout they always can, or fail:
// ./x installs what they import. Where the programs were taken to another machine, its Python may be without.
inline std::optional<std::string> lacking_imports(const std::string& modules) {
  if (!env(EnvVar::kTestSource)) return std::nullopt;
  const TempFolder folder;
  const PythonRun run = run_script(folder.write("imports.py", cat("import ", modules, "\n")), "");
  if (run.status == 0) return std::nullopt;
  return cat("the tests' Python, ", test_python(), ", has not all of what they import: ", run.output);
}

inline const std::optional<std::string>& no_transformers() {
  static const std::optional<std::string> why = lacking_imports("safetensors, tokenizers, torch, transformers");
  return why;
}

// Tests that compare with transformers.
template <class Base = testing::Test>
class WithTransformers : public Base {
 protected:
  void SetUp() override {
    if (no_transformers()) GTEST_SKIP() << *no_transformers();
  }
};

// The folder that hotswap/<script> fills, made once for each test program: importing Python's libraries takes seconds.
inline const std::filesystem::path& made_data(const std::string& script) {
  static std::map<std::string, std::unique_ptr<TempFolder>> made;
  auto& folder = made[script];
  if (!folder) {
    auto fresh = std::make_unique<TempFolder>();
    const auto file = source_folder() / "hotswap" / script;
    const PythonRun run = run_script(file, fresh->path().string());
    if (run.status != 0) {
      throw Error({.kind = ErrorKind::kUnavailable,
                   .wanted = cat("golden files from ", script),
                   .got = cat("exit status ", run.status, ": ", run.output),
                   .next = cat("./x test installs what it imports into .venv; the tests' Python is ", test_python())});
    }
    folder = std::move(fresh);
  }
  return folder->path();
}

inline std::filesystem::path recorded_data() { return source_folder() / "../shared/data"; }

// Parameters of a test: each of `made`, and those of `recorded` whose folder is there.
struct GoldenFolder {
  std::string script;  // of made_data; empty: recorded
  std::string folder;  // inside it
  std::filesystem::path root() const { return script.empty() ? recorded_data() : made_data(script); }
  std::filesystem::path path() const { return root() / folder; }
};
inline std::vector<GoldenFolder> golden_folders(const std::string& script, const std::vector<std::string>& made,
                                                const std::vector<std::string>& recorded) {
  std::vector<GoldenFolder> all;
  for (const std::string& folder : made) all.push_back({script, folder});
  for (const std::string& folder : recorded) {
    if (std::filesystem::exists(recorded_data() / folder)) all.push_back({"", folder});
  }
  return all;
}
inline std::string golden_name(const testing::TestParamInfo<GoldenFolder>& info) {
  std::string name = std::filesystem::path(info.param.folder).filename().string();
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return (info.param.script.empty() ? "recorded_" : "made_") + name;
}
inline void PrintTo(const GoldenFolder& folder, std::ostream* out) { *out << folder.folder; }

}  // namespace hotswap::test_support
