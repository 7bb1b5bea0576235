// The table: the rows of every family, one behind the other.
#include "hotswap/kernelize/contract/contract.h"

namespace hotswap {
namespace binding {

// Each family's file has its rows: name, schemas, binding and what a layer may claim.
std::vector<Contract> norm_contracts();
std::vector<Contract> activation_contracts();
std::vector<Contract> mlp_contracts();
std::vector<Contract> moe_contracts();
std::vector<Contract> rotary_contracts();
std::vector<Contract> linear_contracts();
std::vector<Contract> loss_contracts();
std::vector<Contract> attention_contracts();
std::vector<Contract> decoder_layer_contracts();
std::vector<Contract> deformable_contracts();
std::vector<Contract> mamba_contracts();
std::vector<Contract> adamw_contracts();

}  // namespace binding
namespace {

const std::vector<Contract>& table() {
  static const std::vector<Contract> rows = [] {
    using namespace binding;  // NOLINT(google-build-using-namespace)
    std::vector<Contract> all;
    for (const auto family : {norm_contracts, activation_contracts, mlp_contracts, moe_contracts, rotary_contracts,
                              linear_contracts, loss_contracts, attention_contracts, decoder_layer_contracts,
                              deformable_contracts, mamba_contracts, adamw_contracts}) {
      for (Contract& row : family()) all.push_back(std::move(row));
    }
    return all;
  }();
  return rows;
}

}  // namespace

const Contract* find_contract(const std::string& name) {
  for (const Contract& row : table()) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

std::vector<std::string> contract_names() {
  std::vector<std::string> names;
  for (const Contract& row : table()) names.push_back(row.name);
  return names;
}

}  // namespace hotswap
