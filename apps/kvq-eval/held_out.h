#pragma once
// One text in two: what is calibrated on, and what is judged on.

#include <filesystem>

#include "kvq-eval/experiment_plan.h"

namespace kvq::apps {

struct SplitText {
  LabelledText calibration, held_out;
};

/// Cuts the file's bytes at the end of the line that holds the last byte of its first four fifths (between characters
/// where no line ends behind it) and writes the parts to `folder`, under names that end like `text`'s, unless they are
/// there. Throws Input for a text that cannot be cut into two parts, and what read_text() throws.
SplitText split_text(const std::filesystem::path& text, const std::filesystem::path& folder);

}  // namespace kvq::apps
