#include "hotswap/hub/names/variant.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

constexpr MajorMinor kMetalNeeds{26, 0};

// One thing that keeps a variant from fitting: the words of the trace, what would cure it, and how hard that is.
struct Problem {
  std::string reason, cure;
  int cost;
};

std::string text_of(const std::optional<MajorMinor>& version) { return version ? version->str() : "None"; }
const char* text_of(const std::optional<bool>& flag) { return flag ? *flag ? "True" : "False" : "None"; }

void judge_framework(const VariantName& v, const System& s, std::vector<Problem>& problems) {
  if (v.framework == Framework::kTorch) {
    if (s.torch != v.version) {
      problems.push_back({cat("Torch version (", v.version.str(), ") does not match environment Torch version (",
                              text_of(s.torch), ")"),
                          cat("torch ", v.version.str()), s.torch ? 3 : 6});
    } else if (v.cxx11_abi && v.cxx11_abi != s.cxx11_abi) {
      problems.push_back({cat("Torch CXX11 ABI (", text_of(v.cxx11_abi),
                              ") does not match environment Torch CXX11 ABI (", text_of(s.cxx11_abi), ")"),
                          cat("a torch built with the ", *v.cxx11_abi ? "new" : "old", " C++ ABI"), 4});
    }
  } else if (v.framework == Framework::kTorchStableAbi) {
    if (!s.torch || v.version > *s.torch) {
      problems.push_back({cat("Torch stable ABI version (", v.version.str(),
                              ") is too new for environment Torch version (", text_of(s.torch), ")"),
                          cat("torch ", v.version.str(), " or newer"), s.torch ? 2 : 6});
    }
  } else if (v.framework == Framework::kTvmFfi && s.tvm_ffi != v.version) {
    problems.push_back({cat("tvm-ffi version (", v.version.str(), ") does not match environment tvm-ffi version (",
                            text_of(s.tvm_ffi), ")"),
                        cat("tvm-ffi ", v.version.str()), 4});
  }
}

void judge_backend(const Backend& wanted, const System& s, std::vector<Problem>& problems) {
  const Backend& have = s.backend;
  const bool both_cuda = wanted.kind == BackendKind::kCuda && have.kind == BackendKind::kCuda;
  if (both_cuda && wanted.version && have.version) {
    const bool same_major = wanted.version->major == have.version->major;
    if (!same_major || wanted.version->minor > have.version->minor) {
      problems.push_back(
          {cat("CUDA version (", wanted.version->str(), ") is not compatible with system CUDA version (",
               have.version->str(), ")"),
           cat("a torch built for CUDA ", wanted.version->str(), " or a newer ", wanted.version->major, ".x"),
           same_major ? 2 : 4});
    }
  } else if (wanted.text() != have.text()) {
    problems.push_back({cat("backend (", wanted.text(), ") does not match selected backend (", have.text(), ")"),
                        wanted.kind == BackendKind::kCpu ? "the backend cpu requested by name"
                                                         : cat("a torch built for ", wanted.text()),
                        wanted.kind == have.kind           ? 4
                        : wanted.kind == BackendKind::kCpu ? 5
                                                           : 8});
  }
  if (wanted.kind == BackendKind::kMetal && problems.empty() && (!s.macos || *s.macos < kMetalNeeds)) {
    problems.push_back({cat("Metal kernels require macOS 26.0 or later, system macOS version is ",
                            s.macos ? s.macos->str() : "unknown"),
                        "macOS 26.0 or later", 4});
  }
}

void judge_archs(const VariantCandidate& candidate, const Backend& backend, const System& s,
                 std::vector<Problem>& problems) {
  if (candidate.archs.empty() || !problems.empty()) return;
  if (backend.kind == BackendKind::kCuda && s.capability) {
    for (const std::string& arch : candidate.archs) {
      if (arch_runs_on(arch, *s.capability)) return;
    }
    problems.push_back(
        {cat("its code (", join(candidate.archs), ") does not run on compute capability ", s.capability->str()),
         cat("a GPU of compute capability ", join(candidate.archs, " or ")), 9});
  } else if (backend.kind == BackendKind::kRocm && !s.gfx.empty()) {
    const std::string have = s.gfx.substr(0, s.gfx.find(':'));
    if (std::find(candidate.archs.begin(), candidate.archs.end(), have) != candidate.archs.end()) return;
    problems.push_back({cat("its code (", join(candidate.archs), ") does not run on ", have),
                        cat("a GPU out of ", join(candidate.archs)), 9});
  }
}

std::vector<Problem> judge(const VariantCandidate& candidate, const std::optional<VariantName>& v, const System& s) {
  if (!v) return {{"is no name of a build variant", "", 99}};
  if (s.no_python && (v->framework == Framework::kNoarch || v->framework == Framework::kTvmFfi)) {
    return {{cat("is for Python: a host without it loads compiled torch variants alone"), "Python", 20}};
  }
  std::vector<Problem> problems;
  if (v->framework == Framework::kNoarch) {
    const std::string name = s.backend.kind == BackendKind::kCann ? "npu" : s.backend.name();
    if (v->noarch != name && v->noarch != "universal") {
      problems.push_back(
          {cat("backend (", v->noarch, ") does not match system backend (", name, ") and is not universal"),
           cat("the backend ", v->noarch), v->noarch == "cpu" ? 5 : 8});
    }
    return problems;
  }
  if (s.free_threaded) {
    problems.push_back(
        {"arch kernel not supported on free-threaded Python <3.15", "a Python with a GIL, or Python 3.15 or newer", 4});
  }
  if (v->cpu != s.cpu) {
    problems.push_back(
        {cat("CPU (", v->cpu, ") does not match system CPU (", s.cpu, ")"), cat("a machine with ", v->cpu), 20});
  }
  if (v->os != s.os) {
    problems.push_back({cat("OS (", v->os, ") does not match system OS (", s.os, ")"), v->os, 20});
  }
  judge_framework(*v, s, problems);
  std::vector<Problem> of_backend;
  judge_backend(v->backend, s, of_backend);
  judge_archs(candidate, v->backend, s, of_backend);
  problems.insert(problems.end(), of_backend.begin(), of_backend.end());
  return problems;
}

struct Verdict {
  std::string variant;
  std::vector<Problem> problems;
  std::array<int, 5> order;  // smaller is better
};

std::array<int, 5> order_of(const std::optional<VariantName>& v) {
  if (!v) return {9, 0, 0, 0, 0};
  const int minor = v->backend.version ? -v->backend.version->minor : 0;
  switch (v->framework) {
    case Framework::kTorchStableAbi:
      return {0, -v->version.major, -v->version.minor, minor, 0};
    case Framework::kTorch:
      return {1, 0, v->cxx11_abi ? 1 : 0, minor, 0};
    case Framework::kTvmFfi:
      return {2, 0, 0, minor, 0};
    case Framework::kNoarch:
      return {3, 0, 0, 0, v->noarch == "universal" ? 1 : 0};
  }
  return {9, 0, 0, 0, 0};
}

std::vector<NearMiss> nearest_of(const std::vector<Verdict>& verdicts) {
  std::vector<NearMiss> misses;
  for (const Verdict& verdict : verdicts) {
    NearMiss miss{verdict.variant, {}, 0};
    for (const Problem& problem : verdict.problems) {
      miss.distance += problem.cost;
      if (!problem.cure.empty()) miss.needs.push_back(problem.cure);
    }
    if (!miss.needs.empty()) misses.push_back(std::move(miss));
  }
  std::stable_sort(misses.begin(), misses.end(),
                   [](const NearMiss& a, const NearMiss& b) { return a.distance < b.distance; });
  return misses;
}

}  // namespace

bool arch_runs_on(const std::string& arch, const MajorMinor& capability) {
  std::string_view text = arch;
  const bool ptx = text.ends_with("+PTX");
  if (ptx) text.remove_suffix(4);
  const char suffix = text.empty() ? '\0' : text.back();
  if (suffix == 'a' || suffix == 'f') text.remove_suffix(1);
  const auto built = MajorMinor::parse(text);
  if (!built) return false;
  if (suffix == 'a') return *built == capability;
  if (built->major == capability.major && built->minor <= capability.minor) return true;
  return ptx && *built <= capability;
}

std::string VariantChoice::trace_text() const {
  std::vector<std::string> lines;
  lines.reserve(trace.size());
  for (const auto& [variant, reason] : trace) lines.push_back(cat(shown(variant), ": ", reason));
  return lines.empty() ? "it has no built variant at all" : join(lines, "; ");
}

std::string VariantChoice::trace_lines() const {
  std::vector<std::string> lines;
  for (size_t i = 0; i < trace.size(); ++i) {
    const auto& [variant, reason] = trace[i];
    lines.push_back(i < fitting.size() ? cat(variant, " ", reason, " \u2705") : cat(shown(variant), ": ", reason));
  }
  return join(lines, "\n");
}

std::string VariantChoice::nearest_text() const {
  std::vector<std::string> texts;
  for (size_t i = 0; i < nearest.size() && i < 3; ++i) {
    texts.push_back(cat(shown(nearest[i].variant), " needs ", join(nearest[i].needs, " and ")));
  }
  return join(texts, "; ");
}

VariantChoice choose_variant(const std::vector<VariantCandidate>& variants, const System& system) {
  std::vector<Verdict> verdicts;
  verdicts.reserve(variants.size());
  for (const VariantCandidate& candidate : variants) {
    const auto name = VariantName::parse(candidate.name);
    verdicts.push_back({candidate.name, judge(candidate, name, system), order_of(name)});
  }
  std::sort(verdicts.begin(), verdicts.end(), [](const Verdict& a, const Verdict& b) {
    return std::tuple(!a.problems.empty(), a.order, a.variant) < std::tuple(!b.problems.empty(), b.order, b.variant);
  });
  VariantChoice choice;
  for (const Verdict& verdict : verdicts) {
    if (!verdict.problems.empty()) {
      choice.trace.emplace_back(verdict.variant, verdict.problems.front().reason);
      continue;
    }
    choice.trace.emplace_back(verdict.variant, choice.chosen ? "compatible" : "compatible, preferred");
    choice.fitting.push_back(verdict.variant);
    if (!choice.chosen) choice.chosen = verdict.variant;
  }
  choice.nearest = nearest_of(verdicts);
  return choice;
}

VariantChoice choose_variant(const std::vector<std::string>& names, const System& system) {
  std::vector<VariantCandidate> candidates;
  candidates.reserve(names.size());
  for (const std::string& name : names) candidates.push_back({name});
  return choose_variant(candidates, system);
}

Error no_variant(const VariantChoice& choice, const std::string& repo, const std::string& revision) {
  const std::string nearest = choice.nearest_text();
  return Error(
      {.kind = ErrorKind::kNotFound,
       .wanted = cat("a build variant for this system in ", repo, " (revision: ", revision, ")"),
       .got = choice.trace.empty() ? "no variant at all"
                                   : cat("Cannot find a build variant for this system in ", repo,
                                         " (revision: ", revision, "):\n\n", choice.trace_lines(), "\n"),
       .next = nearest.empty() ? "request a build for this system from its publisher" : "nearest: " + nearest});
}

Backend detect_backend(const BackendFacts& facts) {
  if (!facts.torch) return facts.cudart ? Backend{BackendKind::kCuda, facts.cudart} : Backend{};
  if (facts.tpu) return {BackendKind::kTpu};
  if (facts.neuron) return {BackendKind::kNeuron};
  if (facts.cuda) return {BackendKind::kCuda, facts.cuda};
  if (facts.rocm) return {BackendKind::kRocm, facts.rocm};
  if (facts.metal) return {BackendKind::kMetal};
  if (facts.xpu) return {BackendKind::kXpu, facts.xpu};
  if (facts.cann) return {BackendKind::kCann, facts.cann};
  return {};
}

Backend select_backend(const Backend& detected, const std::string& requested) {
  if (requested.empty() || requested == detected.name()) return detected;
  if (requested == "cpu") return {};
  const std::string supported = detected.kind == BackendKind::kCpu ? "cpu"
                                : detected.name() < "cpu"          ? detected.name() + ", cpu"
                                                                   : "cpu, " + detected.name();
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = "one of the system's backends",
               .got = cat("Invalid backend '", shown(requested), "', system supported backends: ", supported),
               .next = "use one of these"});
}

std::string cpu_name(const std::string& machine, const std::string& os) {
  if (os == "darwin" && machine == "arm64") return "aarch64";
  if (os == "windows" && machine == "AMD64") return "x86_64";
  return machine;
}

}  // namespace hotswap
