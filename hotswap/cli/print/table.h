// A table of text for people: columns as wide as their widest cell, numbers to the right.
//   Table table({"layer", "GB/s"});  table.row({"RMSNorm", "31.2"});  std::cout << table.text();
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hotswap {

class Table {
 public:
  explicit Table(std::vector<std::string> head) : head_(std::move(head)) {}
  void row(std::vector<std::string> cells);
  std::string text() const;

 private:
  std::vector<std::string> head_;
  std::vector<std::vector<std::string>> rows_;
};

std::string fixed(double value, int decimals);       // 3.14159, 2 -> "3.14"
std::string megabytes(int64_t bytes);                // "1234 MB", of 10^6 bytes
std::string microseconds_text(double microseconds);  // "12.3 us", "4.56 ms", "1.20 s"
std::string csv_cell(const std::string& text);       // quoted where it must be

}  // namespace hotswap
