#include <signal.h>

#include <cstdio>
#include <memory>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/http/listen.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/serve/server.h"
#include "hotswap/hub/serve/trusted_proxies.h"

namespace hotswap {
namespace {

struct ServeHubFlags {
  HubServerOptions server{.port = 8080};
  std::string folder, certificate, key, token_file;
  bool quiet = false, prepare = false;
};

void prepare(const HubServerOptions& options) {
  ServedRepos repos(options.folder, options.large_from, options.rescan_s);
  repos.prepare([](const Repo& repo, const ServedRevision& revision) {
    int64_t bytes = 0;
    for (const auto& [path, file] : revision.files) bytes += file.size;
    std::printf("%s/%s %s %s: %zu files, %.1f MB\n", plural(repo.type), repo.id.c_str(), revision.name.c_str(),
                revision.commit.c_str(), revision.files.size(), static_cast<double>(bytes) / 1e6);
  });
}

// Of a file that only the server may read: arguments are seen by all who may list processes.
std::string token_in(const std::string& file) {
  const std::string text = read_file(file), token(trim(text));
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 127; });
  if (!token.empty() && printable) return token;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a secret (an API token), one word of printable characters, in " + file,
               .got = token.empty() ? "nothing" : "blanks or control characters in it",
               .next = "write it there, for example with `openssl rand -hex 24`"});
}

void serve_hub_verb(const ServeHubFlags& flags) {
  if (flags.certificate.empty() != flags.key.empty()) throw usage_error("--certificate and --key belong together");
  HubServerOptions options = flags.server;
  options.folder = flags.folder;
  options.certificate = flags.certificate;
  options.key = flags.key;
  if (!flags.token_file.empty()) options.token = token_in(flags.token_file);
  if (flags.prepare) return prepare(options);
  allow_many_open_files();
  if (!flags.quiet) options.on_request = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };

  // Blocked before the server's threads start, which inherit it; so the signal waits for sigwait below.
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  HubServer server(options);
  server.start();
  std::printf("%s\n", server.url().c_str());
  std::fflush(stdout);
  std::fprintf(stderr, "serving %s; clients find it with HF_ENDPOINT=%s; Ctrl-C ends it\n", flags.folder.c_str(),
               server.url().c_str());
  int signal = 0;
  sigwait(&ends, &signal);
  server.stop();
}

}  // namespace

void add_serve_hub(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "serve-hub",
      "Answer as huggingface.co does, read-only, from a folder: the mirror of a cluster without\n"
      "internet. Prints its address on stdout. DIR/kernels/ORG/NAME/v1 is a built package, or a link to one,\n"
      "DIR/models/ORG/NAME/main a model; DIR/trusted_publishers.txt names the ORGs whose kernels\n"
      "clients may run unasked. More in docs/formats.md.");
  auto flags = std::make_shared<ServeHubFlags>();
  verb->add_option("DIR", flags->folder, "the folder to serve")->required();
  verb->add_option("--host", flags->server.host, "address to listen on")->capture_default_str();
  verb->add_option("--port", flags->server.port, "0: any free one")->check(CLI::Range(0, 65535))->capture_default_str();
  auto* token = verb->add_option("--token", flags->server.token, "clients must send it as HF_TOKEN");
  verb->add_option("--token-file", flags->token_file,
                   "a file that holds the token, which then no list of processes shows")
      ->check(CLI::ExistingFile)
      ->excludes(token);
  verb->add_option("--trusted-proxy", flags->server.trusted_proxies,
                   "an address or network, as 10.0.0.0/8, whose X-Forwarded-* are believed; may be repeated")
      ->check(check_network)
      ->capture_default_str();
  verb->add_option("--certificate", flags->certificate, "PEM; with --key: HTTPS");
  verb->add_option("--key", flags->key, "PEM");
  verb->add_flag("--quiet", flags->quiet, "do not list requests on stderr");
  verb->add_flag("--prepare", flags->prepare,
                 "hash what is new in DIR and end, so that no client of a server, running or to come, waits for it");
  verb->callback([flags] { serve_hub_verb(*flags); });
}

}  // namespace hotswap
