#include "hotswap/chat/jinja/parameters.h"

#include "hotswap/chat/jinja/compare.h"
#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"

namespace hotswap::jinja {

Parameters::Parameters(const char* function, const Arguments& arguments, std::initializer_list<const char*> names,
                       size_t required)
    : function_(function), values_(names.size()) {
  if (arguments.positional.size() > names.size()) {
    type_error(
        cat(function_, "() takes at most ", names.size(), " arguments (", arguments.positional.size(), " given)"));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    size_t at = 0;
    while (at < names.size() && name != names.begin()[at]) ++at;
    if (at == names.size()) type_error(cat(function_, "() got an unexpected keyword argument '", name, "'"));
    if (values_[at]) type_error(cat(function_, "() got multiple values for argument '", name, "'"));
    values_[at] = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!values_[i]) type_error(cat(function_, "() missing required argument: '", names.begin()[i], "'"));
  }
}

std::optional<Value> Parameters::optional(size_t i) const {
  return values_[i] && !values_[i]->is(Kind::kNone) ? values_[i] : std::nullopt;
}

bool Parameters::truth(size_t i, bool otherwise) const { return values_[i] ? truthy(*values_[i]) : otherwise; }

int64_t Parameters::integer(size_t i, int64_t otherwise) const {
  if (!values_[i]) return otherwise;
  if (values_[i]->is_undefined()) fail_undefined(*values_[i]);
  if (!values_[i]->is_integer()) {
    type_error(cat("'", type_name(*values_[i]), "' object cannot be interpreted as an integer in ", function_, "()"));
  }
  return values_[i]->as_int();
}

const std::string& Parameters::text(size_t i) const {
  if (!values_[i]->is_string()) {
    type_error(cat(function_, "() argument must be str, not ", type_name(*values_[i])));
  }
  return values_[i]->str();
}

std::string Parameters::text(size_t i, const char* otherwise) const { return values_[i] ? text(i) : otherwise; }

}  // namespace hotswap::jinja
