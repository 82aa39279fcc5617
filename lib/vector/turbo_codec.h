#pragma once
// TurboQuant (Zandieh et al., arXiv 2504.19874) of the rows of a matrix: the norm in fp16, the direction rotated and
// each of its coordinates rounded to the nearest level of a codebook that needs no data (sphere_codebook.h).
//
//   y = x · 2^-exponent,  n = half(‖y‖),  z = Q y / n,  code_i = number of midpoints < z_i
//   x̂ = 2^exponent · m · Qᵀ level[code]
//
// m is n, or with another NormRule half(n · ratio). All in fp32 and in a fixed order (orthogonal_loops.h). A row whose
// norm is stored as 0 decodes to zeros.
//
// Sketch (the paper's inner-product quantizer): bits - 1 for codes, then r = z - level[code], half(‖r‖) and the bits of
// sign(S r); x̂ = 2^exponent · n · Qᵀ (level[code] + ‖r‖ · estimate). With one bit there are no codes: r = z, and its
// norm is not stored. S acts on the rotated residual, which is as good as on r itself, S having no preferred direction.
//
// Outlier channels (section 4.3 of the paper): the same split of channels for all rows; each part has its own norm,
// rotation, codebook and bits.
//
// Bytes of a row: for each part norm (2), norm of the residual (2, with a sketch beside codes), codes, signs; codes of
// b bits one behind the other from the lowest bit of the first byte on. Codes and signs are padded to whole bytes with
// zeros.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <kvq/core/error.h>
#include <kvq/vector/orthogonal.h>
#include <kvq/vector/sign_sketch.h>
#include <kvq/vector/turbo_options.h>
#include <kvq/vector/vector_codec.h>

namespace kvq {

/// What codes some channels of a row together.
struct TurboPart {
  int bits = 4;  ///< of a channel, 1 to 8; one of them is the sketch's, if there is one
  OrthogonalTransform rotation;
  std::vector<float> levels;  ///< 2^(bits - 1 or bits), ascending; empty where the sketch takes the only bit
  std::optional<SignSketch> sketch;

  int dim() const { return rotation.dim(); }
  int code_bits() const { return sketch ? bits - 1 : bits; }
  bool stores_residual() const { return sketch.has_value() && bits > 1; }
  int norms() const { return stores_residual() ? 2 : 1; }
  std::int64_t code_bytes() const;  ///< of a row, signs included
};

/// One for all heads and layers of a side.
struct TurboTables {
  std::vector<TurboPart> parts;  ///< all channels; or those that are no outliers, then the outliers
  NormRule norm = NormRule::Exact;

  int dim() const;
  std::int64_t row_bytes() const;
  std::int64_t numbers() const;  ///< in rotations, levels and sketches
};

/// Throws Usage for `dim` that the options cannot be used with: fewer than 2 channels in a part, no Hadamard rotation.
void check_turbo_dim(const TurboOptions& options, int dim);
TurboTables make_turbo_tables(const TurboOptions& options, int bits, int dim);

class TurboCodec : public VectorCodec {
 public:
  /// `outliers`: ascending channels of the second part, if there is one. exponent in [-126, 127]. Throws Mismatch for
  /// parts that do not go with each other or with `outliers`.
  TurboCodec(std::shared_ptr<const TurboTables> tables, std::vector<std::int32_t> outliers, int exponent);

  int dim() const override { return dim_; }
  std::int64_t row_bytes() const { return row_bytes_; }
  void encode(std::span<const float> x, std::vector<std::byte>& out) const override;
  void decode(std::span<const std::byte> bytes, std::span<float> x) const override;

  /// A part and where it stands.
  struct Placed {
    const TurboPart* part;
    std::vector<std::int32_t> channels;  ///< empty: all of the row, in order
    std::vector<float> borders;
    std::int64_t offset;  ///< of its bytes in the row's
  };
  const std::vector<Placed>& parts() const { return parts_; }
  bool has_sketch() const { return parts_.front().part->sketch.has_value(); }

  /// Rows `[rows, dim]` in place: each part's channels become what its rotation makes of them, or the inverse.
  void rotate(std::span<float> x) const { turn(x, &OrthogonalTransform::forward); }
  void unrotate(std::span<float> x) const { turn(x, &OrthogonalTransform::inverse); }

 private:
  struct Scratch;

  void turn(std::span<float> x,
            void (OrthogonalTransform::*apply)(std::span<const float>, std::span<float>) const) const;
  void gather(const Placed& placed, std::span<const float> x, std::int64_t rows, std::vector<float>& y) const;
  void encode_part(const Placed& placed, std::span<const float> x, std::int64_t first, std::int64_t rows,
                   std::byte* out, Scratch& scratch) const;
  void decode_part(const Placed& placed, const std::byte* in, std::int64_t first, std::int64_t rows, std::span<float> x,
                   Scratch& scratch) const;

  std::shared_ptr<const TurboTables> tables_;
  const OrthogonalLoops* loops_;
  int dim_, exponent_;
  std::int64_t row_bytes_;
  std::vector<Placed> parts_;
};

}  // namespace kvq
