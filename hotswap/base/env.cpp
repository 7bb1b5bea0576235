#include "hotswap/base/env.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

constexpr EnvRow kTable[] = {
    {EnvVar::kLogLevel, "HOTSWAP_LOG_LEVEL", "debug, info, warning (default) or error"},
    {EnvVar::kPackages, "HOTSWAP_PACKAGES", "folder of the bundled kernel packages, instead of the installed one"},
    {EnvVar::kGrammar, "HOTSWAP_GRAMMAR",
     "folder of the Python packages xgrammar and tvm_ffi, instead of the installed one"},
    {EnvVar::kUseHubKernels, "USE_HUB_KERNELS", "0, OFF or NO: use_kernels binds nothing"},
    {EnvVar::kDisableKernelMapping, "DISABLE_KERNEL_MAPPING", "1: kernelize leaves every layer stock"},
    {EnvVar::kLocalKernels, "LOCAL_KERNELS", "org/repo=path:org/repo=path: packages taken from these folders"},
    {EnvVar::kHubOffline, "HF_HUB_OFFLINE", "1: no network"},
    {EnvVar::kHfHome, "HF_HOME", "Hugging Face's folder, default ~/.cache/huggingface"},
    {EnvVar::kHfHubCache, "HF_HUB_CACHE", "the Hub's cache, default $HF_HOME/hub"},
    {EnvVar::kHfEndpoint, "HF_ENDPOINT", "the Hub's address, default https://huggingface.co"},
    {EnvVar::kHfToken, "HF_TOKEN", "the Hub's access token"},
    {EnvVar::kKernelsCache, "KERNELS_CACHE", "cache of kernel packages, default the Hub's cache"},
    {EnvVar::kHubTtl, "HOTSWAP_HUB_TTL", "seconds for which answers about names are reused, default 600"},
    {EnvVar::kTrustRoot, "HOTSWAP_TRUST_ROOT",
     "Sigstore trust root that signatures are verified against, a trusted_root.json"},
    {EnvVar::kProject, "HOTSWAP_PROJECT", "folder of hotswap.toml and kernels.lock: trusted publishers, versions"},
    {EnvVar::kHfTokenPath, "HF_TOKEN_PATH", "file of the access token, default $HF_HOME/token"},
    {EnvVar::kHuggingFaceHubToken, "HUGGING_FACE_HUB_TOKEN", "older name of HF_TOKEN"},
    {EnvVar::kHuggingFaceHubCache, "HUGGINGFACE_HUB_CACHE", "older name of HF_HUB_CACHE"},
    {EnvVar::kHfDisableImplicitToken, "HF_HUB_DISABLE_IMPLICIT_TOKEN", "1: no token is sent unless a call gives one"},
    {EnvVar::kHfDisableSymlinks, "HF_HUB_DISABLE_SYMLINKS", "1: the cache holds files only"},
    {EnvVar::kHfDisableProgressBars, "HF_HUB_DISABLE_PROGRESS_BARS", "1: downloads are silent"},
    {EnvVar::kHfEtagTimeout, "HF_HUB_ETAG_TIMEOUT", "seconds for questions about files, default 10"},
    {EnvVar::kHfDownloadTimeout, "HF_HUB_DOWNLOAD_TIMEOUT", "seconds without a byte that end a connection, default 10"},
    {EnvVar::kHfUserAgentOrigin, "HF_HUB_USER_AGENT_ORIGIN", "added to the user agent"},
    {EnvVar::kTransformersOffline, "TRANSFORMERS_OFFLINE", "1: no network"},
    {EnvVar::kSslCertFile, "SSL_CERT_FILE", "certificates of the authorities to trust, as PEM"},
    {EnvVar::kHttpProxy, "http_proxy", "proxy of http:// addresses; set to nothing: none, whatever HTTP_PROXY says"},
    {EnvVar::kHttpProxyUpper, "HTTP_PROXY", "the same, where http_proxy is not set"},
    {EnvVar::kRequestMethod, "REQUEST_METHOD", "set, as in CGI programs: HTTP_PROXY is a client's header, and ignored"},
    {EnvVar::kXdgCacheHome, "XDG_CACHE_HOME", "default ~/.cache"},
    {EnvVar::kHome, "HOME", "the user's folder"},
    {EnvVar::kNoColor, "NO_COLOR", "anything: no colours and no moving progress bar"},
    {EnvVar::kCxx, "CXX", "the compiler of `hotswap kernel build`, default c++"},
    {EnvVar::kIsa, "HOTSWAP_ISA", "base, v3 or v4: run CPU kernels of this instruction set at most"},
    {EnvVar::kRank, "RANK", "of this process among those that train one model; torchrun sets these"},
    {EnvVar::kWorldSize, "WORLD_SIZE", "how many ranks there are"},
    {EnvVar::kLocalRank, "LOCAL_RANK", "of this process on its machine: the GPU that it takes"},
    {EnvVar::kMasterAddress, "MASTER_ADDR", "machine of the store where ranks meet"},
    {EnvVar::kMasterPort, "MASTER_PORT", "the store's port"},
    {EnvVar::kAgentStore, "TORCHELASTIC_USE_AGENT_STORE", "True: torchrun serves the store, not rank 0"},
    {EnvVar::kRestartCount, "TORCHELASTIC_RESTART_COUNT", "above 0: ranks that were started again; they resume"},
    {EnvVar::kErrorFile, "TORCHELASTIC_ERROR_FILE", "file that gets the error of a rank, for torchrun's summary"},
    {EnvVar::kRequireCuda, "HOTSWAP_REQUIRE_CUDA", "1: tests fail where they would skip for want of a GPU"},
    {EnvVar::kTestDevice, "HOTSWAP_TEST_DEVICE", "cuda:1: tests of a GPU run on that one, default cuda:0"},
    {EnvVar::kTestPython, "HOTSWAP_TEST_PYTHON", "the Python that tests compare with, instead of the build's"},
    {EnvVar::kTestSource, "HOTSWAP_TEST_SOURCE", "folder of the sources' files that tests read, where they were moved"},
    {EnvVar::kTestSeed, "HOTSWAP_TEST_SEED", "random inputs of the tests are made from this number, default 0"},
};

// A user's folder; empty: none is known. No name: HOME, else what the system says of who runs this.
std::string home_of(const std::string& user) {
  if (user.empty()) {
    if (const char* home = std::getenv("HOME")) return home;
  }
  passwd entry{}, *found = nullptr;
  char text[4096];
  user.empty() ? ::getpwuid_r(::getuid(), &entry, text, sizeof text, &found)
               : ::getpwnam_r(user.c_str(), &entry, text, sizeof text, &found);
  return found != nullptr ? entry.pw_dir : "";
}

}  // namespace

std::span<const EnvRow> env_table() { return kTable; }

const char* env_name(EnvVar variable) {
  for (const EnvRow& row : kTable) {
    if (row.variable == variable) return row.name;
  }
  throw Error({.kind = ErrorKind::kInternal,
               .wanted = "a variable of the table in env.cpp",
               .got = cat("number ", static_cast<int>(variable)),
               .next = "add its row"});
}

std::optional<std::string> env(EnvVar variable) {
  const char* value = std::getenv(env_name(variable));
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

bool env_is_set(EnvVar variable) { return std::getenv(env_name(variable)) != nullptr; }

std::string expand_env(const std::string& text) {
  std::string rest = text, out;
  if (rest.starts_with('~')) {
    const size_t end = std::min(rest.find('/'), rest.size());
    if (const std::string home = home_of(rest.substr(1, end - 1)); !home.empty()) rest = home + rest.substr(end);
  }
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (size_t at = 0; at < rest.size();) {
    const bool braces = rest.compare(at, 2, "${") == 0;
    const size_t begin = at + (braces ? 2 : 1);
    size_t end = begin;
    while (end < rest.size() && (braces ? rest[end] != '}' : is_word(rest[end]))) ++end;
    const size_t after = braces ? end + 1 : end;
    const bool is_name = rest[at] == '$' && end > begin && after <= rest.size();
    const char* value = is_name ? std::getenv(rest.substr(begin, end - begin).c_str()) : nullptr;
    if (value == nullptr) {
      out += rest[at++];
    } else {
      out += value;
      at = after;
    }
  }
  return out;
}

bool env_flag(EnvVar variable, bool otherwise) {
  const auto value = env(variable);
  if (!value) return otherwise;
  std::string upper;
  for (const char c : *value) upper += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (const char* yes : {"1", "ON", "YES", "TRUE"}) {
    if (upper == yes) return true;
  }
  for (const char* no : {"0", "OFF", "NO", "FALSE"}) {
    if (upper == no) return false;
  }
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(env_name(variable), " to be 1/ON/YES/TRUE or 0/OFF/NO/FALSE"),
               .got = "'" + *value + "'",
               .next = "correct it or unset it"});
}

}  // namespace hotswap
