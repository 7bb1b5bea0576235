#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <cstdio>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/progress.h"
#include "hotswap/cli/bench/model.h"
#include "hotswap/cli/bench/ops.h"
#include "hotswap/cli/bench/serve.h"
#include "hotswap/cli/flags/value_checks.h"
#include "hotswap/cli/print/table.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/models/config.h"

namespace hotswap {
namespace {

struct BenchFlags {
  std::vector<std::string> ops, dtypes = {"float32", "bfloat16"}, sizes = {"cache", "dram"};
  std::string device = "cpu", peer = "torch", csv;
  int threads = 0;
  double seconds = 0.4;
  bool list = false;
};

// Those of bench/results.csv, which holds the rows of every benchmark of this project.
constexpr const char* kCsvColumns =
    "date,commit,machine,cpus,cpu_features,torch,load,kind,what,shape,dtype,threads,ours,stock,peer,peer_name,unit,"
    "ratio,"
    "target,memcpy_share,ours_cleared,peer_cleared,ours_memory,peer_memory\n";

std::string csv_line(const OpResult& r) {
  const std::string peer =
      r.peer_microseconds ? cat(fixed(*r.peer_microseconds, 3), ",torch eager,us,", fixed(r.speedup(), 3)) : ",,us,";
  return cat(",,,,," TORCH_VERSION ",,op,", r.op, ',', csv_cell(r.shape), ',', r.dtype, ',', r.threads, ',',
             fixed(r.microseconds, 3), ",,", peer, ",,", fixed(r.memcpy_share(), 3), ",,,,\n");
}

void bench_ops_verb(BenchFlags flags) {
  if (flags.list) {
    std::printf("%s\n", join(bench_ops(), "\n").c_str());
    return;
  }
  if (flags.device != "cpu") {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "--device cpu",
                 .got = "'" + flags.device + "'",
                 .next = "the bundled ops run on the CPU"});
  }
  if (flags.threads > 0) at::set_num_threads(flags.threads);
  if (flags.ops.empty()) flags.ops = bench_ops();
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(0);
  Table table({"op", "shape", "dtype", "time", "torch", "speedup", "GB/s", "of memcpy", "GFLOP/s", "error"});
  std::string csv = kCsvColumns;
  Progress bar("bench", static_cast<int64_t>(flags.ops.size() * flags.dtypes.size() * flags.sizes.size()));
  for (const std::string& op : flags.ops) {
    for (const std::string& dtype : flags.dtypes) {
      for (const std::string& size : flags.sizes) {
        const OpCase op_case = make_case(op, {.large = size == "dram", .dtype = dtype_from(dtype, "--dtype")});
        const OpResult r = bench_op(op_case, {.with_peer = flags.peer == "torch", .seconds = flags.seconds});
        csv += csv_line(r);
        table.row({r.op, r.shape, r.dtype, microseconds_text(r.microseconds),
                   r.peer_microseconds ? microseconds_text(*r.peer_microseconds) : "-",
                   r.peer_microseconds ? fixed(r.speedup(), 2) + "x" : "-", fixed(r.bytes_per_second / 1e9, 1),
                   fixed(100 * r.memcpy_share(), 0) + "%",
                   r.flops_per_second > 0 ? fixed(r.flops_per_second / 1e9, 1) : "-",
                   cat(fixed(r.error * 1e6, 1), "e-6")});
        bar.advance(1, cat(op, " ", dtype));
      }
    }
  }
  std::printf("%s%d threads; GB/s counts what must be read and written once\n", table.text().c_str(),
              at::get_num_threads());
  if (!flags.csv.empty()) write_file(flags.csv, csv);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto* verb =
      app.add_subcommand("bench", "Check and time the ops of the bundled packages, a whole model, or a server");
  auto flags = std::make_shared<BenchFlags>();
  verb->add_option("ops", flags->ops, "Ops to measure, default all (see --list)")->type_name("OP");
  verb->add_option("--device", flags->device, "Where the ops run")->capture_default_str();
  verb->add_option("--peer", flags->peer, "torch: measure torch eager's way beside each op")
      ->check(CLI::IsMember({"torch", "none"}))
      ->capture_default_str();
  verb->add_option("--threads", flags->threads, "Threads; default: torch's own number")->check(above_zero());
  verb->add_option("--dtype", flags->dtypes, "float32, bfloat16, float16; may be repeated")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  verb->add_option("--size", flags->sizes, "cache, dram")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"cache", "dram"}))
      ->capture_default_str();
  verb->add_option("--seconds", flags->seconds, "Time for each measurement")
      ->check(above_zero())
      ->capture_default_str();
  verb->add_option("--csv", flags->csv, "Write the results to this file too, with the columns of bench/results.csv");
  verb->add_flag("--list", flags->list, "Print the names of the ops");
  add_bench_model(*verb);
  add_bench_serve(*verb);
  verb->callback([verb, flags] {
    if (verb->get_subcommands().empty()) bench_ops_verb(*flags);
  });
}

}  // namespace hotswap
