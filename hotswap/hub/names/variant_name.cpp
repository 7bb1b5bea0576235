#include "hotswap/hub/names/variant_name.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

struct BackendRow {
  BackendKind kind;
  const char *name, *prefix;  // prefix: null where the name has no version
  size_t major_digits;
};

constexpr BackendRow kBackends[] = {
    {BackendKind::kCann, "cann", "cann", 1},      {BackendKind::kCpu, "cpu", nullptr, 0},
    {BackendKind::kCuda, "cuda", "cu", 2},        {BackendKind::kMetal, "metal", nullptr, 0},
    {BackendKind::kNeuron, "neuron", nullptr, 0}, {BackendKind::kRocm, "rocm", "rocm", 1},
    {BackendKind::kTpu, "tpu", nullptr, 0},       {BackendKind::kXpu, "xpu", "xpu", 4},
};

const BackendRow& row_of(BackendKind kind) {
  return *std::find_if(std::begin(kBackends), std::end(kBackends), [&](const BackendRow& r) { return r.kind == kind; });
}

// "128" with a major of two digits: 12.8.
std::optional<MajorMinor> digits(std::string_view text, size_t major_digits) {
  if (!all_digits(text) || text.size() < 2 || text.size() > 8) return std::nullopt;
  const size_t major = std::min(major_digits, text.size() - 1);
  return MajorMinor{std::stoi(std::string(text.substr(0, major))), std::stoi(std::string(text.substr(major)))};
}

bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || c == '_'; });
}

// Takes `prefix` and the version behind it off the front of `text`, up to '-'.
std::optional<MajorMinor> take_framework(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  const size_t end = text.find('-', prefix.size());
  if (end == text.npos) return std::nullopt;
  const auto version = digits(text.substr(prefix.size(), end - prefix.size()), 1);
  if (version) text.remove_prefix(end + 1);
  return version;
}

}  // namespace

std::string MajorMinor::str() const { return cat(major, ".", minor); }

std::optional<MajorMinor> MajorMinor::parse(std::string_view text) {
  int numbers[2] = {0, 0};
  for (int& number : numbers) {
    size_t n = 0;
    while (n < text.size() && n < 8 && is_digit(text[n])) ++n;
    if (n == 0) {
      if (&number == numbers) return std::nullopt;
      break;
    }
    number = std::stoi(std::string(text.substr(0, n)));
    text.remove_prefix(n);
    if (!text.starts_with('.')) break;
    text.remove_prefix(1);
  }
  return MajorMinor{numbers[0], numbers[1]};
}

std::string Backend::name() const { return row_of(kind).name; }

std::string Backend::text() const {
  const BackendRow& row = row_of(kind);
  if (row.prefix == nullptr || !version) return row.name;
  return cat(row.prefix, version->major, version->minor);
}

std::optional<Backend> Backend::parse(std::string_view text) {
  for (const BackendRow& row : kBackends) {
    if (row.prefix == nullptr) {
      if (text == row.name) return Backend{row.kind};
    } else if (text.starts_with(row.prefix)) {
      if (auto version = digits(text.substr(std::string_view(row.prefix).size()), row.major_digits)) {
        return Backend{row.kind, version};
      }
    }
  }
  return std::nullopt;
}

std::optional<BackendKind> Backend::kind_named(std::string_view name) {
  for (const BackendRow& row : kBackends) {
    if (name == row.name) return row.kind;
  }
  return std::nullopt;
}

std::string VariantName::str() const {
  std::string text;
  switch (framework) {
    case Framework::kNoarch:
      return "torch-" + noarch;
    case Framework::kTorchStableAbi:
      text = "torch-stable-abi";
      break;
    case Framework::kTorch:
      text = "torch";
      break;
    case Framework::kTvmFfi:
      text = "tvm-ffi";
      break;
  }
  text += cat(version.major, version.minor);
  if (cxx11_abi) text += *cxx11_abi ? "-cxx11" : "-cxx98";
  return cat(text, "-", backend.text(), "-", cpu, "-", os);
}

std::optional<VariantName> VariantName::parse(std::string_view text) {
  if (text.size() > 128) return std::nullopt;
  VariantName v;
  std::string_view rest = text;
  if (const auto abi = take_framework(rest, "torch-stable-abi")) {
    v.framework = Framework::kTorchStableAbi;
    v.version = *abi;
  } else if (const auto tvm = take_framework(rest, "tvm-ffi")) {
    v.framework = Framework::kTvmFfi;
    v.version = *tvm;
  } else if (const auto torch = take_framework(rest, "torch")) {
    v.framework = Framework::kTorch;
    v.version = *torch;
    for (const char* tag : {"cxx11-", "cxx98-"}) {
      if (!rest.starts_with(tag)) continue;
      v.cxx11_abi = tag[3] == '1';
      rest.remove_prefix(6);
      break;
    }
  } else {
    if (!rest.starts_with("torch-") || rest.starts_with("torch-stable-abi")) return std::nullopt;
    v.noarch = rest.substr(6);
    if (std::any_of(v.noarch.begin(), v.noarch.end(),
                    [](char c) {
                      return c != '-' && !is_word({&c, 1});
                    }) ||
        v.noarch.empty()) {
      return std::nullopt;
    }
    return v;
  }
  const auto parts = split(rest, '-');
  if (parts.size() != 3 || !is_word(parts[1]) || !is_word(parts[2])) return std::nullopt;
  const auto backend = Backend::parse(parts[0]);
  if (!backend) return std::nullopt;
  v.backend = *backend;
  v.cpu = parts[1];
  v.os = parts[2];
  // "cu0128" and "torch2011" have a second spelling, and only one of the two can be a folder's.
  if (v.str() != text) return std::nullopt;
  return v;
}

}  // namespace hotswap
