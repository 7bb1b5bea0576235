// Folders of checkpoints: checkpoint-<step> in the output folder, whole or not there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

namespace hotswap {

std::filesystem::path checkpoint_folder(const std::filesystem::path& output, int64_t step);

// `write` fills a folder of another name, which is synced and renamed when it returns: a process that is killed at any
// moment leaves the checkpoint before it whole, and no half one under a checkpoint's name.
void write_checkpoint(const std::filesystem::path& target,
                      const std::function<void(const std::filesystem::path& folder)>& write);

// The steps of the checkpoints in a folder, ascending.
std::vector<int64_t> checkpoint_steps(const std::filesystem::path& output);

// Removes what a process that was killed while it wrote left under temporary names: checkpoint-*.<8 hex>.incomplete and
// the like, and files *.<8 hex>.tmp.
void remove_leftovers(const std::filesystem::path& output);

// Keeps `limit` of them: the newest, the best one (empty: none), then those before the newest.
void drop_old_checkpoints(const std::filesystem::path& output, int64_t limit, const std::filesystem::path& best);

}  // namespace hotswap
