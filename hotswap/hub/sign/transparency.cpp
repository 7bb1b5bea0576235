#include "hotswap/hub/sign/transparency.h"

#include <algorithm>
#include <bit>

#include "hotswap/base/error.h"
#include "hotswap/base/sha256.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

[[noreturn]] void refuse_entry(const std::string& wanted, const std::string& got) {
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = wanted,
               .got = got,
               .next = "do not trust what it signs; download it again"});
}

std::string entry_bytes(const Json& json, const char* key) {
  const auto text = json.at<std::string>(key);
  if (auto bytes = from_base64(text)) return *bytes;
  refuse_entry(cat("base64 at ", json.child(key).where()), "'" + shown(text) + "'");
}

// Whole numbers, which protobuf's JSON writes as texts.
int64_t number_at(const Json& json, const char* key) {
  const Json value = json.child(key);
  if (!value.is_string()) return value.as<int64_t>();
  const auto text = value.as<std::string>();
  if (!all_digits(text) || text.size() > 18) refuse_entry(cat("a number at ", value.where()), "'" + shown(text) + "'");
  return std::stoll(text);
}

std::string hash_children(const std::string& left, const std::string& right) {
  return sha256_of("\x01" + left + right);
}

std::string hex(std::string_view bytes) {
  return to_hex({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

}  // namespace

LogEntry LogEntry::parse(const Json& json) {
  LogEntry entry;
  entry.log_id = entry_bytes(json.child("logId"), "keyId");
  entry.index = json.has("logIndex") ? number_at(json, "logIndex") : 0;  // protobuf's JSON leaves zeros out
  entry.integrated_time = json.has("integratedTime") ? number_at(json, "integratedTime") : 0;
  entry.kind = json.child("kindVersion").at<std::string>("kind");
  entry.version = json.child("kindVersion").at<std::string>("version");
  entry.body = entry_bytes(json, "canonicalizedBody");
  if (const auto promise = json.find("inclusionPromise")) entry.promise = entry_bytes(*promise, "signedEntryTimestamp");
  const Json proof = json.child("inclusionProof");
  entry.leaf = proof.has("logIndex") ? number_at(proof, "logIndex") : 0;
  entry.tree_size = number_at(proof, "treeSize");
  entry.root_hash = entry_bytes(proof, "rootHash");
  if (const auto hashes = proof.find("hashes")) {
    for (const Json& hash : hashes->elements()) {
      const auto bytes = from_base64(hash.as<std::string>());
      if (!bytes || bytes->size() != 32) refuse_entry(cat("the base64 of a hash at ", hash.where()), "something else");
      entry.hashes.push_back(*bytes);
    }
  }
  if (const auto checkpoint = proof.find("checkpoint")) entry.checkpoint = checkpoint->at<std::string>("envelope");
  return entry;
}

void verify_inclusion(const LogEntry& entry) {
  if (entry.leaf < 0 || entry.tree_size <= entry.leaf) {
    refuse_entry("a leaf inside its log's tree", cat("leaf ", entry.leaf, " of ", entry.tree_size));
  }
  const auto leaf = static_cast<uint64_t>(entry.leaf), last = static_cast<uint64_t>(entry.tree_size) - 1;
  // Up to where the paths of this leaf and of the last one meet there is a sibling on each level; above, the path runs
  // along the tree's right border and has siblings only where it is a right child.
  const auto inner = static_cast<size_t>(std::bit_width(leaf ^ last));
  const auto border = static_cast<size_t>(std::popcount(inner < 64 ? leaf >> inner : 0));
  if (entry.hashes.size() != inner + border) {
    refuse_entry(cat("an inclusion proof of ", inner + border, " hashes"), cat(entry.hashes.size()));
  }
  std::string hash = sha256_of(std::string(1, '\0') + entry.body);
  for (size_t i = 0; i < entry.hashes.size(); ++i) {
    const bool right = i >= inner || (leaf >> i & 1) != 0;
    hash = right ? hash_children(entry.hashes[i], hash) : hash_children(hash, entry.hashes[i]);
  }
  if (hash != entry.root_hash) {
    refuse_entry(cat("an inclusion proof that leads to the root ", hex(entry.root_hash)), hex(hash));
  }
}

void verify_checkpoint(const LogEntry& entry, const LogKey& log) {
  // A signed note: lines, an empty line, and signatures as "— <name> <base64 of 4 bytes of the key's id and the rest>".
  const std::string& note = entry.checkpoint;
  const size_t blank = note.find("\n\n");
  if (note.size() > (1 << 20) || blank == note.npos || note.find("\n\n", blank + 1) != note.npos ||
      !note.ends_with('\n')) {
    refuse_entry("a checkpoint as a signed note", "'" + shown(note) + "'");
  }
  const std::string text = note.substr(0, blank + 1);
  bool is_signed = false;
  for (const std::string& line : split(std::string_view(note).substr(blank + 2), '\n')) {
    constexpr std::string_view kDash = "\u2014 ";
    const size_t space = line.rfind(' ');
    if (!line.starts_with(kDash) || space < kDash.size()) continue;
    const auto bytes = from_base64(std::string_view(line).substr(space + 1));
    if (!bytes || bytes->size() < 5 || bytes->compare(0, 4, log.id, 0, 4) != 0) continue;
    if (!verify_bytes(log.key.get(), text, std::string_view(*bytes).substr(4))) {
      refuse_entry("a checkpoint signed by its log", "a signature of something else");
    }
    is_signed = true;
  }
  if (!is_signed) refuse_entry("a checkpoint signed by its log", "no signature of the log " + hex(log.id));
  const auto lines = split(text, '\n');  // origin, size, root hash, whatever else
  const auto root = lines.size() < 4 ? std::nullopt : from_base64(lines[2]);
  if (!root || *root != entry.root_hash || lines[1] != cat(entry.tree_size)) {
    refuse_entry(cat("a checkpoint of a tree of ", entry.tree_size, " with the root ", hex(entry.root_hash)),
                 "one of another tree");
  }
}

void verify_promise(const LogEntry& entry, const LogKey& log) {
  // Canonical JSON (RFC 8785) of these four; base64 and hex need no escapes.
  const std::string promised = cat(R"({"body":")", base64(entry.body), R"(","integratedTime":)", entry.integrated_time,
                                   R"(,"logID":")", hex(entry.log_id), R"(","logIndex":)", entry.index, "}");
  if (!verify_bytes(log.key.get(), promised, entry.promise)) {
    refuse_entry("an entry whose time the log has signed", "a signature of something else");
  }
}

}  // namespace hotswap
