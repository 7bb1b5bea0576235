// Leveled log on stderr. HOTSWAP_LOG_LEVEL = debug, info, warning (default), error.
//   log_info("bound ", name, " to ", package);
#pragma once

#include <string>

#include "hotswap/base/error.h"

namespace hotswap {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

LogLevel log_level();
void set_log_level(LogLevel level);
void log_line(LogLevel level, const std::string& text);

template <typename... Parts>
void log_debug(const Parts&... parts) {
  if (log_level() <= LogLevel::kDebug) log_line(LogLevel::kDebug, cat(parts...));
}
template <typename... Parts>
void log_info(const Parts&... parts) {
  if (log_level() <= LogLevel::kInfo) log_line(LogLevel::kInfo, cat(parts...));
}
template <typename... Parts>
void log_warning(const Parts&... parts) {
  if (log_level() <= LogLevel::kWarning) log_line(LogLevel::kWarning, cat(parts...));
}

}  // namespace hotswap
