#pragma once
// The journal of a calibration: the folder `<output>.journal` with one file per finished sequence. HDF5 files do not
// survive being killed; these do.

#include <cstdint>
#include <filesystem>
#include <memory>

#include <kvq/calib/sequence_file.h>
#include <kvq/core/run_folder.h>

namespace kvq {

class Journal {
 public:
  /// Throws what RunFolder throws.
  Journal(const std::filesystem::path& folder, const RunIdentity& identity, const SequenceLayout& layout, bool force)
      : folder_(folder, identity, "sequence-", force), layout_(layout), identity_(identity.sha256()) {}

  static std::filesystem::path folder_of(const std::filesystem::path& output) { return output.string() + ".journal"; }

  bool finished(std::int64_t sequence) const { return folder_.finished(sequence); }
  std::shared_ptr<SequenceWriter> begin(std::int64_t sequence) const {
    return std::make_shared<SequenceWriter>(folder_.part(sequence), layout_, identity_);
  }
  SequenceReader open(std::int64_t sequence) const { return {folder_.part(sequence), layout_, identity_}; }
  /// Removes the folder: the work is done.
  void remove() { folder_.remove(); }

 private:
  RunFolder folder_;
  SequenceLayout layout_;
  std::string identity_;
};

}  // namespace kvq
