// Plots as SVG text: panels of lines and of bars side by side, with axes, ticks and a legend. What the demo draws.
#pragma once

#include <string>
#include <vector>

namespace hotswap {

struct Line {
  std::string name;
  std::vector<double> values;  // y at x = 0, 1, 2, ...
};

struct LinePanel {
  std::string title, x_label, y_label;
  std::vector<Line> lines;  // each later one is dashed, so that equal curves stay visible
};

struct BarGroup {
  std::string name;
  std::vector<double> values;  // one a series
};

// Groups have units of their own, so each is drawn relative to its first value; the bars carry their values as text.
struct BarPanel {
  std::string title;
  std::vector<std::string> series;
  std::vector<BarGroup> groups;
};

std::string svg_plot(const std::string& title, const std::vector<LinePanel>& lines, const std::vector<BarPanel>& bars);

// Round tick positions that cover [low, high], about `count` of them.
std::vector<double> ticks(double low, double high, int count);

}  // namespace hotswap
