// What torchrun, or another launcher, sets in the environment of a rank: a process that trains a model with others.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace hotswap {

struct RankEnvironment {
  int rank = 0, size = 1;
  int local_rank = 0;  // on its machine: the index of its GPU
  std::string master_address;
  int master_port = 0;
  bool agent_has_store = false;           // torchrun serves the store; else rank 0 does
  int restarts = 0;                       // of all ranks, by the launcher
  std::filesystem::path error_file = {};  // empty: none
  bool is_first() const { return rank == 0; }
};

// None where no launcher set RANK, WORLD_SIZE or LOCAL_RANK. Error that lists what is missing or is no such value.
std::optional<RankEnvironment> rank_environment();

// Into TORCHELASTIC_ERROR_FILE, from which torchrun prints its summary: the earliest one of all ranks is the cause.
// Nothing where the variable is not set, or a file is there already.
void write_rank_error(const std::string& message);

}  // namespace hotswap
