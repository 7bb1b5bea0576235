#include "hotswap/cli/print/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

constexpr double kWidth = 520, kHeight = 360, kLeft = 64, kRight = 16, kTop = 72, kBottom = 56;
constexpr const char* kColours[] = {"#8a8f98", "#1f6feb", "#d29922", "#2da44e"};
constexpr size_t kColourCount = sizeof kColours / sizeof *kColours;
const char* colour(size_t series) { return kColours[series % kColourCount]; }

std::string number(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, std::fabs(value) >= 100 ? "%.0f" : "%.3g", value);
  return buffer;
}

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

struct TextStyle {
  std::string anchor = "middle", extra;
  int size = 12;
};

std::string text_at(double x, double y, const std::string& text, const TextStyle& style = {}) {
  return cat("<text x=\"", number(x), "\" y=\"", number(y), "\" text-anchor=\"", style.anchor, "\" font-size=\"",
             style.size, "\" ", style.extra, ">", escape(text), "</text>\n");
}

std::string line_at(double x1, double y1, double x2, double y2, const std::string& stroke) {
  return cat("<line x1=\"", number(x1), "\" y1=\"", number(y1), "\" x2=\"", number(x2), "\" y2=\"", number(y2),
             "\" stroke=\"", stroke, "\"/>\n");
}

std::string legend(const std::vector<std::string>& names, double left) {
  std::string out;
  double x = left + kLeft;
  for (size_t i = 0; i < names.size(); ++i) {
    out += cat("<rect x=\"", number(x), "\" y=\"52\" width=\"12\" height=\"12\" fill=\"", colour(i), "\"/>\n");
    out += text_at(x + 16, 62, names[i], {.anchor = "start"});
    x += 28 + 7.5 * static_cast<double>(names[i].size());
  }
  return out;
}

std::string draw(const LinePanel& panel, double left) {
  double low = INFINITY, high = -INFINITY;
  size_t longest = 2;
  std::vector<std::string> names;
  for (const Line& line : panel.lines) {
    names.push_back(line.name);
    longest = std::max(longest, line.values.size());
    for (const double value : line.values) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  if (low > high) low = 0, high = 1;
  if (low == high) low -= 0.5, high += 0.5;
  const auto marks = ticks(low, high, 5);
  low = std::min(low, marks.front());
  high = std::max(high, marks.back());
  const double bottom = kHeight - kBottom, x0 = left + kLeft, x1 = left + kWidth - kRight;
  const auto x_of = [&](double step) { return x0 + (x1 - x0) * step / static_cast<double>(longest - 1); };
  const auto y_of = [&](double value) { return bottom - (bottom - kTop) * (value - low) / (high - low); };

  std::string out = text_at((x0 + x1) / 2, 40, panel.title, {.size = 14}) + legend(names, left);
  for (const double mark : marks) {
    out += line_at(x0, y_of(mark), x1, y_of(mark), "#d0d7de");
    out += text_at(x0 - 6, y_of(mark) + 4, number(mark), {.anchor = "end"});
  }
  for (const double mark : ticks(0, static_cast<double>(longest - 1), 6)) {
    if (mark <= static_cast<double>(longest - 1)) out += text_at(x_of(mark), bottom + 18, number(mark));
  }
  out += text_at((x0 + x1) / 2, bottom + 40, panel.x_label);
  out += text_at(left + 16, (kTop + bottom) / 2, panel.y_label,
                 {.extra = cat("transform=\"rotate(-90 ", number(left + 16), " ", number((kTop + bottom) / 2), ")\"")});
  for (size_t i = 0; i < panel.lines.size(); ++i) {
    std::string points;
    for (size_t step = 0; step < panel.lines[i].values.size(); ++step) {
      const double value = panel.lines[i].values[step];
      if (std::isfinite(value)) points += cat(x_of(static_cast<double>(step)), ",", y_of(value), " ");
    }
    out += cat("<polyline fill=\"none\" stroke=\"", colour(i), "\" stroke-width=\"", i == 0 ? 4 : 2, "\"",
               i == 0 ? "" : " stroke-dasharray=\"7 4\"", " points=\"", points, "\"/>\n");
  }
  return out;
}

std::string draw(const BarPanel& panel, double left) {
  double highest = 1;
  for (const BarGroup& group : panel.groups) {
    for (const double value : group.values) highest = std::max(highest, value / group.values.front());
  }
  if (!std::isfinite(highest)) highest = 1;
  const double bottom = kHeight - kBottom, x0 = left + kLeft, x1 = left + kWidth - kRight;
  const double slot = (x1 - x0) / static_cast<double>(std::max<size_t>(1, panel.groups.size()));
  const double bar = 0.8 * slot / static_cast<double>(std::max<size_t>(1, panel.series.size()));
  std::string out = text_at((x0 + x1) / 2, 40, panel.title, {.size = 14}) + legend(panel.series, left);
  out += line_at(x0, bottom, x1, bottom, "#57606a");
  for (size_t g = 0; g < panel.groups.size(); ++g) {
    const BarGroup& group = panel.groups[g];
    for (size_t i = 0; i < group.values.size(); ++i) {
      const double relative = group.values[i] / group.values.front();
      const double height = std::isfinite(relative) ? (bottom - kTop - 16) * relative / highest : 0;
      const double x = x0 + slot * static_cast<double>(g) + 0.1 * slot + bar * static_cast<double>(i);
      out += cat("<rect x=\"", number(x), "\" y=\"", number(bottom - height), "\" width=\"", number(bar - 2),
                 "\" height=\"", number(height), "\" fill=\"", colour(i), "\"/>\n");
      out += text_at(x + bar / 2, bottom - height - 4, number(group.values[i]), {.size = 11});
    }
    out += text_at(x0 + slot * (static_cast<double>(g) + 0.5), bottom + 18, group.name, {.size = 11});
  }
  return out;
}

}  // namespace

std::vector<double> ticks(double low, double high, int count) {
  const double rough = (high - low) / std::max(1, count);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    step = factor * power;
    if (step >= rough) break;
  }
  std::vector<double> marks;
  const double first = std::floor(low / step), last = std::ceil(high / step - 1e-9);
  for (double i = first; i <= last; ++i) marks.push_back(i * step);
  return marks;
}

std::string svg_plot(const std::string& title, const std::vector<LinePanel>& lines, const std::vector<BarPanel>& bars) {
  const double width = kWidth * static_cast<double>(lines.size() + bars.size());
  std::string out = cat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", number(width), "\" height=\"",
                        number(kHeight), "\" viewBox=\"0 0 ", number(width), " ", number(kHeight),
                        "\" font-family=\"sans-serif\" fill=\"#24292f\">\n<rect width=\"100%\" height=\"100%\" "
                        "fill=\"#ffffff\"/>\n");
  out += text_at(width / 2, 20, title, {.size = 15});
  double left = 0;
  for (const LinePanel& panel : lines) out += draw(panel, left), left += kWidth;
  for (const BarPanel& panel : bars) out += draw(panel, left), left += kWidth;
  return out + "</svg>\n";
}

}  // namespace hotswap
