#pragma once
// Scratch memory for vector loops: begins at a cache line.

#include <cstdint>
#include <vector>

namespace kvq {

class AlignedFloats {
 public:
  /// Room for `count` floats; what grows is zero, what was there is lost.
  float* reserve(std::size_t count) {
    if (memory_.size() < count + kLine) memory_.assign(count + kLine, 0.0f);
    return data();
  }
  float* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (kLine - address / sizeof(float) % kLine) % kLine;
  }

 private:
  static constexpr std::size_t kLine = 64 / sizeof(float);
  std::vector<float> memory_;
};

}  // namespace kvq
