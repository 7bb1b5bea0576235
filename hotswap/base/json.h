// Strict access to JSON (and TOML, read into the same tree): an absent key, a wrong type or a number out of range is
// an Error that names the file and the key.
//
//   const Json config = Json::read("config.json");
//   const auto dim = config.at<int64_t>("hidden_size");          // absent: Error "config.json: hidden_size"
//   const auto eps = config.get<double>("rms_norm_eps", 1e-6);   // absent or null: the default
//   for (const auto& [name, entry] : config.child("weight_map").items()) entry.as<std::string>();
//   manifest.only({"schema", "layers"});                          // our own formats: an unknown key is an Error
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hotswap {

class Json {
 public:
  // `where` is what errors call the document. Duplicate keys and nesting deeper than 256 are refused.
  static Json parse(std::string_view text, std::string where);
  // What was parsed elsewhere.
  static Json of(nlohmann::ordered_json document, std::string where);
  static Json read(const std::filesystem::path& file);       // JSON
  static Json read_toml(const std::filesystem::path& file);  // dates become strings

  bool has(std::string_view key) const;  // present and not null
  Json child(std::string_view key) const;
  std::optional<Json> find(std::string_view key) const;  // none when absent or null
  std::vector<std::pair<std::string, Json>> items() const;
  std::vector<Json> elements() const;
  void only(std::initializer_list<std::string_view> keys) const;

  // T: bool, int64_t, double, std::string, std::vector of those.
  template <typename T>
  T as() const;
  template <typename T>
  T at(std::string_view key) const {
    return child(key).as<T>();
  }
  template <typename T>
  T get(std::string_view key, T otherwise) const {
    const auto found = find(key);
    return found ? found->as<T>() : std::move(otherwise);
  }

  bool is_object() const { return node_->is_object(); }
  bool is_array() const { return node_->is_array(); }
  bool is_string() const { return node_->is_string(); }
  bool is_number() const { return node_->is_number(); }
  bool is_bool() const { return node_->is_boolean(); }
  bool is_null() const { return node_->is_null(); }

  const std::string& where() const { return where_; }  // "config.json: rope_scaling.factor"
  const nlohmann::ordered_json& raw() const { return *node_; }

 private:
  Json(std::shared_ptr<const nlohmann::ordered_json> root, const nlohmann::ordered_json* node, std::string where)
      : root_(std::move(root)), node_(node), where_(std::move(where)) {}
  Json step(const nlohmann::ordered_json& node, std::string_view name) const;

  std::shared_ptr<const nlohmann::ordered_json> root_;  // keeps the document alive
  const nlohmann::ordered_json* node_;
  std::string where_;
};

}  // namespace hotswap
