// layers.json: which layers a package's ops serve (docs/formats.md has both of its schemas).
#pragma once

namespace hotswap {

struct Manifest;

// Fills in the manifest's layers, and what it stands in for, from layers.json in its folder. Error on anything
// malformed or unknown.
void read_layers(Manifest& manifest);

}  // namespace hotswap
