#include "hotswap/hub/net/hub_error.h"

namespace hotswap {

ErrorKind kind_of(const HubErrorFacts& facts) {
  switch (facts.reason) {
    case HubReason::kRepoNotFound:
    case HubReason::kRevisionNotFound:
    case HubReason::kEntryNotFound:
      return ErrorKind::kNotFound;
    case HubReason::kGatedRepo:
    case HubReason::kUnauthorized:
    case HubReason::kNotAllowed:
      return ErrorKind::kInvalidArgument;  // the token, or a setting, must change first
    case HubReason::kBadAnswer:
      return ErrorKind::kCorrupt;
    case HubReason::kDisabledRepo:
    case HubReason::kRateLimited:
    case HubReason::kOffline:
    case HubReason::kConnection:
      return ErrorKind::kUnavailable;
    case HubReason::kHttp:
      break;
  }
  return facts.status == 404 ? ErrorKind::kNotFound : ErrorKind::kUnavailable;
}

}  // namespace hotswap
