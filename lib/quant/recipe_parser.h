#pragma once
// Reads the short form of a recipe. Its grammar:
//   recipe = "none" [ ":" eviction ] | side | "K=" side "/V=" side
//   side   = (("nuq" | "int" | "nf") bits [ "-" percent "%" ] | "kvq" ("1.5" | "2" | "3" | "4") | named)
//            [ ":" word { "," word } ]
//   named  = methods of the literature, recipe_named.h
//   eviction: words of eviction_words.h, which belong to the whole recipe and may stand in either side; so do words of
//   tier_words.h. "adaptive" as a side is nuqB-1% with tiers, B said by hi=
//
// recipe_short_form.cpp writes it.

#include <string>
#include <vector>

#include <kvq/quant/recipe.h>

namespace kvq {

/// As written: what does not go together is parse_recipe()'s to say. Throws Usage naming the word.
Recipe parse_unchecked(const std::string& text);

/// "head:word,word", or "head".
std::string with_words(const std::string& head, const std::vector<std::string>& words);

}  // namespace kvq
