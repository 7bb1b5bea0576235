#include <algorithm>
#include <cmath>
#include <numeric>

#include "hotswap/base/error.h"
#include "hotswap/cli/demo/demo_parts.h"
#include "hotswap/cli/print/plot.h"
#include "hotswap/cli/print/table.h"

namespace hotswap {
namespace {

double mean(const std::vector<double>& values) {
  return values.empty() ? NAN : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double gigabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

double max_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

}  // namespace

std::string demo_table(const DemoVariant& stock, const DemoVariant& kernels) {
  Table table({"", "stock", "kernels", "ratio"});
  const auto row = [&](const std::string& name, double a, double b, int decimals) {
    table.row({name, fixed(a, decimals), fixed(b, decimals), fixed(b / a, 2) + "x"});
  };
  table.row({"layers swapped", cat(stock.kernels_bound), cat(kernels.kernels_bound), "-"});
  row("time to first token, ms", mean(stock.first_token_ms), mean(kernels.first_token_ms), 0);
  row("generated tokens/s", mean(stock.decode_tokens_per_second), mean(kernels.decode_tokens_per_second), 1);
  row("trained tokens/s", stock.train_tokens_per_second, kernels.train_tokens_per_second, 0);
  row("peak memory of training, GB", gigabytes(stock.peak_memory), gigabytes(kernels.peak_memory), 2);
  row("loss of the first step", stock.losses.front(), kernels.losses.front(), 4);
  row("loss of the last step", stock.losses.back(), kernels.losses.back(), 4);
  return table.text() + cat("losses differ by ", fixed(max_difference(stock.losses, kernels.losses), 6),
                            " at most over ", stock.losses.size(), " steps\n");
}

std::string demo_plot(const std::string& title, const DemoVariant& stock, const DemoVariant& kernels) {
  const LinePanel losses{.title = "fine-tuning loss",
                         .x_label = "step",
                         .y_label = "loss",
                         .lines = {{stock.name, stock.losses}, {kernels.name, kernels.losses}}};
  const BarPanel bars{
      .title = "speed and memory",
      .series = {stock.name, kernels.name},
      .groups = {{"first token, ms", {mean(stock.first_token_ms), mean(kernels.first_token_ms)}},
                 {"generated tok/s", {mean(stock.decode_tokens_per_second), mean(kernels.decode_tokens_per_second)}},
                 {"trained tok/s", {stock.train_tokens_per_second, kernels.train_tokens_per_second}},
                 {"peak GB", {gigabytes(stock.peak_memory), gigabytes(kernels.peak_memory)}}}};
  return svg_plot(title, {losses}, {bars});
}

}  // namespace hotswap
