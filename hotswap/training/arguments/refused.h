// The rows of argument_rows() that a run does not read. For sources of this folder.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "hotswap/training/arguments/argument_row.h"

namespace hotswap {

std::vector<ArgumentRow> rows_not_read();
// Names before transformers 5, or of later releases, and what stands for them.
const std::map<std::string, std::string>& renamed_arguments();

}  // namespace hotswap
