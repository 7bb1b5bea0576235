#include "hotswap/kernelize/mode.h"

#include <cctype>
#include <utility>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

constexpr std::pair<Mode, const char*> kNames[] = {{Mode::INFERENCE, "INFERENCE"},
                                                   {Mode::TRAINING, "TRAINING"},
                                                   {Mode::TORCH_COMPILE, "TORCH_COMPILE"},
                                                   {Mode::FALLBACK, "FALLBACK"}};

Mode parse_one(const std::string& name, std::string_view all) {
  if (name == "COMPILE") return Mode::TORCH_COMPILE;
  for (const auto& [mode, known] : kNames) {
    if (name == known) return mode;
  }
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "modes out of INFERENCE, TRAINING, TORCH_COMPILE, FALLBACK, joined by '|'",
               .got = cat("'", name, "' in '", all, "'"),
               .next = "correct the mode"});
}

}  // namespace

Mode operator|(Mode a, Mode b) {
  const Mode both(a.bits_ | b.bits_);
  if (both.has(Mode::INFERENCE) && both.has(Mode::TRAINING)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a mode with either INFERENCE or TRAINING, which are mutually exclusive",
                 .got = cat(a.str(), " | ", b.str()),
                 .next = "choose one of them"});
  }
  if (both.has(Mode::FALLBACK) && both != Mode::FALLBACK) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "Mode FALLBACK alone: it cannot be combined with other modes",
                 .got = cat(a.str(), " | ", b.str()),
                 .next = "drop FALLBACK, or the others"});
  }
  return both;
}

std::string Mode::str() const {
  std::vector<std::string> parts;
  for (const auto& [mode, name] : kNames) {
    if (has(mode)) parts.emplace_back(name);
  }
  return join(parts, "|");
}

Mode Mode::parse(std::string_view s) {
  Mode result(0);
  std::string name;
  auto take = [&] {
    const Mode one = parse_one(name, s);
    result = result.bits_ == 0 ? one : result | one;
    name.clear();
  };
  for (const char c : s) {
    if (c == '|' || c == ',') {
      take();
    } else if (c != ' ') {
      name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
  }
  take();
  return result;
}

Mode Mode::of_training(bool training) { return training ? TRAINING : INFERENCE; }

std::vector<Mode> modes_that_serve(Mode requested) {
  const Mode inference = Mode::INFERENCE, training = Mode::TRAINING, compile = Mode::TORCH_COMPILE;
  if (requested == Mode::FALLBACK) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a mode with INFERENCE or TRAINING",
                 .got = "FALLBACK, which can only be used to register kernels in a mapping",
                 .next = "pass INFERENCE or TRAINING; FALLBACK kernels serve both"});
  }
  if (!requested.has(inference) && !requested.has(training)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a mode with INFERENCE or TRAINING",
                 .got = requested.str(),
                 .next = "add one of them"});
  }
  // A kernel fit for training or for capture is fit for less, never the other way round.
  if (requested == inference) {
    return {inference, inference | compile, training, training | compile, Mode::FALLBACK};
  }
  if (requested == training) return {training, training | compile, Mode::FALLBACK};
  if (requested == (inference | compile)) return {inference | compile, training | compile, Mode::FALLBACK};
  return {training | compile, Mode::FALLBACK};
}

}  // namespace hotswap
