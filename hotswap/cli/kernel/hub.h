// What the verbs of `kernel` that ask the Hub have in common.
#pragma once

#include <string>

#include "hotswap/hub/get_kernel.h"

namespace hotswap {

System kernel_system();  // this process with its GPU, where there is one

// Where a repository lies, whoever published it: for verbs that look and run nothing.
KernelLocation look_up(Hub& hub, const KernelRef& ref);

// The folders of the variant that fits here, or of all, downloaded but not verified.
std::vector<std::filesystem::path> download_to_look(const KernelRef& ref, bool all_variants);

// `kernel info` of a repository; without a revision: its newest version, else main.
void show_hub_kernel(const KernelRef& asked, bool json);

// "", or why this names no repository of the Hub: a CLI11 check.
std::string check_repo_argument(const std::string& text);
std::string check_folder_or_repo_argument(const std::string& text);  // the same where a folder does as well

}  // namespace hotswap
