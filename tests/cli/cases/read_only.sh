# A folder that cannot be written, and no disk space: refused at once, or failed with nothing but the journal left.
run_all() {
  refused ro kvq-fisher --model "$model" --text "$calibration_text" --samples 1 --seqlen 64 -o ro/out.h5
  refused ro kvq-threshold --calib "$calib" --outliers 0.01 -o ro/out.h5
  refused ro kvq-fit --calib "$calib" --recipe int4 -o ro/out.h5
  refused ro kvq-fit --calib "$calib" --recipe int4 --recipe int3 -o ro/quantizers
  refused ro kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 1 -o ro/report
}
mkdir ro
if ((EUID != 0)); then
  chmod 555 ro
  run_all
else  # modes do not bind root, a read-only mount does
  can_mount || skip "no mount namespaces here"
  export -f run_all refused fails code_of problem state
  export model calib calibration_text evaluation_text out err
  unshare --mount bash -euo pipefail -c 'mount -t tmpfs -o ro none ro && run_all'
fi
