# shellcheck shell=bash disable=SC1090,SC1091,SC2034,SC2154  # the parts share variables
# calibrate -> thresholds -> quantizers -> report. Sourced, never run; the settings are quickstart's options.

build=$root/build/release
work=${KVQ_QUICKSTART_DIR:-$root/build/quickstart}
[[ $work == /* ]] || work=$PWD/$work

# 4, 3 and 2 bits of KVQuant's method, 3 and 2 bits of ours, and those with the newest tokens exact.
recipes=(nuq4-1% nuq3-1% nuq2-1% kvq3 kvq2 kvq2:recent=64)

# choose_texts: sets calibration_text and evaluation_text, never the same bytes
choose_texts() {
  calibration_text=${text:-$(text_path calibration)}
  evaluation_text=${eval_text:-$(text_path evaluation)}
  if [[ -n $text && -z $eval_text ]]; then
    local suffix=""
    [[ ${text##*/} != *.* ]] || suffix=.${text##*.}
    calibration_text=$work/own-calibration$suffix
    evaluation_text=$work/own-evaluation$suffix
    split_text "$text" "$calibration_text" "$evaluation_text"
    say "$text: the first $(stat -c %s "$calibration_text") bytes calibrate, the other $(stat -c %s "$evaluation_text") judge"
  fi
  require_different "$calibration_text" "$evaluation_text"
}

run_pipeline() {
  mkdir -p "$work"
  exec {run_lock}>"$work/.lock"
  flock --nonblock "$run_lock" || die "another run is at work in $work"
  choose_texts

  step calib "$work/calib/calib.h5" yes "calibrating on $(some "$samples" sequence) of $seqlen tokens" \
    "$build/bin/kvq-fisher" --model "$model" --text "$calibration_text" --samples "$samples" --seqlen "$seqlen" \
    --threads "$threads" -o "$work/calib/calib.h5"
  step thresholds "$work/thresholds/thresholds.h5" no "measuring thresholds" \
    "$build/bin/kvq-threshold" --calib "$work/calib/calib.h5" --outliers 0.01,0 --threads "$threads" \
    -o "$work/thresholds/thresholds.h5"

  local recipe recipe_options=()
  for recipe in "${recipes[@]}"; do recipe_options+=(--recipe "$recipe"); done
  step fit "$work/fit/quantizers" no "fitting ${#recipes[@]} quantizers" \
    "$build/bin/kvq-fit" --calib "$work/calib/calib.h5" --thresholds "$work/thresholds/thresholds.h5" \
    "${recipe_options[@]}" --threads "$threads" -o "$work/fit/quantizers"

  local quantizers quantizer_options=() quantizer
  mapfile -t quantizers < <(LC_ALL=C ls -r "$work/fit/quantizers"/*.h5)
  for quantizer in "${quantizers[@]}"; do quantizer_options+=(--quantizer "$quantizer"); done
  step report "$work/report" no "judging on at most $(some "$windows" window) of $seqlen tokens" \
    "$build/bin/kvq-eval" perplexity --model "$model" --text "$evaluation_text" --seqlen "$seqlen" \
    --max-windows "$windows" "${quantizer_options[@]}" --threads "$threads" -o "$work/report"

  cat "$work/report.stdout"
  echo "report: $work/report/"
}
