// Are the lists of files in the cache those that the Hub has today? Behind `hotswap cache verify --online`: what no
// hash on this disk can tell, because the list is what the hashes are taken from.
#pragma once

#include "hotswap/hub/cache/cache_management.h"
#include "hotswap/hub/hub.h"

namespace hotswap {

// Of each revision: its cached list, and its snapshot's files, against the Hub's list. What is wrong can be removed
// (remove_wrong), and the next use downloads it. A commit that the Hub does not know is a problem as well, but nothing
// to remove: it may have been installed here.
CacheVerdict verify_file_lists(Hub& hub, const CachedRepo& repo);

}  // namespace hotswap
