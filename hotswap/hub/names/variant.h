// Which built variant of a package a system takes. Pure: what the system is comes in; a choice, the reason for every
// variant, and what would make the nearest of the others fit come out. Nothing of the hardware is asked here.
//
//   const VariantChoice choice = choose_variant(names, {.torch = {{2, 11}}, .backend = *Backend::parse("cu130")});
//   if (!choice.chosen) throw no_variant(choice, "org/repo", "v1");
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/variant_name.h"

namespace hotswap {

struct System {
  std::optional<MajorMinor> torch = {};       // none: there is no torch
  std::optional<bool> cxx11_abi = {};         // torch's, on Linux
  std::optional<MajorMinor> tvm_ffi = {};     // none: there is no tvm-ffi
  Backend backend = {};                       // of torch's build, not of the driver
  std::string cpu = "x86_64";                 // x86_64, aarch64
  std::string os = "linux";                   // linux, darwin, windows
  std::optional<MajorMinor> macos = {};       // on darwin
  std::optional<MajorMinor> capability = {};  // CUDA's compute capability; none: there is no GPU, or it does not matter
  std::string gfx = {};                       // ROCm's "gfx942"; empty like capability
  bool free_threaded = false;                 // Python without a GIL before 3.15: it has no stable ABI
  bool no_python = false;  // the host has none: only compiled torch variants load there, of whichever of its ABIs
};

struct VariantCandidate {
  std::string name;
  std::vector<std::string> archs = {};  // metadata.json's backend.archs; empty: not known, so not judged
};

struct NearMiss {
  std::string variant;
  std::vector<std::string> needs;  // "torch 2.12 or newer"
  int distance = 0;                // the higher, the more would have to change
};

struct VariantChoice {
  std::optional<std::string> chosen;
  std::vector<std::string> fitting;                        // best first; chosen is the first of them
  std::vector<std::pair<std::string, std::string>> trace;  // variant, "compatible, preferred" or why not; best first
  std::vector<NearMiss> nearest;                           // of those that do not fit, nearest first

  std::string trace_text() const;    // "a: reason; b: reason"
  std::string trace_lines() const;   // one a line, as Python's kernels prints it
  std::string nearest_text() const;  // "torch210-cpu-x86_64-linux needs torch 2.10"; at most three
};

VariantChoice choose_variant(const std::vector<VariantCandidate>& variants, const System& system);
VariantChoice choose_variant(const std::vector<std::string>& names, const System& system);

// "Cannot find a build variant for this system in org/repo (revision: v1)", the trace, and what would help.
Error no_variant(const VariantChoice& choice, const std::string& repo, const std::string& revision);

// Does code built for these runs on that GPU? "9.0" runs on 9.x from 9.0 on, "9.0a" on 9.0 alone, "10.0f" as "10.0",
// "+PTX" on everything newer too; "gfx942" on gfx942.
bool arch_runs_on(const std::string& arch, const MajorMinor& capability);

// What a process knows of its torch and toolkits, in the words of the reference's rules.
struct BackendFacts {
  bool torch = true;
  bool tpu = false, neuron = false;
  std::optional<MajorMinor> cuda, rocm;  // that torch was built with
  bool metal = false;                    // torch's mps is available
  std::optional<MajorMinor> xpu, cann;
  std::optional<MajorMinor> cudart;  // the CUDA runtime on the library path; counts where there is no torch
};
Backend detect_backend(const BackendFacts& facts);
// What a caller may ask for by name: cpu, or the one detected. Error that lists these.
Backend select_backend(const Backend& detected, const std::string& requested);
// A machine's own word for its CPU: arm64 is aarch64 on darwin, AMD64 is x86_64 on windows.
std::string cpu_name(const std::string& machine, const std::string& os);

}  // namespace hotswap
