// Every environment variable that hotswap reads, in one table. Nothing else calls getenv.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace hotswap {

enum class EnvVar {
  kLogLevel,
  kPackages,
  kGrammar,
  kUseHubKernels,
  kDisableKernelMapping,
  kLocalKernels,
  kHubOffline,
  kHfHome,
  kHfHubCache,
  kHfEndpoint,
  kHfToken,
  kKernelsCache,
  kHubTtl,
  kTrustRoot,
  kProject,
  kHfTokenPath,
  kHuggingFaceHubToken,
  kHuggingFaceHubCache,
  kHfDisableImplicitToken,
  kHfDisableSymlinks,
  kHfDisableProgressBars,
  kHfEtagTimeout,
  kHfDownloadTimeout,
  kHfUserAgentOrigin,
  kTransformersOffline,
  kSslCertFile,
  kHttpProxy,
  kHttpProxyUpper,
  kRequestMethod,
  kXdgCacheHome,
  kHome,
  kNoColor,
  kCxx,
  kIsa,
  kRank,
  kWorldSize,
  kLocalRank,
  kMasterAddress,
  kMasterPort,
  kAgentStore,
  kRestartCount,
  kErrorFile,
  kRequireCuda,
  kTestDevice,
  kTestPython,
  kTestSource,
  kTestSeed,
};

struct EnvRow {
  EnvVar variable;
  const char* name;
  const char* meaning;
};

std::span<const EnvRow> env_table();  // what `hotswap env` prints
const char* env_name(EnvVar variable);
std::optional<std::string> env(EnvVar variable);  // none when unset or empty
bool env_is_set(EnvVar variable);                 // also to nothing

// ~, ~user, $NAME and ${NAME} as Python's expandvars(expanduser(text)) replace them; unknown ones stay.
std::string expand_env(const std::string& text);

// 1, ON, YES, TRUE in any case are true and 0, OFF, NO, FALSE false, as Hugging Face's libraries read them; anything
// else is an Error, where they would take it for false in silence.
bool env_flag(EnvVar variable, bool otherwise);

}  // namespace hotswap
