#include "hotswap/cli/kernel/build.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <cstdio>
#include <iterator>
#include <sstream>

#include "hotswap/base/env.h"
#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/base/sha256.h"
#include "hotswap/cli/child.h"
#include "hotswap/cli/kernel/check.h"
#include "hotswap/hub/package/build_toml.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/package/files_in_memory.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStaging = ".staging";

#if defined(__aarch64__)
constexpr const char* kCpu = "aarch64";
#else
constexpr const char* kCpu = "x86_64";
#endif

// g++ 12 to 14 refer to symbols newer than manylinux_2_28 allows; defined here, nothing newer is needed. And all that a
// library exports. kernels/common/torch/manylinux.cpp and exports.map have the reasons.
constexpr const char* kManylinux = R"text(#include <sstream>
extern "C" {
extern __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;
__attribute__((visibility("hidden"))) void _ZSt21ios_base_library_initv() {}
}
template std::basic_stringstream<char>::basic_stringstream();
template std::basic_ostringstream<char>::basic_ostringstream();
#if __cplusplus >= 202002L
template std::string std::basic_stringbuf<char>::str() const&;
#endif
#if __GNUC__ >= 13 && !defined(__clang__)
template void std::string::_M_replace_cold(char*, size_t, const char*, const size_t, const size_t);
#endif
)text";
constexpr const char* kExports = "{ global: PyInit_*; local: *; };\n";

bool is_source(const fs::path& file) {
  const std::string ending = file.extension().string();
  return ending == ".cpp" || ending == ".cc" || ending == ".cxx";
}

// The folder of the torch package: of the very library that this process runs on.
fs::path torch_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&at::globalContext), &info) != 0 && info.dli_fname != nullptr) {
    fs::path folder = fs::canonical(info.dli_fname).parent_path().parent_path();
    if (fs::is_regular_file(folder / "include/torch/csrc/stable/library.h")) return folder;
  }
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = "torch's headers beside its libraries",
               .got = cat("none beside ", info.dli_fname == nullptr ? "them" : info.dli_fname),
               .next = "run a hotswap that was linked to pip's torch"});
}

// The files of a make rule, as compilers write it: "a.o: a.cpp b.h \\\n  c\\ d.h".
std::vector<fs::path> files_of_rule(const std::string& rule) {
  std::vector<fs::path> files;
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) files.emplace_back(word);
    word.clear();
  };
  for (size_t i = std::min(rule.find(": "), rule.size()) + 1; i < rule.size(); ++i) {
    const char next = i + 1 < rule.size() ? rule[i + 1] : '\0';
    if (rule[i] == '\\' && next == '\n') {
      ++i;
    } else if (rule[i] == '\\' && (next == ' ' || next == '#' || next == '\\')) {
      word += rule[++i];
    } else if (rule[i] == '$' && next == '$') {
      word += rule[++i];
    } else if (rule[i] == ' ' || rule[i] == '\n') {
      end_word();
    } else {
      word += rule[i];
    }
  }
  end_word();
  return files;
}

// CXX as make takes it: a program with its first arguments, "ccache g++"; or the path of one that has blanks in it.
std::vector<std::string> compiler_words() {
  const std::string given = env(EnvVar::kCxx).value_or("c++");
  if (fs::exists(given)) return {given};
  std::istringstream words(given);
  return {std::istream_iterator<std::string>(words), {}};
}

class Build {
 public:
  Build(fs::path package, bool verbose)
      : package_(fs::canonical(package)), toml_(read_build_toml(package_ / "build.toml")), verbose_(verbose) {}

  BuiltVariant run() {
    check();
    variant_ = cat("torch-stable-abi", level_[0], level_[1], "-cpu-", kCpu, "-linux");
    fs::create_directories(package_ / "build");
    const FileLock one_at_a_time(package_ / "build");
    remove_left_behind();
    staging_ = temporary_beside(package_ / "build" / kStaging, "");
    fs::create_directories(staging_ / variant_);
    fs::create_directories(staging_ / "objects");
    try {
      id_ = "_id";  // any, until it is known
      id_ = cat("_", python_name(), "_cpu_", hash_of_inputs());
      link(compile());
      stage();
      const std::vector<std::string> problems = check_built(staging_ / variant_, /*load=*/true).problems;
      if (!problems.empty()) {
        throw Error({.kind = ErrorKind::kCorrupt,
                     .wanted = "a library that loads wherever " + variant_ + " promises",
                     .got = join(problems, "; "),
                     .next = "change the sources or build.toml; the package was not replaced"});
      }
      replace();
    } catch (...) {
      std::error_code code;
      fs::remove_all(staging_, code);
      throw;
    }
    fs::remove_all(staging_);
    BuiltVariant built{.folder = package_ / "build" / variant_, .id = id_, .other_backends = {}};
    for (const std::string& backend : toml_.backends) {
      if (backend != "cpu") built.other_backends.push_back(backend);
    }
    return built;
  }

 private:
  std::string python_name() const {
    std::string name = toml_.name;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
  }

  // Of builds that were killed: with the lock in our hands nobody builds.
  void remove_left_behind() const {
    for (const auto& entry : fs::directory_iterator(package_ / "build")) {
      if (entry.path().filename().string().starts_with(kStaging)) fs::remove_all(entry.path());
    }
  }

  void check() {
    std::vector<std::string> problems = check_build(toml_, package_);
    const auto has_cpu = std::find(toml_.backends.begin(), toml_.backends.end(), "cpu") != toml_.backends.end();
    if (!has_cpu) problems.emplace_back("general.backends: no cpu, and that is what is built here");
    if (toml_.framework.kind != BuildFramework::Kind::kTorch) problems.emplace_back("no [torch] table");
    const auto level = toml_.framework.stable_abi.contains("cpu") ? toml_.framework.stable_abi.find("cpu")
                                                                  : toml_.framework.stable_abi.find("");
    if (level == toml_.framework.stable_abi.end()) {
      problems.emplace_back("torch.stable-abi: none; hotswap builds packages of torch's stable ABI, such as \"2.10\"");
    } else {
      level_ = level->second;
      level_.resize(std::max<size_t>(2, level_.size()));
      if (level_ < BuildVersion{2, 10}) problems.emplace_back("torch.stable-abi: expected 2.10 or newer");
    }
    if (!fs::is_directory(face())) problems.push_back("no folder torch-ext/" + python_name() + " with the Python API");
    if (problems.empty()) return;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a package that can be built here: " + (package_ / "build.toml").string(),
                 .got = join(problems, "; "),
                 .next = "`hotswap kernel init` writes one to compare with"});
  }

  fs::path face() const { return package_ / "torch-ext" / python_name(); }

  void run_compiler(const std::vector<std::string>& arguments, const std::string& what) {
    std::vector<std::string> words = compiler_words();
    words.insert(words.end(), arguments.begin(), arguments.end());
    if (verbose_) std::fprintf(stderr, "%s\n", join(words, " ").c_str());
    std::string said;
    const int status = run_program(words, [&](const std::string& line) { said += line + "\n"; });
    if (status != 0) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("to ", what, " with ", join(compiler_words(), " ")),
                   .got = cat("status ", status, ":\n", said),
                   .next = "correct the source, or name another compiler in CXX"});
    }
    if (!said.empty()) std::fprintf(stderr, "%s", said.c_str());  // warnings
  }

  // A new id for every change of what is compiled or staged, and for nothing else: torch keeps one set of ops, and
  // Python one module, a name. Headers are those that the compiler reads; torch's own are not ours to count.
  std::string hash_of_inputs() {
    std::map<std::string, fs::path> files;
    std::string all = cat(kManylinux, kExports);
    const auto add = [&](const fs::path& file) {
      const fs::path name = file.lexically_relative(package_);
      files[(*name.begin() == ".." ? file.filename() : name).generic_string()] = file;
    };
    const fs::path rule = staging_ / "objects/rule.d";
    each_source([&](const fs::path& source, const std::vector<std::string>& with) {
      for (const std::string& flag : with) all += cat(with_places_named(flag), '\0');
      std::vector<std::string> words = with;
      for (const std::string& word : {std::string("-MM"), source.string(), std::string("-MF"), rule.string()}) {
        words.push_back(word);
      }
      run_compiler(words, "read the includes of " + source.filename().string());
      for (const fs::path& file : files_of_rule(read_file(rule))) add(fs::canonical(file));
    });
    for (const fs::path& file : face_files()) add(file);
    if (fs::is_regular_file(package_ / "layers.json")) add(package_ / "layers.json");
    all += metadata().dump();
    for (const auto& [name, file] : files) {
      const std::string bytes = read_file(file);
      all += cat(name, '\0', bytes.size(), '\0', bytes);
    }
    return to_hex(sha256(as_bytes(all))).substr(0, 7);
  }

  // Where package and torch lie is no part of what is built.
  std::vector<std::pair<std::string, std::string>> places() const {
    return {{staging_.string(), "."}, {package_.string(), "."}, {torch_.string(), "torch"}};
  }

  std::string with_places_named(std::string text) const {
    for (const auto& [place, name] : places()) {
      for (size_t at = 0; (at = text.find(place, at)) != text.npos; at += name.size()) {
        text.replace(at, place.size(), name);
      }
    }
    return text;
  }

  std::vector<std::string> flags(const std::vector<std::string>& include, const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"-std=c++20",
                                    "-O3",
                                    "-fPIC",
                                    "-fvisibility=hidden",
                                    "-fvisibility-inlines-hidden",
                                    "-DCPU_KERNEL",
                                    "-DTORCH_EXTENSION_NAME=" + id_,
                                    cat("-DTORCH_TARGET_VERSION=", target_version()),
                                    "-isystem",
                                    (torch_ / "include").string()};
    for (const std::string& folder : include) all.push_back("-I" + (package_ / folder).string());
    all.insert(all.end(), more.begin(), more.end());
    // Asserts and debug information name files. The last map that fits is taken, and the staging folder is in the
    // package's.
    const auto named = places();
    for (auto place = named.rbegin(); place != named.rend(); ++place) {
      all.push_back(cat("-ffile-prefix-map=", place->first, "=", place->second));
    }
    return all;
  }

  std::string target_version() const {  // 2.10 -> 0x020a000000000000
    char text[32];
    std::snprintf(text, sizeof text, "0x%02x%02x000000000000", static_cast<unsigned>(level_[0]),
                  static_cast<unsigned>(level_[1]));
    return text;
  }

  // Every source that is compiled, with its flags.
  template <typename Visit>
  void each_source(const Visit& visit) const {
    for (const std::string& source : toml_.framework.src) {
      if (is_source(source)) visit(package_ / source, flags(toml_.framework.include, toml_.framework.cxx_flags));
    }
    for (const auto& [name, kernel] : toml_.kernels) {
      if (kernel.backend != "cpu") continue;
      for (const std::string& source : kernel.src) {
        if (is_source(source)) visit(package_ / source, flags(kernel.include, kernel.cxx_flags));
      }
    }
  }

  std::vector<std::string> compile() {
    std::vector<std::string> objects;
    const auto one = [&](const fs::path& source, const std::vector<std::string>& with) {
      const std::string object = (staging_ / "objects" / cat(objects.size(), ".o")).string();
      std::vector<std::string> words = with;
      for (const std::string& word : {std::string("-c"), source.string(), std::string("-o"), object}) {
        words.push_back(word);
      }
      run_compiler(words, "compile " + source.filename().string());
      objects.push_back(object);
    };
    each_source(one);
    const fs::path shim = staging_ / "objects/manylinux.cpp";
    write_file(shim, kManylinux);
    one(shim, flags({}, {}));
    return objects;
  }

  void link(std::vector<std::string> objects) {
    // libtorch_cpu must be NEEDED, or Python cannot load the file.
    objects.insert(objects.begin(), {"-shared", "-o", (staging_ / variant_ / (id_ + ".abi3.so")).string()});
    const fs::path exports = staging_ / "objects/exports.map";
    write_file(exports, kExports);
    for (const std::string& word :
         {std::string("-Wl,--no-as-needed"), (torch_ / "lib/libtorch_cpu.so").string(),
          std::string("-Wl,--allow-shlib-undefined"), std::string("-Xlinker"),
          cat("--version-script=", exports.string())}) {  // not by -Wl: the path may hold a comma
      objects.push_back(word);
    }
    run_compiler(objects, "link " + id_);
  }

  // What of the Python API is staged.
  std::vector<fs::path> face_files() const {
    std::vector<fs::path> files;
    for (fs::recursive_directory_iterator at(face()), end; at != end; ++at) {
      const std::string ending = at->path().extension().string();
      const auto& wanted = toml_.framework.pyext;
      if (!at->is_regular_file() || ending.size() < 2) continue;
      if (std::find(wanted.begin(), wanted.end(), ending.substr(1)) != wanted.end()) files.push_back(at->path());
    }
    return files;
  }

  void stage() {
    const fs::path to = staging_ / variant_;
    for (const fs::path& file : face_files()) {
      const fs::path target = to / file.lexically_relative(face());
      fs::create_directories(target.parent_path());
      fs::copy_file(file, target);
    }
    write_file(to / "_ops.py", cat("import torch\n\nfrom . import ", id_, "\n\nops = torch.ops.", id_,
                                   "\n\n\ndef add_op_namespace_prefix(name):\n    return f\"", id_, "::{name}\"\n"));
    if (fs::is_regular_file(package_ / "layers.json")) fs::copy_file(package_ / "layers.json", to / "layers.json");
    write_file(to / "metadata.json", metadata().dump(2) + "\n");
    write_digests(to);
  }

  nlohmann::ordered_json metadata() const {
    using OutJson = nlohmann::ordered_json;
    OutJson python = OutJson::array(), kernel = OutJson::array();
    for (const char* backend : {"", "cpu"}) {
      if (const auto list = toml_.python_depends.find(backend); list != toml_.python_depends.end()) {
        for (const std::string& name : list->second) python.push_back(name);
      }
      if (const auto list = toml_.kernel_depends.find(backend); list != toml_.kernel_depends.end()) {
        for (const KernelDepend& depend : list->second) {
          kernel.push_back({{"repo-id", depend.repo}});
          depend.version ? kernel.back()["version"] = *depend.version : kernel.back()["revision"] = depend.revision;
        }
      }
    }
    OutJson out = {{"name", toml_.name},          {"id", id_},
                   {"version", toml_.version},    {"license", toml_.license},
                   {"python-depends", python},    {"kernel-depends", kernel},
                   {"backend", {{"type", "cpu"}}}};
    if (!toml_.upstream.empty()) out["upstream"] = toml_.upstream;
    if (!toml_.source.empty()) out["source"] = toml_.source;
    return out;
  }

  void replace() {
    const fs::path target = package_ / "build" / variant_;
    if (fs::exists(target)) fs::rename(target, staging_ / "old");
    fs::rename(staging_ / variant_, target);
  }

  const fs::path package_, torch_ = torch_folder();
  const BuildToml toml_;
  const bool verbose_;
  BuildVersion level_;
  std::string id_, variant_;
  fs::path staging_;
};

}  // namespace

BuiltVariant build_package(const fs::path& package, bool verbose) { return Build(package, verbose).run(); }

}  // namespace hotswap
