#include "hotswap/base/log.h"

#include <atomic>
#include <cstdio>

#include "hotswap/base/env.h"

namespace hotswap {
namespace {

LogLevel level_from_env() {
  const std::string text = env(EnvVar::kLogLevel).value_or("warning");
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "warning") return LogLevel::kWarning;
  if (text == "error") return LogLevel::kError;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "HOTSWAP_LOG_LEVEL to be debug, info, warning or error",
               .got = "'" + text + "'",
               .next = "correct it or unset it"});
}

std::atomic<LogLevel>& level() {
  static std::atomic<LogLevel> value{level_from_env()};
  return value;
}

}  // namespace

LogLevel log_level() { return level(); }
void set_log_level(LogLevel value) { level() = value; }

void log_line(LogLevel level, const std::string& text) {
  static constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  std::fprintf(stderr, "hotswap %s: %s\n", kNames[static_cast<int>(level)], text.c_str());
}

}  // namespace hotswap
