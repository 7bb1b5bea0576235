// The members of a struct as a contract's schema has them: one list is the schema's text, the order of the arguments
// and the way back. An undefined tensor is passed as None; an argument without a member always is.
//
//   const Fields<Options> kFields = {{"Tensor? bias", &Options::bias}, {"float eps", &Options::eps}};
//   "(Tensor x, " + schema_of(kFields) + ") -> Tensor"
//   push_fields(values, options, kFields);
//   take_fields(values, next, options, kFields);  // fields after the last value keep their defaults
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "hotswap/base/error.h"
#include "hotswap/kernelize/contract/values.h"

namespace hotswap::binding {

template <typename Struct>
struct Field {
  const char* declaration;
  std::variant<std::monostate, Tensor Struct::*, std::optional<Tensor> Struct::*, double Struct::*, int64_t Struct::*,
               bool Struct::*, std::string Struct::*>
      member;
};
template <typename Struct>
using Fields = std::vector<Field<Struct>>;

template <typename Struct>
std::string schema_of(const Fields<Struct>& fields) {
  std::vector<std::string> declared;
  for (const auto& field : fields) declared.emplace_back(field.declaration);
  return join(declared);
}

template <typename Struct>
void push_fields(Values& values, const Struct& from, const Fields<Struct>& fields) {
  for (const auto& field : fields) {
    std::visit(
        [&](auto member) {
          using Member = decltype(member);
          if constexpr (std::is_same_v<Member, std::monostate>) {
            values.emplace_back();
          } else if constexpr (std::is_same_v<Member, Tensor Struct::*>) {
            const Tensor& tensor = from.*member;
            values.push_back(tensor.defined() ? c10::IValue(tensor) : c10::IValue());
          } else {
            push(values, from.*member);
          }
        },
        field.member);
  }
}

template <typename Struct>
void take_fields(const Values& values, size_t& next, Struct& to, const Fields<Struct>& fields) {
  for (const auto& field : fields) {
    if (next == values.size()) return;
    const c10::IValue& value = values[next++];
    std::visit(
        [&](auto member) {
          if constexpr (!std::is_same_v<decltype(member), std::monostate>) {
            using T = std::decay_t<decltype(to.*member)>;
            if (!value.isNone()) to.*member = value.template to<T>();
          }
        },
        field.member);
  }
}

}  // namespace hotswap::binding
