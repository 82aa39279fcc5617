# The packed cache: the bits themselves, judged as the simulated cache is.
for cache in simulated packed; do
  runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 3 --threads 2 -o "$cache" \
    --cache "$cache" --quantizer "$quantizer" --quantizer "$FIXTURE/quantizers/nuq2-5pct.h5" --quantizer "$FIXTURE/quantizers/int4.h5"
  is_json "$cache/report.json"
  grep -q "cache = \"$cache\"" "$cache/report.md" || [[ $cache == simulated ]] || problem "settings in report.md"
done
compare() {
  python3 -c "
import json
a, b = (json.load(open(name + '/report.json'))['results'] for name in ('simulated', 'packed'))
print($1)"
}
[[ $(compare "[row['name'] for row in a] == [row['name'] for row in b]") == True ]] || problem "names"
[[ $(compare "all(abs(x - y) < 1e-3 for r, s in zip(a, b) for x, y in zip(r['window_nll'], s['window_nll']))") == True ]] ||
  problem "NLL: $(compare "[(r['nll'], s['nll']) for r, s in zip(a, b)]")"
[[ $(compare "[r['cache_bytes'] for r in a] == [r['cache_bytes'] for r in b]") == True ]] ||
  problem "bytes: $(compare "[(r['cache_bytes'], s['cache_bytes']) for r, s in zip(a, b)]")"
[[ $(compare "[r['bits_counted'] for r in a] == [r['bits_counted'] for r in b]") == True ]] || problem "counted bits"

refused "--cache packed: there is no --quantizer" kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --cache packed

# A continuation, token by token.
for cache in simulated packed; do
  runs kvq-eval passkey --model "$model" --quantizer "$quantizer" --lengths 900 --depths 1 --cache "$cache" -o "passkey-$cache"
done
same=$(python3 -c "
import json
a, b = (json.load(open('passkey-' + name + '/report.json'))['results'] for name in ('simulated', 'packed'))
kinds = [[row.pop('cache') for row in rows] for rows in (a, b)]
print(a == b, *kinds)")
[[ $same == "True ['', 'simulated'] ['', 'packed']" ]] || problem "continuations differ, or not of these caches: $same"

# An oracle is no cache.
runs kvq-fit --calib "$calib" --recipe int4:range=window -o oracle.h5
fails 2 "range=window" kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --quantizer oracle.h5 --cache packed -o oracle
[[ ! -e oracle ]] || problem "a folder was left behind"

# Groups, tokens that wait, formats of their own: the same again.
for recipe in kivi2:group=8,recent=16 atom4 nuq3:recent=8 fp8 turbo3 K=turbo2:qjl,rope=post/V=turbo4:rotation=hadamard,recent=8 \
  K=scalar4/V=pq:m=4,bits=3; do
  runs kvq-fit --calib "$calib" --recipe "$recipe" -o waiting.h5 --force
  for cache in simulated packed; do
    runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 2 --quantizer waiting.h5 \
      --cache "$cache" -o "$cache" --force
  done
  [[ $(compare "all(abs(x - y) < 1e-3 for r, s in zip(a, b) for x, y in zip(r['window_nll'], s['window_nll']))") == True ]] ||
    problem "$recipe, NLL: $(compare "[(r['nll'], s['nll']) for r, s in zip(a, b)]")"
  [[ $(compare "[r['cache_bytes'] for r in a] == [r['cache_bytes'] for r in b]") == True ]] || problem "$recipe: bytes"
done

# Nor is there a page for every recipe: said before anything is computed.
for recipe in delta3:anchor=16 kivi2:group=128,recent=128; do
  runs kvq-fit --calib "$calib" --recipe "$recipe" -o unpackable.h5 --force
  fails 2 "the packed cache cannot hold it" kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 \
    --quantizer unpackable.h5 --cache packed -o oracle
  [[ ! -e oracle ]] || problem "a folder was left behind"
  runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 1 --quantizer unpackable.h5 -o ok
  rm -r ok
done
