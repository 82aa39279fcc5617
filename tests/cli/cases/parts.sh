# --only-layers and --only-side: rows for parts, nothing counted, bad values named.
perplexity=(kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 2 --quantizer "$quantizer")
runs "${perplexity[@]}" --only-layers each --only-side each --json
[[ $(json "$out" 'sorted({(tuple(r["only_layers"]), r["only_side"]) for r in report["results"][1:]}) == sorted({((l,), s) for l in range(len(report["results"]) // 2) for s in ("key", "value")})') == True ]] ||
  problem "one row per layer and side"
[[ $(json "$out" 'all(r["bits_counted"] is None and r["cache_bytes"] is None for r in report["results"][1:])') == True ]] || problem "counted"
runs "${perplexity[@]}" --only-side key
grep -qE '^nuq3-1% \[key\] +3 +part +part ' "$out" || problem "row of the keys"
runs "${perplexity[@]}" --only-layers 0-1
grep -qF 'nuq3-1% [layers 0-1]' "$out" || problem "row of two layers"
refused "--only-layers 0-99" "${perplexity[@]}" --only-layers 0-99
refused "'x' is no layer" "${perplexity[@]}" --only-layers 0,x
refused "ends before it begins" "${perplexity[@]}" --only-layers 1-0
refused "a layer is missing" "${perplexity[@]}" --only-layers 0,
refused "--only-side" "${perplexity[@]}" --only-side both
refused "needs --cache simulated" "${perplexity[@]}" --only-layers 0 --cache packed
refused "needs a --quantizer" kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --only-side key
