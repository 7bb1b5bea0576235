#include "hotswap/kernelize/variant.h"

#include <algorithm>
#include <regex>
#include <tuple>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

struct Toolkit {  // cu128 -> {"cu", 12, 8}
  std::string name;
  int major = 0, minor = 0;
};

std::optional<Toolkit> toolkit(const std::string& backend) {
  static const std::regex form("(cu|rocm)([0-9]{1,4})([0-9])");
  std::smatch m;
  if (!std::regex_match(backend, m, form)) return std::nullopt;
  return Toolkit{m[1], std::stoi(m[2]), std::stoi(m[3])};
}

struct Verdict {
  std::string variant, reason;  // no reason: compatible
  std::tuple<int, int, int> order;
};

std::string judge_backend(const std::string& wanted, const VariantHost& host) {
  const auto variant = toolkit(wanted), system = toolkit(host.backend);
  if (variant && system && variant->name == "cu" && system->name == "cu") {
    if (variant->major == system->major && variant->minor <= system->minor) return "";
    return cat("CUDA version (", wanted, ") is not compatible with system CUDA version (", host.backend, ")");
  }
  if (wanted == host.backend) return "";
  return cat("backend (", wanted, ") does not match selected backend (", host.backend, ")");
}

Verdict judge(const std::string& name, const VariantHost& host) {
  static const std::regex form(
      "torch-stable-abi([0-9])([0-9]{1,3})-([a-z0-9]+)-(x86_64|aarch64)-(linux|darwin|windows)");
  std::smatch m;
  if (!std::regex_match(name, m, form)) {
    return {name, "is no torch stable-ABI variant, the only kind that a host without Python loads", {}};
  }
  const int major = std::stoi(m[1]), minor = std::stoi(m[2]);
  const auto backend = toolkit(m[3]);
  Verdict verdict{name, "", {-major, -minor, backend ? -backend->minor : 0}};
  if (m[4] != host.cpu) {
    verdict.reason = cat("CPU (", m[4].str(), ") does not match system CPU (", host.cpu, ")");
  } else if (m[5] != host.os) {
    verdict.reason = cat("OS (", m[5].str(), ") does not match system OS (", host.os, ")");
  } else if (std::tie(major, minor) > std::tie(host.torch_major, host.torch_minor)) {
    verdict.reason = cat("Torch stable ABI version (", major, ".", minor,
                         ") is too new for environment Torch version (", host.torch_major, ".", host.torch_minor, ")");
  } else {
    verdict.reason = judge_backend(m[3], host);
  }
  return verdict;
}

}  // namespace

std::string VariantChoice::trace_text() const {
  std::vector<std::string> lines;
  lines.reserve(trace.size());
  for (const auto& [variant, reason] : trace) lines.push_back(cat(variant, ": ", reason));
  return lines.empty() ? "it has no built variant at all" : join(lines, "; ");
}

VariantChoice choose_variant(std::vector<std::string> variants, const VariantHost& host) {
  std::vector<Verdict> verdicts;
  verdicts.reserve(variants.size());
  for (const auto& name : variants) verdicts.push_back(judge(name, host));
  std::sort(verdicts.begin(), verdicts.end(), [](const Verdict& a, const Verdict& b) {
    return std::tuple(!a.reason.empty(), a.order, a.variant) < std::tuple(!b.reason.empty(), b.order, b.variant);
  });
  VariantChoice choice;
  for (const Verdict& verdict : verdicts) {
    const bool fits = verdict.reason.empty();
    const char* fit = choice.chosen ? "compatible" : "compatible, preferred";
    choice.trace.emplace_back(verdict.variant, fits ? fit : verdict.reason);
    if (fits && !choice.chosen) choice.chosen = verdict.variant;
  }
  return choice;
}

}  // namespace hotswap
