#include "hotswap/cli/print/table.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

// Characters, not bytes: UTF-8 continuation bytes take no room.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](unsigned char byte) { return (byte & 0xC0) != 0x80; }));
}

// A figure, with its unit: "12.5 ms", "-3", "1.7x".
bool is_numeric(const std::string& text) {
  return !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-' || text[0] == '+');
}

}  // namespace

void Table::row(std::vector<std::string> cells) {
  if (cells.size() != head_.size()) {
    throw Error({.kind = ErrorKind::kInternal,
                 .wanted = cat(head_.size(), " cells in a row"),
                 .got = cat(cells.size()),
                 .next = "give each row one cell for each column"});
  }
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<size_t> widths;
  std::vector<bool> right;  // columns of nothing but figures
  for (size_t column = 0; column < head_.size(); ++column) {
    size_t width = width_of(head_[column]);
    for (const auto& row : rows_) width = std::max(width, width_of(row[column]));
    widths.push_back(width);
    right.push_back(column > 0 &&
                    std::all_of(rows_.begin(), rows_.end(), [&](const auto& row) { return is_numeric(row[column]); }));
  }
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t column = 0; column < cells.size(); ++column) {
      const std::string space(widths[column] - width_of(cells[column]), ' ');
      text += (column > 0 ? "  " : "") + (right[column] ? space + cells[column] : cells[column] + space);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + '\n';
  };
  line(head_);
  size_t total = 2 * (widths.size() - 1);
  for (const size_t width : widths) total += width;
  out += std::string(total, '-') + '\n';
  for (const auto& row : rows_) line(row);
  return out;
}

std::string fixed(double value, int decimals) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", decimals, value);
  return buffer;
}

std::string megabytes(int64_t bytes) { return fixed(static_cast<double>(bytes) / 1e6, 0) + " MB"; }

std::string microseconds_text(double microseconds) {
  if (microseconds < 1e3) return fixed(microseconds, 1) + " us";
  if (microseconds < 1e6) return fixed(microseconds / 1e3, 2) + " ms";
  return fixed(microseconds / 1e6, 2) + " s";
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

}  // namespace hotswap
