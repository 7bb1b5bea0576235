// own_model: a network of your own. One of its layers runs a kernel and then stock again; its weights stay where they
// are.
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <hotswap/hotswap.h>

#include <iostream>

using namespace hotswap;

class Net : public Module {
 public:
  Net() : norm_(64, {.eps = 1e-5}) {
    own("norm", norm_);
    own("weight", weight_, {16, 64});
    each_tensor([](const std::string& /*name*/, Tensor& t) { t = at::randn(t.sizes()); });
  }
  Tensor forward(const Tensor& x) const {
    return at::relu(at::linear(norm_.forward(x), weight_));
  }  // [n, 64] -> [n, 16]

 private:
  RMSNorm norm_;   // has a Slot, so kernelize() finds it
  Tensor weight_;  // [16, 64]
};

int main() try {
  Net net;
  const Tensor x = at::randn({8, 64}), stock = net.forward(x);
  // Strict: an Error where a layer that the mapping names would stay stock.
  const auto report =
      kernelize(net, Mode::INFERENCE, {.config = {{{"RMSNorm", "hotswap/norm:RMSNorm"}}}, .strict = true});
  const double difference = (net.forward(x) - stock).abs().max().item<double>();
  std::cout << report << "\nmaximum difference from stock: " << difference << "\n";
  unkernelize(net);
  std::cout << "stock again, same values: " << (net.forward(x).equal(stock) ? "yes" : "no") << "\n";
  return difference < 1e-5 ? 0 : 1;
} catch (const Error& error) {
  std::cerr << "own_model: " << error.what() << "\n";
  return 1;
}
