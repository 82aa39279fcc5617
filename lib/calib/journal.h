#pragma once
// The journal of a calibration: the folder `<output>.journal` with one file per finished sequence. HDF5 files do not
// survive being killed; these do.

#include <cstdint>
#include <filesystem>
#include <memory>

#include <kvq/calib/sequence_file.h>
#include <kvq/core/error.h>
#include <kvq/core/parallel.h>
#include <kvq/core/run_folder.h>

namespace kvq {

class Journal {
 public:
  /// Throws what RunFolder throws.
  Journal(const std::filesystem::path& folder, const RunIdentity& identity, const SequenceLayout& layout, bool force)
      : folder_(folder, identity, "sequence-", force), layout_(layout), identity_(identity.sha256()) {}

  static std::filesystem::path folder_of(const std::filesystem::path& output) { return output.string() + ".journal"; }

  bool there(std::int64_t sequence) const { return folder_.finished(sequence); }
  /// There, and what it was when it was written. Reads all of it.
  bool finished(std::int64_t sequence, int threads) const;
  std::shared_ptr<SequenceWriter> begin(std::int64_t sequence) const {
    return std::make_shared<SequenceWriter>(folder_.part(sequence), layout_, identity_, sequence);
  }
  SequenceReader open(std::int64_t sequence) const { return {folder_.part(sequence), layout_, identity_, sequence}; }
  /// Removes the folder: the work is done.
  void remove() { folder_.remove(); }

 private:
  RunFolder folder_;
  SequenceLayout layout_;
  std::string identity_;
};

inline bool Journal::finished(std::int64_t sequence, int threads) const {
  if (!there(sequence)) return false;
  try {
    const SequenceReader reader = open(sequence);
    parallel_for(layout_.shape.layers, threads, [&](std::int64_t layer) { reader.check(static_cast<int>(layer)); });
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace kvq
