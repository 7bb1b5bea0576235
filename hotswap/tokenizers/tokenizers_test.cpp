#include <gtest/gtest.h>

#include "hotswap/base/json.h"
#include "hotswap/base/sha256.h"
#include "hotswap/base/file.h"
#include "hotswap/tokenizers/tokenizer.h"

TEST(Tok, Smoke) {}
