// Will a variant's library load wherever its name promises? By its symbols alone: manylinux_2_28 (glibc 2.28), torch's
// stable ABI of the variant's version, Python's stable ABI or no Python at all.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hotswap/hub/names/variant_name.h"
#include "hotswap/hub/package/elf.h"

namespace hotswap {

// One line for each thing that is wrong. `id` is metadata.json's: Python imports the library by PyInit_<id>.
std::vector<std::string> check_abi(const Elf& elf, const VariantName& variant, const std::string& id);

// A variant's folder: its metadata.json, the digests of its files, its libraries. Never throws for what it finds wrong.
std::vector<std::string> check_variant(const std::filesystem::path& folder);

// The oldest torch whose stable ABI has all that the library wants of it. None: it wants nothing, or what no known one
// has.
std::optional<MajorMinor> stable_abi_level(const Elf& elf);

}  // namespace hotswap
