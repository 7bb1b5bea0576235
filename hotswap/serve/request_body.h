// A request's JSON object, field by field. Each refusal names the field; what was never read is listed afterwards.
#pragma once

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/base/json_reader.h"
#include "hotswap/serve/api_error.h"

namespace hotswap::serve {

// What a model wrote, or a client as a text in its request: at most 64 deep, every number finite and, where whole,
// within 64 bits. Of equal keys the last one counts.
JsonDocument read_json_text(std::string_view text);
// Why it is none: JsonDocument::what
std::string json_problem(std::string_view text);

class RequestBody {
 public:
  // ApiError 400 unless `text` is a JSON object: UTF-8, at most 64 deep, no key twice, every number finite and, where
  // whole, within 64 bits.
  explicit RequestBody(const std::string& text);

  // None where the field is absent or null. ApiError 400 on another type.
  template <class T>
  std::optional<T> get(const std::string& field) {
    return read(field, [](const Json& json) { return json.as<T>(); });
  }
  std::optional<double> number(const std::string& field, double min, double max);
  std::optional<int64_t> integer(const std::string& field, int64_t min, int64_t max);
  bool flag(const std::string& field, bool otherwise = false) { return get<bool>(field).value_or(otherwise); }
  std::optional<Json> json(const std::string& field);
  const nlohmann::ordered_json& raw() const { return root_.raw(); }

  void ignore(std::initializer_list<const char*> fields);
  void refuse(std::initializer_list<const char*> fields);  // ApiError 400 where one is there
  std::vector<std::string> unknown() const;                // fields that were neither read nor ignored

  // Calls `get`; an Error in it becomes an ApiError 400 with the field's name.
  template <class Get>
  auto guarded(const std::string& field, const Get& get) -> decltype(get()) {
    try {
      return get();
    } catch (const Error& error) {
      bad_request({error.wanted(), error.got(), error.next(), field});
    }
  }

 private:
  template <class Read>
  auto read(const std::string& field, const Read& read) -> std::optional<decltype(read(std::declval<const Json&>()))> {
    known_.insert(field);
    const auto found = root_.find(field);
    if (!found) return std::nullopt;
    return guarded(field, [&] { return read(*found); });
  }
  Json root_;
  std::set<std::string> known_;
};

}  // namespace hotswap::serve
