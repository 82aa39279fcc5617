# SIGINT ends a run with 130 and leaves no output; SIGKILL at any moment is made good by the next run: the same bytes.
some_text 8000 1 >long.txt
start() { "$@" >"$out" 2>"$err" & pid=$!; }
wait_for() { for _ in $(seq 3000); do [[ -e $1 ]] && return; sleep 0.02; done; problem "$1 did not appear"; }

fisher=(kvq-fisher --model "$model" --text long.txt --samples 24 --seqlen 256 --threads 2)
start "${fisher[@]}" -o calib.h5
wait_for calib.h5.journal
kill -INT $pid
code=0; wait $pid || code=$?
((code == 130)) || problem "exit code $code after SIGINT"
[[ ! -e calib.h5 ]] || problem "an interrupted run made its output"
[[ -z $(find . -name '*.part*') ]] || problem "an interrupted run left a temporary file"
grep -qi interrupt "$err" || problem "the interruption is not named"

# Killed a few times: while it starts, and in the middle; then left alone. How far a run is when it dies depends on the
# machine, so it is waited for, not timed.
for sequence in 000000 000004 000009; do
  start "${fisher[@]}" -o calib.h5
  [[ $sequence == 000000 ]] || wait_for "calib.h5.journal/sequence-$sequence"
  kill -KILL $pid 2>/dev/null || true
  wait $pid 2>/dev/null || true
  [[ ! -e calib.h5 ]] || break  # it was quicker than the signal
done
[[ -e calib.h5 ]] || runs "${fisher[@]}" -o calib.h5
[[ ! -e calib.h5.journal ]] || problem "the journal was left"
runs "${fisher[@]}" -o again.h5
same_bytes calib.h5 again.h5
[[ -z $(find . -name '*.part*') ]] || problem "temporary files were left: $(find . -name '*.part*')"

# kvq-eval keeps finished windows in its folder, and goes on with them.
perplexity=(kvq-eval perplexity --model "$model" --text long.txt --seqlen 256 --max-windows 24 --quantizer "$quantizer" --threads 2)
start "${perplexity[@]}" -o report
wait_for report/.journal/window-000001
kill -INT $pid
code=0; wait $pid || code=$?
((code == 130)) || problem "exit code $code after SIGINT"
[[ -d report/.journal && ! -e report/report.json ]] || problem "what an interrupted evaluation left: $(ls -A report)"
runs "${perplexity[@]}" -o report
grep -q "finished before" "$err" || problem "nothing was resumed"
[[ $(ls -A report) == $'report.csv\nreport.html\nreport.json\nreport.md' ]] || problem "report: $(ls -A report)"
runs "${perplexity[@]}" -o whole
numbers="[(row['window_nll'], row['kl_mean'], row['kl_p99'], row['top1'], row['cache_bytes']) for row in report['results']]"
[[ $(json report/report.json "$numbers") == "$(json whole/report.json "$numbers")" ]] || problem "a resumed report differs"
