// What each parser of this room must withstand: any bytes end in a value that keeps its promises, or in an Error.
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/fuzz_support.h"
#include "hotswap/hub/names/kernel_ref.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/names/variant.h"
#include "hotswap/hub/names/version.h"
#include "hotswap/hub/net/client.h"
#include "hotswap/hub/net/http.h"
#include "hotswap/hub/net/url.h"
#include "hotswap/hub/package/build_toml.h"
#include "hotswap/hub/package/lockfile.h"
#include "hotswap/hub/package/metadata.h"
#include "hotswap/hub/sign/bundle.h"
#include "hotswap/hub/sign/signature.h"
#include "hotswap/hub/sign/transparency.h"
#include "hotswap/hub/sign/trust.h"
#include "hotswap/hub/sign/trust_root.h"

namespace hotswap {
namespace {

using test_support::must;

void stays_inside(const std::string& path, const char* what) {
  try {
    check_relative_path(path, what);
  } catch (const Error&) {
    must(false, what);
  }
}

void names(const std::string& text) {
  const KernelRef ref(text);
  if (!ref.is_path()) must(KernelRef(ref.str()) == ref, "a name means the same when it is written out");
  if (!ref.repo().empty()) check_repo({RepoType::kKernel, ref.repo()});
}

void versions(const std::string& text) {
  if (const auto version = Version::try_parse(text))
    must(Version::parse(version->str()) == *version, "a version's text");
  SpecifierSet::parse(text).contains(Version::parse("2.2"));
}

void variants(const std::string& text) {
  static const System system{.torch = {{2, 11}}, .backend = *Backend::parse("cu130")};
  if (const auto name = VariantName::parse(text)) {
    must(name->str() == text, "a variant's name goes there and back");
    must(text.find('/') == text.npos && text.find("..") == text.npos, "a variant is no path");
  }
  choose_variant(std::vector<std::string>{text, "torch-cuda"}, system).trace_lines();
}

void metadata(const std::string& text) {
  const KernelMetadata m = parse_metadata(text, "metadata.json");
  must(is_identifier(m.id) && is_kernel_name(m.name), "an id and a name");
  if (!m.digests) return;
  for (const auto& [name, hash] : m.digests->files) must(is_inside(name), "a digest's files are inside");
}

void lock(const std::string& text) {
  const std::string again = Lockfile::parse(text, "lock").text();
  must(Lockfile::parse(again, "lock").text() == again, "a lock's text is stable");
}

void build_toml(const std::string& text) {
  struct Folder {
    std::string path = (std::filesystem::temp_directory_path() / "hotswap-fuzz-XXXXXX").string();
    Folder() { must(::mkdtemp(path.data()) != nullptr, "a folder of one's own"); }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Folder folder;
  const std::filesystem::path file = std::filesystem::path(folder.path) / "build.toml";
  replace_file(file, text);
  check_build(read_build_toml(file), folder.path);
}

// The first byte says which answer it is.
void answers(const std::string& text) {
  static const std::string kSha(40, 'a');
  if (text.empty()) return;
  const std::string body = text.substr(1);
  switch (text[0]) {
    case 't':
      for (const TreeEntry& entry : parse_tree(body, "tree")) {
        stays_inside(entry.path, "a tree's path");
        if (!entry.folder) stays_inside(entry.etag(), "a blob's name");
        must(entry.size >= 0, "a size");
      }
      return;
    case 'r':
      for (const auto& list : {parse_refs(body, "refs").branches, parse_refs(body, "refs").tags}) {
        for (const RepoRef& ref : list) {
          must(is_commit(ref.commit), "a commit");
          stays_inside(ref.name, "a branch or tag");
        }
      }
      return;
    case 'h': {
      HttpResponse head{.status = 200, .url = "http://h/x", .headers = {{"x-repo-commit", kSha}}, .body = ""};
      for (const char* name : {"ratelimit", "retry-after", "link", "content-length", "content-range"}) {
        head.headers[name] = body;
      }
      must(asked_wait(head, 0) >= -1, "a wait");
      link_next(body);
      hub_error({.status = 429, .url = body, .headers = head.headers, .body = body}, "x");
      head.headers["etag"] = body;
      const FileMeta meta = parse_file_meta(head);
      stays_inside(meta.etag, "an etag");
      must(meta.size >= 0, "a size");
      return;
    }
    case 'u': {
      url_shown(body);
      const std::string origin = url_origin(url_resolve("https://hub.example/a/b", body));
      must(url_names_host(body) || origin == "https://hub.example:443", "what names no host stays where it was");
      return;
    }
    default:
      versions(body);
  }
}

void bundle(const std::string& text) {
  const auto quietly = [](const auto& call) {
    try {
      call();
    } catch (const Error&) {
    }
  };
  quietly([&] { verify_inclusion(Bundle::parse(text, "bundle").entry); });
  quietly([&] {
    static const TrustRoot sigstore = TrustRoot::current();
    verify_bundle("hello world", text, sigstore, default_signers());
    must(false, "nobody has signed what a fuzzer made");
  });
  TrustRoot::parse(text, "root");
}

template <void (*parse)(const std::string& text)>
void run(const std::string& text) {
  try {
    parse(text);
  } catch (const Error&) {  // the only way out but a value
  }
}

constexpr test_support::FuzzTarget kHubFuzz[] = {
    {"names", run<names>},           {"variants", run<variants>}, {"metadata", run<metadata>}, {"lock", run<lock>},
    {"build_toml", run<build_toml>}, {"answers", run<answers>},   {"bundle", run<bundle>}};

}  // namespace
}  // namespace hotswap

HOTSWAP_FUZZ_TARGETS(hub, kHubFuzz)
