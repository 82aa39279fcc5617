#pragma once
// kvq-fisher's work: run the model on every window, one backward each (or none), keep K, V and gradients in a journal,
// assemble calib.h5 at the end. Killed at any moment it resumes from the journal.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <kvq/artifacts/provenance.h>
#include <kvq/calib/input_watch.h>
#include <kvq/core/log.h>
#include <kvq/model/backward.h>
#include <kvq/model/model.h>
#include <kvq/text/corpus.h>

namespace kvq {

/// What is stored as the gradient of a key or value that several query heads share. With g_h the part of query head h,
/// G of them: joint is Σ g_h, the gradient itself, signed. The others are magnitudes: mean is G · sqrt(mean g_h²), max
/// is G · max |g_h|. With equal parts all three have the same magnitude.
enum class QueryHeads { Joint, Mean, Max };
const char* query_heads_name(QueryHeads mode);
QueryHeads parse_query_heads(const std::string& word);  ///< throws Usage

/// `parts` are `[tokens, heads, head_dim]`; result `[tokens, kv_heads, head_dim]` fp32. Not for Joint.
at::Tensor over_query_heads(const at::Tensor& parts, std::int64_t kv_heads, QueryHeads mode);

struct CollectOptions {
  std::filesystem::path output;
  bool force = false;
  Recompute recompute = Recompute::Auto;
  Dtype dtype = Dtype::Fp32;  ///< of the model, and of attention_mass where there are no metrics
  std::string bos;            ///< resolved: "never" or "window"
  QueryHeads query_heads = QueryHeads::Joint;
  bool gradients = true;  ///< false: no backward pass; the file has metrics then
  bool metrics = false;   ///< key_metric and value_metric beside gradients
  /// The journal is written, and metrics are computed, by a thread of their own: for models that are not computed on
  /// the CPU. The same bytes. For keys and values, not for weights.
  bool overlap = false;
  Provenance provenance;               ///< config, model, tokenizer and text hashes; also the identity of the journal
  const InputWatch* inputs = nullptr;  ///< asked before a sequence counts as finished
};

struct CollectResult {
  std::vector<double> loss;  ///< `[sequences]`
  std::int64_t resumed = 0;  ///< sequences taken from the journal
  std::uintmax_t file_bytes = 0;
  double compute_seconds = 0;     ///< forward and backward
  double statistics_seconds = 0;  ///< query_moment and attention_mass
  double journal_seconds = 0;     ///< metrics of keys and writing the journal; with overlap, what is waited for it
  double assemble_seconds = 0;
};

/// Throws Usage, before anything is computed, when the output or the journal cannot be made.
void check_output(const std::filesystem::path& output, bool force);

/// `domains`: one name per stream that the windows come from.
/// The journal is the folder `<output>.journal`; it is removed when the file is complete. A journal of other settings
/// is an error that says so (Mismatch); with `force` it is replaced. Throws Io when the disk fills up, an input
/// changes, or another run holds the journal; what is finished then stays in the journal.
CollectResult collect_calibration(Model& model, const std::vector<Window>& windows,
                                  const std::vector<std::string>& domains, const CollectOptions& options,
                                  RunContext& context);

/// Bytes of calib.h5 (before compression) and of the journal for a plan; memory and time are estimates.
struct CollectPlan {
  std::int64_t sequences = 0, seqlen = 0;
  std::int64_t file_bytes = 0, journal_bytes = 0;
  std::int64_t peak_memory_bytes = 0;    ///< of the CPU
  std::int64_t device_memory_bytes = 0;  ///< of the device, where it is another one
  double seconds = 0;
};
/// Times one matrix product to judge the device. Recompute::Auto is planned with the memory that is available there
/// now.
CollectPlan plan_collection(const ModelConfig& config, Dtype dtype, std::int64_t sequences, std::int64_t seqlen,
                            Recompute recompute, QueryHeads query_heads = QueryHeads::Joint, bool gradients = true,
                            bool metrics = false, Device device = Device::Cpu);

}  // namespace kvq
