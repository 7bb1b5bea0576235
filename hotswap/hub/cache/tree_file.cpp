#include "hotswap/hub/cache/tree_file.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "hotswap/base/error.h"
#include "hotswap/base/json_fault.h"

namespace hotswap {
namespace {

constexpr int kFormat = 1;  // of Python's

std::map<std::string, const TreeEntry*> sorted_files(const std::vector<TreeEntry>& entries) {
  std::map<std::string, const TreeEntry*> sorted;
  for (const TreeEntry& entry : entries) {
    if (!entry.folder) sorted[entry.path] = &entry;
  }
  return sorted;
}

Error not_whole(std::string_view wanted, std::string_view got) {
  return Error({.kind = ErrorKind::kCorrupt,
                .wanted = cat("a list of files with ", wanted),
                .got = cat("'", got.substr(0, 100), "'"),
                .next = "remove the list: the next use requests it from the Hub again"});
}

// What stands before `end`, which must be there; `text` goes on behind it.
std::string_view take(std::string_view& text, char end) {
  const size_t at = text.find(end);
  if (at == text.npos) throw not_whole("whole lines", text);
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at + 1);
  return part;
}

int64_t number(std::string_view text) {
  int64_t value = -1;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < 0) throw not_whole("sizes", text);
  return value;
}

std::string word(std::string_view text) { return text == "-" ? "" : std::string(text); }

TreeEntry checked(TreeEntry entry) {
  check_relative_path(entry.path, "file");
  check_relative_path(entry.etag(), "blob");
  if (std::max(entry.size, entry.lfs_size) > kMaxFileBytes) throw not_whole("sizes", cat(entry.size));
  return entry;
}

}  // namespace

std::string tree_as_json(const std::vector<TreeEntry>& entries) {
  const auto quoted = [](const std::string& text) { return nlohmann::json(text).dump(-1, ' ', true); };
  const auto sorted = sorted_files(entries);
  std::string text = cat("{\n \"format_version\": ", kFormat, ",\n \"files\": {");  // json.dump(indent=1)
  const char* before = "\n";
  for (const auto& [path, entry] : sorted) {
    text +=
        cat(before, "  ", quoted(path), ": {\n   \"size\": ", entry->size, ",\n   \"blob_id\": ", quoted(entry->oid));
    if (!entry->sha256.empty()) {
      text += cat(",\n   \"lfs_sha256\": ", quoted(entry->sha256), ",\n   \"lfs_size\": ", entry->lfs_size);
    }
    if (!entry->xet_hash.empty()) text += ",\n   \"xet_hash\": " + quoted(entry->xet_hash);
    text += "\n  }";
    before = ",\n";
  }
  return text + (sorted.empty() ? "}\n}" : "\n }\n}");
}

std::vector<TreeEntry> parse_tree_json(std::string_view text) try {
  // Not our Json: its ordered objects take quadratic time, and a tree may have a hundred thousand keys.
  const auto tree = nlohmann::json::parse(text);
  if (tree.at("format_version") != kFormat) throw not_whole("format_version 1", tree["format_version"].dump());
  std::vector<TreeEntry> entries;
  for (const auto& [path, info] : tree.at("files").items()) {
    TreeEntry entry{.path = path, .size = info.at("size").get<int64_t>(), .oid = info.at("blob_id").get<std::string>()};
    if (info.contains("lfs_sha256")) entry.sha256 = info["lfs_sha256"].get<std::string>();
    if (info.contains("lfs_size")) entry.lfs_size = info["lfs_size"].get<int64_t>();
    if (info.contains("xet_hash")) entry.xet_hash = info["xet_hash"].get<std::string>();
    entries.push_back(checked(std::move(entry)));
  }
  return entries;
} catch (const nlohmann::json::exception&) {
  const std::string fault = json_fault(text);
  throw not_whole("its files", fault.empty() ? "entries of another form" : fault);
}

std::string tree_as_lines(const std::vector<TreeEntry>& entries) {
  const auto sorted = sorted_files(entries);
  const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : text; };
  std::string text = cat("files ", sorted.size(), "\n");
  for (const auto& [path, entry] : sorted) {
    text += cat(entry->size, ' ', or_dash(entry->oid), ' ', or_dash(entry->sha256), ' ', entry->lfs_size, ' ',
                or_dash(entry->xet_hash), ' ', path, '\n');
  }
  return text;
}

std::vector<TreeEntry> parse_tree_lines(std::string_view text) {
  std::string_view first = take(text, '\n');
  if (take(first, ' ') != "files") throw not_whole("their number first", first);
  const int64_t count = number(first);
  std::vector<TreeEntry> entries;
  while (!text.empty()) {
    std::string_view line = take(text, '\n');
    TreeEntry entry;
    entry.size = number(take(line, ' '));
    entry.oid = word(take(line, ' '));
    entry.sha256 = word(take(line, ' '));
    entry.lfs_size = number(take(line, ' '));
    entry.xet_hash = word(take(line, ' '));
    entry.path = line;
    entries.push_back(checked(std::move(entry)));
  }
  if (static_cast<int64_t>(entries.size()) != count) throw not_whole(cat(count, " files"), cat(entries.size()));
  return entries;
}

}  // namespace hotswap
