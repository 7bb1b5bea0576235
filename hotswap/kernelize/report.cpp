#include "hotswap/kernelize/report.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <ostream>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

// "model.layers.11.mlp" -> "model.layers.*.mlp"
std::string pattern_of(const std::string& name) {
  std::string result;
  size_t start = 0;
  while (start <= name.size()) {
    const size_t end = std::min(name.find('.', start), name.size());
    const std::string part = name.substr(start, end - start);
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c); });
    result += (start == 0 ? "" : ".") + (number ? "*" : part);
    start = end + 1;
  }
  return result.empty() ? "(model)" : result;
}

struct Group {
  std::array<std::string, 3> key;  // layer, device, kernel
  std::string reason;
  int64_t count = 0;
  std::vector<std::string> places;
};

std::vector<Group> grouped(const std::vector<KernelRow>& rows) {
  std::vector<Group> groups;
  for (const KernelRow& row : rows) {
    const std::array<std::string, 3> key = {
        row.layer, row.device, row.package ? cat(*row.package, ":", row.package_layer, " v", row.version) : "stock"};
    auto found = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& g) { return g.key == key && g.reason == row.reason; });
    if (found == groups.end()) found = groups.insert(groups.end(), {key, row.reason, 0, {}});
    ++found->count;
    const std::string place = pattern_of(row.name);
    if (std::find(found->places.begin(), found->places.end(), place) == found->places.end()) {
      found->places.push_back(place);
    }
  }
  return groups;
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

}  // namespace

int64_t KernelReport::bound() const {
  return std::count_if(rows.begin(), rows.end(), [](const KernelRow& row) { return row.package.has_value(); });
}

KernelReport KernelReport::left_stock() const {
  KernelReport left;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(left.rows),
               [](const KernelRow& row) { return !row.package && !row.by_choice; });
  return left;
}

nlohmann::ordered_json KernelReport::to_json() const {
  auto layers = nlohmann::ordered_json::array();
  for (const KernelRow& row : rows) {
    nlohmann::ordered_json entry = {
        {"name", row.name}, {"layer", row.layer}, {"device", row.device}, {"mode", row.mode}};
    entry["package"] = nullptr;
    entry["package_layer"] = nullptr;
    entry["version"] = nullptr;
    entry["digest"] = nullptr;
    if (row.package) {
      entry["package"] = *row.package;
      entry["package_layer"] = row.package_layer;
      entry["version"] = row.version;
      entry["digest"] = row.digest;
    }
    entry["reason"] = row.reason;
    layers.push_back(std::move(entry));
  }
  return {{"layers", std::move(layers)}};
}

std::ostream& operator<<(std::ostream& out, const KernelReport& report) {
  out << "kernels: " << report.bound() << " of " << report.rows.size() << " slots bound";
  if (!report.rows.empty()) out << ", mode " << report.rows.front().mode;
  out << '\n';
  const auto groups = grouped(report.rows);
  std::array<size_t, 3> widths = {5, 6, 6};
  for (const Group& group : groups) {
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], group.key[i].size());
  }
  auto line = [&](const std::array<std::string, 3>& key, const std::string& count, const std::string& rest) {
    out << "  " << padded(key[0], widths[0]) << "  " << std::string(5 - std::min<size_t>(5, count.size()), ' ')
        << count;
    out << "  " << padded(key[1], widths[1]) << "  " << padded(key[2], widths[2]) << "  " << rest << '\n';
  };
  if (!groups.empty()) line({"layer", "device", "kernel"}, "slots", "where");
  for (const Group& group : groups) {
    std::string where = group.places.front();
    if (group.places.size() > 1) where += cat(" and ", group.places.size() - 1, " more");
    line(group.key, std::to_string(group.count), where + (group.reason.empty() ? "" : "; " + group.reason));
  }
  return out;
}

}  // namespace hotswap
