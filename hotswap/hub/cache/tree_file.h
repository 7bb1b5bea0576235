// A commit's list of files as it lies in the cache, in two forms.
//
// Python's, for all repositories but kernels:
//   {"format_version": 1, "files": {"a/b": {"size": 7, "blob_id": "0b", "lfs_sha256": "5a", "lfs_size": 7}}}
// Ours, for kernels, whose list is read at each resolve and names every file of every variant: lines are read in a
// small part of the time that JSON takes. The first has the number of the others, which are, '-' for what is empty:
//   files 1
//   7 0b 5a 7 - a/b                        size, git's SHA-1, LFS' SHA-256 and size, Xet's hash, path to the line's end
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hotswap/hub/names/repo.h"

namespace hotswap {

// Sorted by path, folders left out.
std::string tree_as_json(const std::vector<TreeEntry>& entries);  // byte for byte as Python writes it
std::string tree_as_lines(const std::vector<TreeEntry>& entries);

// Every path and hash is one that may become a path on this disk. Error where the text is not whole, or of another
// form.
std::vector<TreeEntry> parse_tree_json(std::string_view text);
std::vector<TreeEntry> parse_tree_lines(std::string_view text);

}  // namespace hotswap
