#pragma once
// The parts of a tokenizer.json around its model: normalizer, pre-tokenizer, decoder, post-processor.

#include <string>

#include <nlohmann/json_fwd.hpp>

#include <kvq/text/tokenizer_spec.h>

namespace kvq {

/// A field that may be missing. Throws Format, naming `where` and the field, when it is no boolean.
bool boolean_of(const nlohmann::json& object, const char* field, bool otherwise, const std::string& where);

/// Each takes the component's JSON (null when the file has none) and fills in what it decides. Throws Format, naming
/// `where` (the file), the component and what is not supported about it.
void read_normalizer(const nlohmann::json& component, const std::string& where, TokenizerSpec& spec);
/// Decides spec.symbols; needs the normalizer to have been read.
void read_pre_tokenizer(const nlohmann::json& component, const std::string& where, TokenizerSpec& spec);
/// Needs the pre-tokenizer to have been read.
void read_decoder(const nlohmann::json& component, const std::string& where, TokenizerSpec& spec);
/// Fills bos_id and adds_bos when a template puts a token first. (What a template puts behind the text is for
/// classifiers and plays no part in a stream of text.)
void read_post_processor(const nlohmann::json& component, const std::string& where, TokenizerSpec& spec);

}  // namespace kvq
