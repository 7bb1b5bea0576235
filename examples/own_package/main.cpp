// own_package PACKAGE: a layer of a network trains through a kernel of your own. To make the package:
//
//   hotswap kernel init my-silu --repo me/my-silu && hotswap kernel build my-silu && own_package my-silu
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <hotswap/hotswap.h>
#include <hotswap/layers/activation.h>

#include <filesystem>
#include <iostream>

using namespace hotswap;

class Net : public Module {
 public:
  Net() : activation_(activation_kind("silu", "own_package")) {
    own("weight", weight, {16, 64});
    own("activation", activation_);
    weight = at::randn({16, 64}).requires_grad_(true);
  }
  Tensor forward(const Tensor& x) const { return activation_.forward(at::linear(x, weight)); }  // [n, 64] -> [n, 16]
  Tensor weight;                                                                                // [16, 64]

 private:
  Activation activation_;  // its Slot is "SiLU", contract activation/1
};

// The gradient of the sum of all outputs.
Tensor weight_gradient(Net& net, const Tensor& x) {
  net.weight.mutable_grad() = Tensor();
  net.forward(x).sum().backward();
  return net.weight.grad().clone();
}

int main(int argc, char** argv) try {
  if (argc != 2)
    throw Error({ErrorKind::kInvalidArgument, "PACKAGE", cat(argc - 1, " words"), "pass a built package's folder"});
  const std::string package = std::filesystem::absolute(argv[1]).string();
  Net net;
  const Tensor x = at::randn({8, 64}), stock = weight_gradient(net, x);

  const KernelConfig config{.kernel_mapping = {{"SiLU", package + ":SiLU"}}, .use_local_kernel = true};
  const auto report = kernelize(net, Mode::TRAINING, {.config = config, .strict = true});
  const double difference = (weight_gradient(net, x) - stock).abs().max().item<double>();
  std::cout << report << "\nmaximum difference between the gradients: " << difference << "\n";
  return difference < 1e-4 ? 0 : 1;
} catch (const Error& error) {
  std::cerr << "own_package: " << error.what() << "\n";
  return 1;
}
