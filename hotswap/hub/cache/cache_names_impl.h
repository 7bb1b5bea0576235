// How the names of a cache's files read back; for cache_management.h's own sources.
#pragma once

#include <filesystem>
#include <string>

namespace hotswap {

// "<blob>.<8 hex>.incomplete", "<blob>.<8 hex>.pieces.incomplete", "<blob>.<8 hex>.tmp" and, of older clients,
// "<blob>.incomplete" -> "<blob>"; empty for other names.
std::string blob_of_unfinished(const std::string& name);
// The blob that a snapshot's link shows; empty where it is no link, or leads anywhere but into the repository's blobs.
std::string blob_of_link(const std::filesystem::path& link, const std::filesystem::path& repo_folder);

}  // namespace hotswap
