// Proofs that something was published: entries of a transparency log (Rekor), certificate timestamps (SCT, RFC 6962)
// and timestamps of a clock (RFC 3161). Every function throws an Error that says what is wrong, or returns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/hub/sign/trust_root.h"

namespace hotswap {

struct LogEntry {
  std::string log_id;           // raw bytes
  int64_t index = 0;            // in the whole log
  int64_t integrated_time = 0;  // seconds since 1970; 0: none
  std::string kind, version;    // "hashedrekord", "0.0.1"
  std::string body;             // what was logged, JSON
  std::string promise;          // the log's signature on body, time and index (SET); empty: none

  // The proof that body is a leaf of the tree that the checkpoint signs.
  int64_t leaf = 0, tree_size = 0;
  std::string root_hash, checkpoint;  // checkpoint: a signed note; empty: none
  std::vector<std::string> hashes;    // from the leaf's sibling upwards

  static LogEntry parse(const Json& json);
};

// RFC 6962: hashes lead from the body's leaf to the root of a tree of that size.
void verify_inclusion(const LogEntry& entry);
// The checkpoint is signed by the log, and is of the same tree.
void verify_checkpoint(const LogEntry& entry, const LogKey& log);
void verify_promise(const LogEntry& entry, const LogKey& log);

// One embedded certificate timestamp of a log in `logs`, signed for this leaf and its issuer.
void verify_certificate_timestamp(const X509* leaf, const X509* issuer, const std::vector<LogKey>& logs);

// When `token` (a TimeStampResp) says that `message` was there, by one of the clocks. None: by none of them.
std::optional<int64_t> verify_clock(const std::string& token, const std::string& message,
                                    const std::vector<Authority>& clocks);

}  // namespace hotswap
