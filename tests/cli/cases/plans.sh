# --dry-run writes nothing, so it asks for no place to write to; a real run does.
runs kvq-fisher --model "$model" --text "$calibration_text" --samples 2 --seqlen 64 --weights -o fisher.h5
plan() { runs "${@:2}" --dry-run; [[ $(cat "$out") == *$1* ]] || problem "plan of ${*:2:2}: $(cat "$out")"; runs "${@:2}" --dry-run --json; is_json "$out"; }
plan "sequences" kvq-fisher --model "$model" --text "$calibration_text" --seqlen 64
plan "set of thresholds" kvq-threshold --calib "$calib"
plan $'\nnuq2-1%\nint4' kvq-fit --calib "$calib" --thresholds "$thresholds" --recipe nuq2-1% int4
plan $'\nw4-s0.45%' kvq-fit --model "$model" --weight-fisher fisher.h5 --weights w4-s0.45%
plan window kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64
runs kvq-fit --calib "$calib" --recipe int4 --dry-run -o int4.h5
grep -qx "int4 -> int4.h5" "$out" || problem "the file of a plan: $(cat "$out")"
[[ $(ls) == fisher.h5 ]] || problem "a plan left files: $(ls)"
refused "--recipe int4 is given twice" kvq-fit --calib "$calib" --recipe int4 int4 --dry-run
refused "-o is missing" kvq-fisher --model "$model" --text "$calibration_text" --seqlen 64
refused "-o is missing" kvq-threshold --calib "$calib"
refused "-o is missing" kvq-fit --calib "$calib" --recipe int4
refused "-o is missing" kvq-fit --model "$model" --weight-fisher fisher.h5 --weights w4
