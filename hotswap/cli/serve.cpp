#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>
#include <set>
#include <thread>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/cli/flags/served_texts_of.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/http/listen.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/serve/server.h"
#include "hotswap/serve/vectors/text_server.h"

namespace hotswap {
namespace {

constexpr int64_t kPrefixTokens = 16384;

struct ServeFlags {
  ModelFlags model;
  KernelFlags kernels;
  serve::ServerOptions server{.port = 8000};
  std::vector<std::string> names;
  std::vector<std::string> adapters;  // NAME=DIR, or DIR
  std::string api_key_file;
  int64_t max_model_len = 0;
  std::optional<int64_t> prefix_tokens;  // unset: kPrefixTokens on a CPU; on a GPU it has not been measured yet
  double drain_s = 30;
  bool no_kernels = false, no_auth = false, exact = false, no_exact = false;
};

std::vector<std::string> keys_in(const std::string& file) {
  std::vector<std::string> keys;
  for (const std::string& line : split(read_file(file), '\n')) {
    if (!trim(line).empty()) keys.emplace_back(trim(line));
  }
  if (!keys.empty()) return keys;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "keys, one a line, in " + file,
               .got = "none",
               .next = "write one there, for example with `openssl rand -hex 24`"});
}

int64_t model_length(const CausalLM& model, int64_t limit) {
  const int64_t positions = serve::max_positions(model);
  if (limit == 0 && positions == 0) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a model whose config.json has max_position_embeddings",
                 .got = "one without",
                 .next = "give --max-model-len"});
  }
  if (positions > 0 && limit > positions) {
    throw usage_error(cat("--max-model-len ", limit, " is beyond the ", positions, " positions that the model has"));
  }
  return limit > 0 ? limit : positions;
}

// A name has no slash, so that a folder whose path has a "=" may come without one.
serve::ServedAdapter adapter_named(const std::string& flag) {
  const size_t split = flag.find('=');
  if (split != std::string::npos && flag.find('/') > split) {
    if (split == 0 || split + 1 == flag.size()) {
      throw usage_error(cat("--adapter ", flag, " is not NAME=DIR, and no folder"));
    }
    return {flag.substr(0, split), flag.substr(split + 1)};
  }
  const std::filesystem::path folder = flag;
  return {(folder.filename().empty() ? folder.parent_path() : folder).filename().string(), flag};
}

std::vector<serve::ServedAdapter> adapters_of(const ServeFlags& flags, const std::vector<std::string>& base_names) {
  std::vector<serve::ServedAdapter> adapters;
  std::set<std::string> taken(base_names.begin(), base_names.end());
  for (const std::string& flag : flags.adapters) {
    adapters.push_back(adapter_named(flag));
    const std::string& name = adapters.back().name;
    if (taken.insert(name).second) continue;
    throw usage_error(cat("--adapter ", flag, ": the name ", name,
                          " is taken; give each adapter its own, as NAME=DIR, and none that of the model"));
  }
  return adapters;
}

serve::ServedModel loaded(const ServeFlags& flags) {
  const std::vector<std::string> names = flags.names.empty() ? std::vector{flags.model.model} : flags.names;
  std::vector<serve::ServedAdapter> adapters = adapters_of(flags, names);  // before anything is read
  ModelFlags source = located(flags.model);
  for (const serve::ServedAdapter& adapter : adapters) source.row_adapters.push_back(adapter.root);
  // Rows of different length are read by the bundled kernel as far as each goes. Steps of few rows run in kernels of
  // whole layers all the same.
  source.gpu_attention = "hotswap/attention";
  serve::ServedModel served{.model = load_model(source, flags.kernels),
                            .tokenizer = load_tokenizer(source),
                            .chat_template = find_chat_template(source),
                            .names = names,
                            .adapters = std::move(adapters)};
  served.max_model_len = model_length(*served.model, flags.max_model_len);
  return served;
}

// A line for each, with what its tensors take.
void print_adapters(const serve::ServedModel& served) {
  for (size_t i = 0; i < served.adapters.size(); ++i) {
    const auto bytes = static_cast<double>(served.model->row_adapters()[i].bytes);
    std::fprintf(stderr, "adapter %s: %s, %.1f MiB\n", served.adapters[i].name.c_str(), served.adapters[i].root.c_str(),
                 bytes / (1 << 20));
  }
}

// Reading or downloading a model takes minutes: a signal that comes before there is a server ends the program as if it
// were not blocked.
class EndableLoading {
 public:
  explicit EndableLoading(const sigset_t& ends)
      : watch_([ends](const std::stop_token& loaded) {
          const timespec step{.tv_sec = 0, .tv_nsec = 50'000'000};
          while (!loaded.stop_requested()) {
            const int signal = sigtimedwait(&ends, nullptr, &step);
            if (signal < 0) continue;
            std::fprintf(stderr, "ended while the model was being loaded\n");
            pthread_sigmask(SIG_UNBLOCK, &ends, nullptr);
            raise(signal);
          }
        }) {}
  void loaded() { watch_ = {}; }  // signals are of wait_and_drain() from here on

 private:
  std::jthread watch_;
};

// The first signal lets requests end; the second, or the end of that time, ends them.
template <class AnyServer>
void wait_and_drain(AnyServer& server, const sigset_t& ends, double drain_s) {
  const timespec second{.tv_sec = 1, .tv_nsec = 0};
  while (sigtimedwait(&ends, nullptr, &second) < 0) {
    if (server.healthy()) continue;
    throw Error({.kind = ErrorKind::kInternal,
                 .wanted = "an engine that runs",
                 .got = "steps that fail again and again",
                 .next = "read the log, and start the server again"});
  }
  std::fprintf(stderr, "ending: requests have %g s; a second signal ends them now\n", drain_s);
  const timespec now{};
  for (double waited = 0; waited < drain_s; waited += 0.1) {
    if (server.drain(std::chrono::milliseconds(100)) || sigtimedwait(&ends, nullptr, &now) > 0) break;
  }
}

serve::ServerOptions options_of(const ServeFlags& flags) {
  serve::ServerOptions options = flags.server;
  if (!flags.api_key_file.empty()) {
    for (std::string& key : keys_in(flags.api_key_file)) options.api_keys.push_back(std::move(key));
  }
  for (const std::string& key : options.api_keys) {
    if (trim(key).empty()) throw usage_error("--api-key is empty; give one, or leave the flag out");
  }
  for (std::string& host : options.allowed_hosts) host = lower(host);
  if (options.engine.page_size % 16 != 0) {
    throw usage_error(cat("--page-size ", options.engine.page_size, " is no multiple of 16, as kernels need it"));
  }
  if (options.engine.kv_tokens > 0 && options.engine.page_size == 0) {
    throw usage_error("--kv-tokens is of pages: give --page-size, too, for example 64");
  }
  check_address(options.host);  // before a key is required
  if (!is_loopback(options.host) && options.api_keys.empty() && !flags.no_auth) {
    throw usage_error("--host " + options.host + " is open to other machines: give --api-key-file, or --no-auth");
  }
  return options;
}

// Of a model that makes vectors or ranks, instead of one that generates.
void serve_texts(serve::ServedTexts texts, const serve::ServerOptions& options, HeldPort& port, EndableLoading& loading,
                 const sigset_t& ends, double drain_s) {
  const KernelReport report = texts.model().kernel_report();
  const std::string what =
      cat(texts.names.front(), texts.encoder ? ", which makes vectors" : ", which ranks documents");
  serve::TextServer server(std::move(texts), options);
  loading.loaded();
  port.release();
  server.start();
  std::printf("listening on %s\n", server.url().c_str());
  std::fflush(stdout);
  std::fprintf(stderr, "serving %s: %lld of %zu slots run kernels\n", what.c_str(),
               static_cast<long long>(report.bound()), report.rows.size());
  wait_and_drain(server, ends, drain_s);
  server.stop();
}

void serve_verb(const ServeFlags& flags) {
  serve::ServerOptions options = options_of(flags);
  // Blocked before any thread starts, because threads inherit it; so the signal waits for sigtimedwait.
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  EndableLoading loading(ends);
  allow_many_open_files();
  HeldPort port(options.host, options.port);  // a taken one is an error now, not when the model has been read
  options.port = port.port();
  const std::vector<std::string> names = flags.names.empty() ? std::vector{flags.model.model} : flags.names;
  if (auto texts = served_texts_of(flags.model, flags.kernels, names)) {
    return serve_texts(*std::move(texts), options, port, loading, ends, flags.drain_s);
  }
  serve::ServedModel model = loaded(flags);
  const bool on_cpu = model.model->device().is_cpu();
  options.engine.exact = flags.exact || (on_cpu && !flags.no_exact);
  options.engine.prefix_tokens = flags.prefix_tokens.value_or(on_cpu ? kPrefixTokens : 0);
  serve::Server server(model, options);
  loading.loaded();
  port.release();
  server.start();
  std::printf("listening on %s\n", server.url().c_str());
  std::fflush(stdout);
  const KernelReport& report = model.model->kernel_report();
  std::fprintf(stderr, "serving %s: %lld of %zu slots run kernels; up to %lld sequences at once%s\n",
               model.names.front().c_str(), static_cast<long long>(report.bound()), report.rows.size(),
               static_cast<long long>(options.engine.rows),
               options.engine.exact
                   ? cat(", ", server.engine().why_exact(), ": texts do not depend on their company").c_str()
                   : "");
  print_adapters(model);
  wait_and_drain(server, ends, flags.drain_s);
  server.stop();
}

void add_server_flags(CLI::App& verb, ServeFlags& flags) {
  serve::ServerOptions& server = flags.server;
  verb.add_option("--host", server.host, "Address to listen on; another than the loopback needs a key")
      ->capture_default_str();
  verb.add_option("--port", server.port, "0: any free one")->check(CLI::Range(0, 65535))->capture_default_str();
  verb.add_option("--api-key", server.api_keys, "A key that clients must send as OPENAI_API_KEY; may be repeated");
  verb.add_option("--api-key-file", flags.api_key_file, "A file of keys, one a line, which no list of processes shows")
      ->check(CLI::ExistingFile);
  verb.add_flag("--no-auth", flags.no_auth, "Listen to other machines without a key");
  verb.add_option(
      "--allowed-host", server.allowed_hosts,
      "A further name of this server, as a proxy or a browser sends it in Host and Origin; may be repeated");
  verb.add_option("--served-model-name", flags.names,
                  "Names of the model in requests, which run without an adapter; default: MODEL");
  verb.add_option(
          "--adapter", flags.adapters,
          "A LoRA adapter of peft (its folder, or org/name on the Hub), which requests name as a model: NAME, or\n"
          "the folder's name; may be repeated. Requests of all share batches")
      ->type_name("[NAME=]DIR|ID")
      ->take_all()
      ->allow_extra_args(false);
  verb.add_flag("--strict-fields", server.strict_fields, "Refuse requests with fields that are not known");
  verb.add_option("--metrics-prefix", server.metrics_prefix, "Before the names of /metrics; vllm for its dashboards")
      ->capture_default_str();
  verb.add_option("--connections", server.connections, "At once, a thread each")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  verb.add_option("--drain", flags.drain_s, "Seconds that running requests have after SIGTERM")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
}

void add_engine_flags(CLI::App& verb, ServeFlags& flags) {
  serve::EngineOptions& engine = flags.server.engine;
  verb.add_option("--rows", engine.rows, "Sequences that run at the same time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  verb.add_option("--queue", engine.max_queue, "Sequences that wait; further ones are refused with 429")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  verb.add_option("--max-model-len", flags.max_model_len,
                  "Tokens of a prompt and its answer; default: the model's max_position_embeddings")
      ->check(CLI::Range(2, 100000000));
  verb.add_option(
          "--chunk", engine.chunk,
          "Tokens of a prompt that run between two steps of other sequences; of several prompts twice as many in total")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  verb.add_option("--prefix-cache", flags.prefix_tokens,
                  "Tokens whose keys and values are kept for prompts that begin alike; 0: none. Default: 16384 on a\n"
                  "CPU, 0 on a GPU")
      ->check(CLI::Range(0, 1000000000));
  verb.add_option("--page-size", engine.page_size,
                  "Tokens of a page of keys and values, a multiple of 16; 0: one piece a sequence, which grows and is\n"
                  "what the fastest kernels read")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  verb.add_option(
          "--kv-tokens", engine.kv_tokens,
          "With --page-size: tokens that all pages hold; where they do not suffice, the youngest sequences wait\n"
          "and run their tokens again. 0: as many as --rows sequences of --max-model-len need")
      ->check(CLI::Range(0, 1000000000))
      ->capture_default_str();
  auto* exact = verb.add_flag(
      "--exact", flags.exact,
      "Texts do not depend on their company: the default on a CPU. On a GPU every step then has --rows rows of\n"
      "--max-model-len tokens, whatever runs; what that costs is printed");
  verb.add_flag("--no-exact", flags.no_exact,
                "On a CPU: all sequences in one forward. Faster with many, but a text may depend on its company")
      ->excludes(exact);
}

}  // namespace

void add_serve(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "serve",
      "Answer OpenAI's protocol for a model: /v1/chat/completions, /v1/completions, /v1/models; of a model of\n"
      "embeddings /v1/embeddings, of a reranker /v1/rerank. The first line of stdout is its address. More in\n"
      "docs/serving.md.");
  auto flags = std::make_shared<ServeFlags>();
  flags->model.device = "auto";  // before the flag is added, which shows it as its default
  add_base_model_flags(*verb, flags->model);
  verb->add_flag("--random-weights", flags->model.random_weights,
                 "Random weights, for measurements; only config.json and the tokenizer of the model are read");
  add_kernel_flags(*verb, flags->kernels);
  flags->kernels.use_kernels = true;
  flags->server.version = app.version();
  verb->add_flag("--no-kernels", flags->no_kernels, "Run the stock layers");
  add_server_flags(*verb, *flags);
  add_engine_flags(*verb, *flags);
  verb->callback([flags] {
    if (flags->no_kernels) flags->kernels = KernelFlags{};
    serve_verb(*flags);
  });
}

}  // namespace hotswap
