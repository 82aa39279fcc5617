# report.html: a page by other parsers' judgement, self-contained, with report.json's numbers; CSV and JSON agree.
check=$SOURCE/tests/cli/check_html.py
perplexity=(kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --threads 2)

runs "${perplexity[@]}" --max-windows 6 --quantizer "$quantizer" --quantizer "${quantizer/nuq3-1pct/int4}" -o report
runs python3 "$check" report
(($(grep -oE '^[0-9]+' "$out") >= 8)) || problem "too few drawings"
runs python3 -c '
import csv, json
rows = list(csv.DictReader(open("report/report.csv")))
report = json.load(open("report/report.json"))
assert len(rows) == len(report["results"]) == 3, rows
for row, result in zip(rows, report["results"]):
    assert row["name"] == result["name"]
    for key in ("nll", "ppl", "delta_nll", "delta_nll_se", "kl_mean", "kl_p99", "top1", "bits_counted", "cache_bytes"):
        assert float(row[key]) == result[key], (key, row[key], result[key])
edges = report["position_edges"]
assert edges[0] == 0 and edges[-1] == 63
for result in report["results"]:
    mean = sum(nll * (end - begin) for nll, begin, end in zip(result["position_nll"], edges, edges[1:])) / 63
    assert abs(mean - result["nll"]) < 1e-5
'

# The one model, the one window, the oracle, no quantizer at all: every form of a page is sound.
runs kvq-fit --calib "$calib" --recipe int3:range=window -o oracle.h5
runs "${perplexity[@]}" --max-windows 1 --quantizer oracle.h5 -o oracle
runs python3 "$check" oracle
runs "${perplexity[@]}" --max-windows 2 -o alone
runs python3 "$check" alone
runs "${perplexity[@]}" --max-windows 2 --quantizer "$quantizer" --only-layers each --only-side each -o parts
runs python3 "$check" parts
grep -q "Damage when one layer is quantized" parts/report.html || problem "no heat map of layers"
runs kvq-eval passkey --model "$model" --quantizer "$quantizer" --lengths 900 --depths 2 -o passkey
runs python3 "$check" passkey

# Names cannot break out of the page.
cp "$evaluation_text" '<script>alert(1)&".txt'
runs kvq-eval perplexity --model "$model" --text '<script>alert(1)&".txt' --seqlen 64 --max-windows 1 -o evil
runs python3 "$check" evil
