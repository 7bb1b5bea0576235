#include "hotswap/serve/request_body.h"

#include <cmath>

#include "hotswap/base/json_fault.h"

namespace hotswap::serve {
namespace {

constexpr int kMaxBodyNesting = 64;

// The parser itself rounds a number beyond 64 bits.
class BodyLimits : public nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  explicit BodyLimits(const std::string& text) : text_(text) {}
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t value) override {
    return value <= static_cast<uint64_t>(INT64_MAX) || fail("a number beyond 64 bits");
  }
  bool number_float(double value, const std::string& text) override {
    const bool whole = text.find_first_of(".eE") == std::string::npos;
    if (whole) return fail("a number beyond 64 bits");
    return std::isfinite(value) || fail("a number that is not finite");
  }
  bool string(std::string&) override { return true; }
  bool binary(nlohmann::ordered_json::binary_t&) override { return true; }
  bool start_object(size_t) override { return deeper(); }
  bool key(std::string&) override { return true; }
  bool end_object() override { return depth_-- > 0; }
  bool start_array(size_t) override { return deeper(); }
  bool end_array() override { return depth_-- > 0; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return fail(json_fault(text_));
  }
  std::string problem;

 private:
  bool deeper() { return ++depth_ <= kMaxBodyNesting || fail(cat("JSON nested deeper than ", kMaxBodyNesting)); }
  bool fail(const std::string& what) {
    problem = what;
    return false;
  }
  const std::string& text_;
  int depth_ = 0;
};

Json parsed(const std::string& text) {
  const std::string problem = json_problem(text);
  if (!problem.empty()) bad_request({"a JSON object", problem, "send the body as one JSON object", "", "invalid_json"});
  try {
    Json json = Json::parse(text, "the request");
    if (!json.is_object()) {
      bad_request({"a JSON object", came(json.raw()), "send the fields as {\"name\": value}", "", "invalid_json"});
    }
    return json;
  } catch (const Error& error) {
    bad_request({error.wanted(), error.got(), error.next(), "", "invalid_json"});
  }
}

}  // namespace

std::string json_problem(const std::string& text) {
  BodyLimits limits(text);
  return nlohmann::ordered_json::sax_parse(text, &limits) ? "" : limits.problem;
}

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
