# A weight that is no number stops the run, is named, and leaves nothing behind: there is nothing to resume.
cp -r "$tiny/gqa-untied/hf" hf
python3 - hf <<'PYTHON'
import json, pathlib, struct, sys
path = next(p for p in sorted(pathlib.Path(sys.argv[1]).glob("*.safetensors")))
data = bytearray(path.read_bytes())
length = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + length])
name = next(n for n in sorted(header) if n.endswith("1.self_attn.v_proj.weight"))
width = {"F32": 4, "BF16": 2, "F16": 2}[header[name]["dtype"]]
begin = 8 + length + header[name]["data_offsets"][0]
data[begin:begin + width] = {"F32": b"\0\0\xc0\x7f", "BF16": b"\xc0\x7f", "F16": b"\0\x7e"}[header[name]["dtype"]]
path.write_bytes(data)
PYTHON
before=$(state)
for command in "kvq-fisher --model hf --text $calibration_text --samples 2 --seqlen 64 -o out.h5" \
               "kvq-eval perplexity --model hf --text $evaluation_text --seqlen 64 --max-windows 2 -o report"; do
  read -ra words <<<"$command"
  code_of "${words[@]}"
  ((code == 1 || code == 2)) || problem "exit code $code: $command"
  grep -qi "nan\|infinit" "$err" || problem "the message does not say what is wrong: $command"
  [[ $(state) == "$before" ]] || problem "left behind by $command: $(diff <(echo "$before") <(state))"
done
