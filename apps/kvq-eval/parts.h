#pragma once
// --only-layers and --only-side: parts of each quantizer by themselves, to see where the damage comes from.

#include <string>

#include "kvq-eval/inputs.h"

namespace kvq::apps {

struct PartOptions {
  std::string layers, side;  ///< empty: all
};

void add_part_options(CLI::App& command, PartOptions& options);

/// Throws Usage for a --only-layers that is no list of layers of a model that has `layers`.
void check_layer_list(const std::string& value, int layers);

/// Gives every quantizer its parts; with `each`, puts one quantizer per layer, side or both in its place. Names get the
/// part in brackets. Throws Usage for layers that the model does not have, or a packed cache.
void select_parts(const PartOptions& options, const InputOptions& input_options, Inputs& inputs);

}  // namespace kvq::apps
