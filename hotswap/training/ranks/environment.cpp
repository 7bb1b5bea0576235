#include "hotswap/training/ranks/environment.h"

#include <charconv>
#include <ctime>
#include <nlohmann/json.hpp>
#include <vector>

#include "hotswap/base/env.h"
#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/log.h"

namespace hotswap {
namespace {

constexpr EnvVar kNeeded[] = {EnvVar::kRank, EnvVar::kWorldSize, EnvVar::kLocalRank, EnvVar::kMasterAddress,
                              EnvVar::kMasterPort};

int number_in(EnvVar variable, int least, int greatest) {
  const std::string text = env(variable).value_or("0");
  int value = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec == std::errc() && read.ptr == end && value >= least && value <= greatest) return value;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(env_name(variable), " from ", least, " to ", greatest),
               .got = cat("'", text, "'"),
               .next = "start the ranks by torchrun, which sets it"});
}

void check_none_missing() {
  std::vector<std::string> missing, set;
  for (const EnvVar variable : kNeeded) (env(variable) ? set : missing).emplace_back(env_name(variable));
  if (missing.empty()) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "all variables of a rank in the environment, or none of RANK, WORLD_SIZE and LOCAL_RANK",
               .got = cat(join(set), " without ", join(missing)),
               .next = "start the ranks by torchrun, set what is missing, or unset these to train in one process"});
}

}  // namespace

std::optional<RankEnvironment> rank_environment() {
  if (!env(EnvVar::kRank) && !env(EnvVar::kWorldSize) && !env(EnvVar::kLocalRank)) return std::nullopt;
  check_none_missing();
  constexpr int kMaxRanks = 1 << 20;
  RankEnvironment found;
  found.size = number_in(EnvVar::kWorldSize, 1, kMaxRanks);
  found.rank = number_in(EnvVar::kRank, 0, found.size - 1);
  found.local_rank = number_in(EnvVar::kLocalRank, 0, found.size - 1);
  found.master_address = *env(EnvVar::kMasterAddress);
  found.master_port = number_in(EnvVar::kMasterPort, 1, 65535);
  found.agent_has_store = env_flag(EnvVar::kAgentStore, false);
  found.restarts = number_in(EnvVar::kRestartCount, 0, kMaxRanks);
  found.error_file = env(EnvVar::kErrorFile).value_or("");
  return found;
}

void write_rank_error(const std::string& message) {
  const auto file = env(EnvVar::kErrorFile);
  if (!file || std::filesystem::exists(*file)) return;
  const nlohmann::json json = {{"message", message}, {"timestamp", static_cast<int64_t>(std::time(nullptr))}};
  try {
    write_file(*file, json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } catch (const std::exception& error) {
    log_warning("the error of this rank is not in ", *file, ": ", error.what());
  }
}

}  // namespace hotswap
