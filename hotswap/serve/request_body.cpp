#include "hotswap/serve/request_body.h"

#include <utility>

namespace hotswap::serve {
namespace {

constexpr int kMaxBodyNesting = 64;

Json parsed(const std::string& text) {
  JsonDocument body = read_json(text, {.nesting = kMaxBodyNesting, .exact_values = true});
  if (body.fault == JsonFault::kEqualKeys) {
    bad_request({"each key once in the request", body.what, "keep one of the two: readers differ in which they take",
                 "", "invalid_json"});
  }
  if (body.fault != JsonFault::kNone) {
    bad_request({"a JSON object", body.what, "send the body as one JSON object", "", "invalid_json"});
  }
  if (!body.root.is_object()) {
    bad_request({"a JSON object", came(body.root), "send the fields as {\"name\": value}", "", "invalid_json"});
  }
  return Json::of(std::move(body.root), "the request");
}

}  // namespace

JsonDocument read_json_text(std::string_view text) {
  return read_json(text, {.nesting = kMaxBodyNesting, .equal_keys = true, .exact_values = true});
}

std::string json_problem(std::string_view text) { return read_json_text(text).what; }

RequestBody::RequestBody(const std::string& text) : root_(parsed(text)) {}

std::optional<Json> RequestBody::json(const std::string& field) {
  return read(field, [](const Json& json) { return json; });
}

std::optional<double> RequestBody::number(const std::string& field, double min, double max) {
  const auto value = get<double>(field);
  if (value && !(*value >= min && *value <= max)) {
    bad_request({cat(field, " from ", min, " to ", max), cat(*value), "send a value within these bounds", field});
  }
  return value;
}

std::optional<int64_t> RequestBody::integer(const std::string& field, int64_t min, int64_t max) {
  const auto value = get<int64_t>(field);
  if (value && (*value < min || *value > max)) {
    const std::string range = max == INT64_MAX ? cat("of ", min, " or more") : cat("from ", min, " to ", max);
    bad_request({cat(field, " ", range), cat(*value), "send a value within these bounds", field});
  }
  return value;
}

void RequestBody::ignore(std::initializer_list<const char*> fields) { known_.insert(fields.begin(), fields.end()); }

void RequestBody::refuse(std::initializer_list<const char*> fields) {
  for (const char* field : fields) {
    if (root_.has(field)) {
      bad_request({cat("a request without ", field), "one with it", "leave it out: this server has no such feature",
                   field, "unsupported_parameter"});
    }
    known_.insert(field);
  }
}

std::vector<std::string> RequestBody::unknown() const {
  std::vector<std::string> names;
  for (const auto& entry : root_.raw().items()) {
    if (!known_.contains(entry.key())) names.push_back(entry.key());
  }
  return names;
}

}  // namespace hotswap::serve
