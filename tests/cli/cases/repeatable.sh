# Same inputs, seed and threads: the same bytes. Another seed: other samples.
fisher=(kvq-fisher --model "$model" --text "$calibration_text" --samples 6 --seqlen 64 --threads 2)
runs "${fisher[@]}" -o calib.h5
same_bytes calib.h5 "$calib"
runs "${fisher[@]}" --seed 1 -o other-seed.h5
! cmp -s calib.h5 other-seed.h5 || problem "the seed changes nothing"
# The place of the inputs and the name of the output do not matter.
mkdir elsewhere && cp "$model" "$calibration_text" elsewhere
(cd elsewhere && kvq-fisher --model model.gguf --text calibration.txt --samples 6 --seqlen 64 --threads 2 --quiet -o x.h5 >/dev/null)
same_bytes elsewhere/x.h5 "$calib"
runs kvq-threshold --calib calib.h5 --outliers 0.01,0.05 --sinks 1 --threads 2 -o thresholds.h5
same_bytes thresholds.h5 "$thresholds"
runs kvq-fit --calib calib.h5 --thresholds thresholds.h5 --recipe nuq3-1% -o nuq3.h5 --threads 1
runs kvq-fit --calib calib.h5 --thresholds thresholds.h5 --recipe nuq3-1% -o nuq3-2.h5 --threads 2
same_bytes nuq3.h5 nuq3-2.h5
