// generate MODEL PROMPT: a real model with its layers swapped for kernels.
#include <hotswap/hotswap.h>

#include <iostream>

using namespace hotswap;

int main(int argc, char** argv) try {
  if (argc != 3) throw Error({ErrorKind::kInvalidArgument, "MODEL PROMPT", cat(argc - 1), "quote the prompt"});
  const auto model = AutoModelForCausalLM::from_pretrained(argv[1], {.use_kernels = true});
  const auto tokenizer = Tokenizer::from_pretrained(argv[1]);
  const auto prompt = tokenizer.ids(argv[2]);
  const auto ids = model->generate(rows_of(prompt, 0, 1, int64_t(prompt.size())), {.max_new_tokens = 40});  // [1, time]
  std::cout << tokenizer.decode({ids.const_data_ptr<int64_t>(), size_t(ids.numel())}, true) << "\n\n"
            << model->kernel_report();
} catch (const Error& error) {
  std::cerr << "generate: " << error.what() << "\n";
  return 1;
}
