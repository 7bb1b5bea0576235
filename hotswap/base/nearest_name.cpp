#include "hotswap/base/nearest_name.h"

#include <algorithm>
#include <numeric>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

// Letters inserted, dropped, changed, or swapped with their neighbour (optimal string alignment).
size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<size_t> two_back, back, row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    two_back = std::move(back);
    back = row;
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({back[j] + 1, row[j - 1] + 1, back[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], two_back[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view word, const std::vector<std::string>& names) {
  std::optional<std::string> nearest;
  size_t fewest = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& name : names) {
    const size_t edits = edits_between(word, name);
    if (edits >= std::min(fewest, std::max(word.size(), name.size()))) continue;
    fewest = edits;
    nearest = name;
  }
  return nearest;
}

std::string nearest_name_hint(std::string_view word, const std::vector<std::string>& names) {
  const auto nearest = nearest_name(word, names);
  return nearest ? cat("did you mean ", *nearest, "?") : "use one of these";
}

}  // namespace hotswap
