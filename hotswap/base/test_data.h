// For tests: folders of golden files. Those that a Python script makes when a test first asks, and the recorded ones
// beside the checkout, which are an extra where they are.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <map>
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

// All that golden files depend on, as a digest: the scripts, the licence that some train on, and what the tests' Python
// has installed.
inline constexpr const char* kMadeFrom = R"py(
import hashlib, importlib.metadata, os, sys
from pathlib import Path
root, every_key = Path(sys.argv[1]), os.environ.get("HOTSWAP_CONFIG_KEYS", "")
libraries = sorted(f"{found.name} {found.version}" for found in importlib.metadata.distributions())
digest = hashlib.sha256("\n".join([sys.version, every_key, *libraries]).encode())
for file in [root / "LICENSE", *sorted((root / "hotswap").rglob("*.py"))]:
    digest.update(f"{file}\0".encode() + file.read_bytes())
print(digest.hexdigest()[:16], end="")
)py";

inline Error no_golden_files(const std::string& script, const PythonRun& run) {
  return Error({.kind = ErrorKind::kUnavailable,
                .wanted = cat("golden files from ", script),
                .got = cat("exit status ", run.status, ": ", run.output),
                .next = cat("./x test installs what it imports into .venv; the tests' Python is ", test_python())});
}

// Where the scripts fill their folders: test-data/<digest> of the build, which stays for the programs and runs to come.
// Folders of other digests go.
inline const std::filesystem::path& made_folder() {
  static const std::filesystem::path folder = [] {
    const TempFolder scratch;
    const PythonRun run = run_script(scratch.write("made_from.py", kMadeFrom), source_folder().string());
    if (run.status != 0) throw no_golden_files("all scripts", run);
    const std::filesystem::path all = own_binary_path()->parent_path().parent_path() / "test-data";
    std::filesystem::create_directories(all / run.output);
    const FileLock lock(all);
    for (const auto& entry : std::filesystem::directory_iterator(all)) {
      if (entry.path().filename() != run.output) std::filesystem::remove_all(entry.path());
    }
    return all / run.output;
  }();
  return folder;
}

// The folder that hotswap/<script> fills. It is made once, by the first test program that needs it, since importing
// Python's libraries takes seconds; tests only read it.
inline const std::filesystem::path& made_data(const std::string& script) {
  static std::map<std::string, std::filesystem::path> made;
  auto& folder = made[script];
  if (!folder.empty()) return folder;
  const std::filesystem::path target = made_folder() / std::filesystem::path(script).replace_extension();
  std::filesystem::create_directories(target.parent_path());
  const FileLock lock(cat(target.string(), ".lock"));  // another program may be making it
  const std::filesystem::path whole = cat(target.string(), ".whole");
  if (!std::filesystem::exists(whole)) {
    std::filesystem::remove_all(target);  // of a script that was interrupted
    std::filesystem::create_directories(target);
    const PythonRun run = run_script(source_folder() / "hotswap" / script, target.string());
    if (run.status != 0) throw no_golden_files(script, run);
    write_file(whole, "");
  }
  return folder = target;
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
