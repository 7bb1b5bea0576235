// Where the Hub is, where its cache is, who we are. One value, read once from the environment, given to everything.
#pragma once

#include <filesystem>
#include <string>

#include "hotswap/hub/net/http.h"

namespace hotswap {

struct HubOptions {
  std::string endpoint = "https://huggingface.co";  // without a slash at its end
  std::string token = {};                           // empty: none
  std::filesystem::path cache = {};                 // of models, datasets and spaces
  std::filesystem::path kernels_cache = {};         // of kernels
  bool offline = false;
  bool symlinks = true;  // false: never, even where the file system has them
  bool progress = true;
  double ttl_s = 600;  // how long an answer about names (refs, publishers) is taken from the cache, unasked
  int parallel = 8;    // connections of one download, over files and ranges
  int64_t parallel_from = 64 << 20;  // bytes from which one file comes by several connections ...
  int64_t segment = 32 << 20;        // ... that ask for so many bytes at a time
  double head_s = 10;                // for HEAD and JSON answers about a file that is cached in some state already
  HttpOptions http = {};

  // HF_ENDPOINT, HF_TOKEN or the token file, HF_HOME, HF_HUB_CACHE, KERNELS_CACHE, HF_HUB_OFFLINE, ... with the meaning
  // that huggingface_hub gives them; the table is in base/env.cpp.
  static HubOptions from_env();
};

std::filesystem::path hf_home();  // HF_HOME, else $XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface

}  // namespace hotswap
