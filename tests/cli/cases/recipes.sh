# Recipes that do not exist are refused with what exists; a missing threshold is named.
fit=(kvq-fit --calib "$calib" --thresholds "$thresholds" -o out.h5)
refused nuq9 "${fit[@]}" --recipe nuq9
refused nuq0 "${fit[@]}" --recipe nuq0
refused nuqq "${fit[@]}" --recipe nuqq
refused "nuq" "${fit[@]}" --recipe turbo9000
refused sinks "${fit[@]}" --recipe nuq3:sinks=1
refused share "${fit[@]}" --recipe nuq3:share=table
refused layer "${fit[@]}" --recipe nuq3:share=table
refused 200 "${fit[@]}" --recipe nuq3-200%
refused "1%%" "${fit[@]}" --recipe nuq3-1%%
refused missing.toml "${fit[@]}" --recipe missing.toml
refused "int4" "${fit[@]}" --recipe int4 --recipe int4

# Thresholds for this fraction, or this number of sinks, are not in the file; or there is no file.
refused 0.02 "${fit[@]}" --recipe nuq3-2%
refused 3 "${fit[@]}" --recipe nuq3-1%:sink=3
refused thresholds kvq-fit --calib "$calib" -o out.h5 --recipe nuq3-1%

# Groups, rules, methods of the literature: what does not fit is named.
refused "channel-group or token-group" "${fit[@]}" --recipe int4:group=64
refused "pages hold 64" "${fit[@]}" --recipe int4:key=channel-group,group=48
refused "another axis" "${fit[@]}" --recipe q4_0:key=channel
refused "must divide" "${fit[@]}" --recipe nuq3:share=7
refused "blocks of 32" "${fit[@]}" --recipe q8_0 # heads of 8 channels
for recipe in kivi2 atom3 flexgen4 q4_0 q8_0 fp8; do
  runs kvq-fit --explain --recipe "$recipe"
  [[ $(head -n 1 "$out") == "# $recipe" ]] || problem "name of $recipe"
done

# The long form that is printed is the recipe again.
runs kvq-fit --explain --recipe K=nuq3-1%/V=nuq2-1%
cp "$out" long.toml
runs kvq-fit --explain --recipe long.toml
same_bytes "$out" long.toml
echo 'bitz = 3' >>long.toml
refused bitz kvq-fit --explain --recipe long.toml
