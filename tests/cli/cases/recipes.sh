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

# The long form that is printed is the recipe again.
runs kvq-fit --explain --recipe K=nuq3-1%/V=nuq2-1%
cp "$out" long.toml
runs kvq-fit --explain --recipe long.toml
same_bytes "$out" long.toml
echo 'bitz = 3' >>long.toml
refused bitz kvq-fit --explain --recipe long.toml
