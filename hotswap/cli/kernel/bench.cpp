// kernel bench: the table, JSON and exit codes of Python's `kernels benchmark`, but nothing of the package runs that
// trust, digest, signature and lock have not passed: its compiled ops, never its Python files. What is measured is
// hotswap's own: every layer against the stock layer of its contract, whose values in float64 it must have first.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/utsname.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "hotswap/base/file.h"
#include "hotswap/cli/bench/ops.h"
#include "hotswap/cli/flags/value_checks.h"
#include "hotswap/cli/kernel/hub.h"
#include "hotswap/cli/print/table.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/kernelize/example/example.h"
#include "hotswap/kernelize/foreign/foreign.h"
#include "hotswap/kernelize/hub_kernels.h"
#include "hotswap/kernelize/package/device.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/models/config.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using OutJson = nlohmann::ordered_json;
using Values = std::vector<c10::IValue>;

struct KernelBenchFlags {
  std::string what, branch, project, output, device;
  std::optional<int64_t> version;
  std::vector<std::string> layers, dtypes = {"float32", "bfloat16"};
  int iterations = 100, warmup = 10;
  ExampleSize size;
  bool json = false, allow_all = false;
};

struct Timing {  // milliseconds
  double mean = 0, std = 0, min = 0, max = 0, q1 = 0, q3 = 0;
  int outliers = 0;
};

struct Row {
  std::string layer, workload;
  double error = 0, allowed = 0;  // relative L2 against float64
  Timing kernel, stock;           // zeros where the values are wrong
  bool verified() const { return error <= allowed; }
};

struct Measured {
  std::vector<Row> rows;
  std::vector<std::pair<std::string, std::string>> skipped;  // layer, why
};

// With linear interpolation, as numpy's default.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(at), above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Timing summary(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const double count = static_cast<double>(times.size());
  Timing t{.mean = std::accumulate(times.begin(), times.end(), 0.0) / count,
           .min = times.front(),
           .max = times.back(),
           .q1 = quantile(times, 0.25),
           .q3 = quantile(times, 0.75)};
  double squares = 0;
  for (const double time : times) squares += (time - t.mean) * (time - t.mean);
  t.std = std::sqrt(squares / count);
  const double fence = 1.5 * (t.q3 - t.q1);
  t.outliers = static_cast<int>(
      std::count_if(times.begin(), times.end(), [&](double x) { return x < t.q1 - fence || x > t.q3 + fence; }));
  return t;
}

// One kind of run of one layer: a forward, or a forward and its gradients.
class Workload {
 public:
  Workload(const LayerExample& example, bool training) : example_(example), training_(training) {}

  Values arguments(at::ScalarType dtype, const at::Device& device) const {
    return changed(example_.arguments, [&](const at::Tensor& tensor) {
      return (tensor.is_floating_point() ? tensor.to(dtype) : tensor).to(device);
    });
  }
  // What the rounding of the inputs does is nobody's error.
  Values exact(const Values& arguments) const {
    return changed(arguments, [](const at::Tensor& tensor) {
      return tensor.is_floating_point() ? tensor.cpu().to(at::kDouble) : tensor.cpu();
    });
  }
  Tensors run(const ExampleForward& forward, const Values& arguments) const {
    if (!training_) {
      const at::NoGradGuard guard;
      return forward(arguments);
    }
    Tensors results = forward(arguments), ones, leaves;
    for (const at::Tensor& result : results) ones.push_back(at::ones_like(result));
    for (const c10::IValue& value : arguments) {
      if (value.isTensor() && value.toTensor().requires_grad()) leaves.push_back(value.toTensor());
    }
    for (at::Tensor& gradient : torch::autograd::grad(results, leaves, ones)) results.push_back(std::move(gradient));
    return results;
  }

 private:
  template <typename Change>
  Values changed(Values arguments, const Change& change) const {
    size_t tensors = 0;
    for (c10::IValue& value : arguments) {
      if (!value.isTensor()) continue;
      at::Tensor made = change(value.toTensor().detach());
      if (training_ && made.is_floating_point() && tensors++ < example_.trained)
        made = made.clone().set_requires_grad(true);
      value = made;
    }
    return arguments;
  }

  const LayerExample& example_;
  bool training_;
};

// The largest of the results' relative differences; not a number where they are of another shape, or have one.
double outputs_difference(const Tensors& got, const Tensors& want) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double off = relative_difference(got[i], want[i]);
    if (std::isnan(off)) return off;
    worst = std::max(worst, off);
  }
  return worst;
}

Row measure(const LayerExample& example, const PackageLayer& layer, const KernelBenchFlags& flags,
            const std::string& dtype_text, bool training) {
  const at::Device device(flags.device == "cuda" ? "cuda:0" : flags.device);
  const at::ScalarType dtype = dtype_from(dtype_text, "--dtype");
  const Workload workload(example, training);
  const ExampleForward bound = example.bound(layer);
  Row row{.layer = layer.name(),
          .workload = cat(training ? "training " : "inference ", example.shape, " ", dtype_text)};
  const Values inputs = workload.arguments(dtype, device);
  const Tensors want = workload.run(example.exact, workload.exact(inputs));
  row.error = outputs_difference(workload.run(bound, inputs), want);
  // As the stock layer, and the type's own rounding: a kernel may sum in another order.
  const double rounding = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 2e-3 : 1e-2;
  row.allowed = std::max(rounding, 2 * outputs_difference(workload.run(example.stock, inputs), want));
  if (!row.verified()) return row;

  const c10::impl::VirtualGuardImpl guard(device.type());
  const auto timed = [&](const ExampleForward& forward) {
    const auto start = std::chrono::steady_clock::now();
    workload.run(forward, inputs);
    if (device.is_cuda()) guard.synchronizeDevice(device.index());
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<double> kernel, stock;
  for (int i = -flags.warmup; i < flags.iterations; ++i) {  // in turns: what else the machine does meets both
    const double ours = timed(bound), theirs = timed(example.stock);
    if (i < 0) continue;
    kernel.push_back(ours);
    stock.push_back(theirs);
  }
  row.kernel = summary(std::move(kernel));
  row.stock = summary(std::move(stock));
  return row;
}

Measured measure_package(const Package& package, const KernelBenchFlags& flags) {
  Measured measured;
  std::set<std::string> seen;  // several names may have one and the same ops
  for (const auto& [name, entry] : package.manifest().layers) {
    const bool named = std::find(flags.layers.begin(), flags.layers.end(), name) != flags.layers.end();
    if (!flags.layers.empty() && !named) continue;
    if (!seen.insert(cat(entry.contract, " ", entry.ops.at("forward"))).second && !named) continue;
    const PackageLayer& layer = package.layer(name);
    if (!layer.runs_on(flags.device)) {
      measured.skipped.emplace_back(name, "has no kernel for " + flags.device);
      continue;
    }
    const auto example = example_of(layer.contract()).make(name, flags.size);
    if (!example) {
      measured.skipped.emplace_back(name, example.why());
      continue;
    }
    for (const std::string& dtype : flags.dtypes) {
      if (!entry.capabilities.dtypes.contains(dtype)) {
        measured.skipped.emplace_back(name, "has no " + dtype);
        continue;
      }
      for (const bool training : {false, true}) {
        if (training && !entry.capabilities.backward) continue;
        measured.rows.push_back(measure(*example, layer, flags, dtype, training));
      }
    }
  }
  return measured;
}

std::string cpu_model() {
  std::error_code code;
  if (!fs::exists("/proc/cpuinfo", code)) return "";
  for (const std::string& line : split(read_file("/proc/cpuinfo"), '\n')) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(": ") + 2));
  }
  return "";
}

OutJson machine_info(const std::string& device) {
  utsname system{};
  uname(&system);
  const auto capability = device_capability(at::Device(device == "cuda" ? "cuda:0" : device));
  return {{"gpu", capability ? cat("compute capability ", *capability / 10, ".", *capability % 10) : ""},
          {"backend", device},
          {"pytorchVersion", TORCH_VERSION},
          {"os", cat(system.sysname, " ", system.release)},
          {"cpu", cpu_model()}};
}

OutJson bench_json(const Measured& measured, const std::string& commit, const std::string& device, int iterations) {
  const auto rounded = [](double ms) { return std::round(ms * 1e4) / 1e4; };
  OutJson results = OutJson::array(), skipped = OutJson::array();
  for (const Row& row : measured.rows) {
    const Timing& t = row.kernel;
    OutJson entry = {{"workload", cat(row.layer, ".", row.workload)}, {"verified", row.verified()}};
    entry["error"] = std::isfinite(row.error) ? OutJson(row.error) : OutJson(nullptr);
    if (row.verified()) {
      entry["timingResults"] = {{"mean_ms", rounded(t.mean)},     {"std_ms", rounded(t.std)},
                                {"min_ms", rounded(t.min)},       {"max_ms", rounded(t.max)},
                                {"q1_ms", rounded(t.q1)},         {"q3_ms", rounded(t.q3)},
                                {"iqr_ms", rounded(t.q3 - t.q1)}, {"outliers", t.outliers},
                                {"iterations", iterations},       {"ref_mean_ms", rounded(row.stock.mean)}};
    }
    results.push_back(std::move(entry));
  }
  for (const auto& [layer, why] : measured.skipped) skipped.push_back({{"layer", layer}, {"reason", why}});
  return {{"results", results},
          {"skipped", skipped},
          {"machineInfo", machine_info(device)},
          {"kernelCommitSha", commit},
          {"benchmarkScriptPath", nullptr}};
}

std::string to_table(const Measured& measured, int iterations) {
  Table table({"Benchmark", "Workload", "N", "Speedup", "Mean(ms)", "Std(ms)", "Min(ms)", "Max(ms)", "IQR(ms)",
               "Outliers", "Ref(ms)", "Match"});
  for (const Row& row : measured.rows) {
    const Timing& t = row.kernel;
    if (!row.verified()) {
      table.row({row.layer, row.workload, "0", "", "", "", "", "", "", "", "", cat("\u2717 ", row.error)});
      continue;
    }
    table.row({row.layer, row.workload, cat(iterations), fixed(row.stock.mean / t.mean, 2) + "x", fixed(t.mean, 4),
               fixed(t.std, 4), fixed(t.min, 4), fixed(t.max, 4), fixed(t.q3 - t.q1, 4), cat(t.outliers),
               fixed(row.stock.mean, 4), "\u2713"});
  }
  std::string text = table.text();
  for (const auto& [layer, why] : measured.skipped) text += cat("skipped ", layer, ": ", why, "\n");
  return text;
}

// A folder, a bundled package's name, or a repository: that by the same way as a model's kernels.
const Package& open_package(const KernelBenchFlags& flags, std::string& commit) {
  if (fs::is_directory(flags.what)) {
    const auto variant = find_variant(flags.what, flags.device);
    if (!variant)
      throw Error({.kind = ErrorKind::kNotFound,
                   .wanted = "a variant for " + flags.device,
                   .got = variant.why(),
                   .next = "build it here"});
    return load_package(read_package(*variant, bundled_packages()));
  }
  if (flags.what.find('/') == flags.what.npos) {
    for (const Manifest& m : bundled_packages()) {
      if (m.name == flags.what && m.backend == flags.device) return load_package(m);
    }
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("a bundled package for ", flags.device, ", a folder or org/name"),
                 .got = "'" + flags.what + "'",
                 .next = "run `hotswap kernel list`"});
  }
  HubKernels hub(flags.allow_all, flags.project);
  const KernelRef ref = hub.named({flags.what, {.version = flags.version, .revision = flags.branch}});
  const Result<HubKernel>& found = hub.get(ref, flags.device);
  if (!found) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat(ref.str(), " for ", flags.device),
                 .got = found.why(),
                 .next = cat("see what it has for which system: `hotswap kernel versions ", ref.repo(), "`")});
  }
  commit = found->location.commit;
  std::fprintf(stderr, "%s\n", origin_of(*found).c_str());
  return load_package(read_package(found->folder, bundled_packages(), found->digest_checked),
                      [&](const FilesInMemory& files) { hub.verify(*found, files); });
}

void check_layers(const Package& package, const KernelBenchFlags& flags) {
  for (const std::string& layer : flags.layers) {
    if (package.manifest().layers.contains(layer)) continue;
    std::vector<std::string> known;
    for (const auto& [name, entry] : package.manifest().layers) known.push_back(name);
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("layers of ", package.manifest().name, ": ", join(known)),
                 .got = "'" + layer + "'",
                 .next = "name one of these, or none for all"});
  }
}

void bench(KernelBenchFlags flags) {
  if (flags.device.empty()) flags.device = cuda_available() ? "cuda" : "cpu";
  if (flags.device == "cuda" && !cuda_available()) {
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = "a GPU for --device cuda",
                 .got = "none that torch can use",
                 .next = "use --device cpu"});
  }
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(0);
  std::string commit;
  const Package& package = open_package(flags, commit);
  check_layers(package, flags);
  const Measured measured = measure_package(package, flags);
  std::fprintf(stderr, "%s", to_table(measured, flags.iterations).c_str());
  const std::string json = bench_json(measured, commit, flags.device, flags.iterations).dump(2) + "\n";
  if (!flags.output.empty()) {
    write_file(flags.output, json);
    std::fprintf(stderr, "Results saved to: %s\n", flags.output.c_str());
  }
  if (flags.json) std::printf("%s", json.c_str());
  const auto wrong =
      std::count_if(measured.rows.begin(), measured.rows.end(), [](const Row& r) { return !r.verified(); });
  if (wrong == 0 && !measured.rows.empty()) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("layers of ", package.manifest().name, " with the stock layers' values"),
               .got = measured.rows.empty() ? "none that can be measured here" : cat(wrong, " workloads that differ"),
               .next = measured.rows.empty() ? "see what was skipped" : "do not use them: their speed means nothing"});
}

}  // namespace

void add_kernel_bench(CLI::App& kernel) {
  auto flags = std::make_shared<KernelBenchFlags>();
  auto* verb = kernel.add_subcommand(
      "bench", "Check and time the layers of a package against the stock layers; the table goes to stderr");
  verb->alias("benchmark");
  verb->add_option("REPO", flags->what, "org/name[@revision], a package's folder, or the name of a bundled package")
      ->required();
  auto* branch = verb->add_option("--branch", flags->branch, "Branch, tag or commit on the Hub");
  verb->add_option("--version", flags->version, "Version on the Hub; without either: version 1")->excludes(branch);
  verb->add_option("--layer", flags->layers, "Only these layers; may be repeated")->allow_extra_args(false);
  verb->add_option("--dtype", flags->dtypes, "float32, bfloat16, float16; may be repeated")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  verb->add_option("--iterations", flags->iterations, "Timed runs of each side")
      ->check(above_zero())
      ->capture_default_str();
  verb->add_option("--warmup", flags->warmup, "Runs before these")->check(zero_or_more())->capture_default_str();
  verb->add_option("--rows", flags->size.rows, "Rows, or tokens, of the inputs")
      ->check(above_zero())
      ->capture_default_str();
  verb->add_option("--dim", flags->size.dim, "Their width; a vocabulary is 8 times that")
      ->check(above_zero())
      ->capture_default_str();
  verb->add_option("--device", flags->device, "cpu, cuda; default: a GPU where there is one")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  verb->add_option("--output", flags->output, "Write the JSON to this file")->type_name("FILE");
  verb->add_flag("--json", flags->json, "Print the JSON on stdout");
  verb->add_flag("--allow-all-kernels", flags->allow_all, "Run it from any publisher");
  verb->add_option("--project", flags->project, "Trust and locks for REPO; default HOTSWAP_PROJECT")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory);
  verb->callback([flags] { bench(*flags); });
}

}  // namespace hotswap
