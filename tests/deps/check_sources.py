#!/usr/bin/env python3
"""Checks rules on the sources that a compiler does not: which module includes which, and what library code may not do.

usage: check_sources.py SOURCE_DIR      exit 0: all rules hold; 1: one line per violation on stdout
"""
import pathlib
import re
import sys

# DESIGN, section 4: folder -> modules whose headers its files may include directly (its own always).
LAYOUT = "kernels/layout"
KERNELS = {"layout": LAYOUT, "kernels_cuda": "kernels/cuda"}  # targets' names -> folders
MAY_INCLUDE = {
    "kernels/layout": set(),
    "kernels/reference": {LAYOUT},
    "kernels/cuda": {LAYOUT},
    "kernels/bench": {LAYOUT, "kernels/cuda"},
    "lib/core": set(),
    "lib/config": {"core"},
    "lib/stats": {"core"},
    "lib/coding": {"core"},
    "lib/vector": {"core", "coding", "stats"},
    "lib/formats": {"core"},
    "lib/report": {"core"},
    "lib/text": {"core", "formats"},
    "lib/tasks": {"core", "formats", "text"},
    "lib/quant": {"core", "stats", LAYOUT, "vector"},
    "lib/artifacts": {"core", "config", "vector", "quant"},
    "lib/model": {"core", "formats"},
    "lib/cache": {"core", LAYOUT, "quant", "vector", "model"},
    "lib/cuda": {"core", LAYOUT, "kernels/cuda", "quant", "model", "cache"},
    "lib/calib": {"core", "stats", "text", "model", "artifacts"},
    "lib/fit": {"core", "stats", "vector", "quant", "artifacts"},
    "lib/eval": {"core", "stats", "text", "tasks", "quant", "model", "cache", "fit", "artifacts", "report"},
}
# Third-party headers that belong to one place.
ONLY_IN = {
    r"hdf5\.h|H5.*\.h": {"lib/artifacts"},
    r"toml\+\+/.*": {"lib/config", "lib/artifacts", "apps/common"},
    r"pcre2\.h|utf8proc\.h": {"lib/text"},
    r"openssl/.*": {"lib/core"},
    r"zlib\.h": {"lib/artifacts", "lib/core"},
    r"spdlog/.*": {"apps/common"},
    r"CLI/.*": {"apps"},
    r"(ATen|c10|caffe2|torch)/.*": {"lib/model", "lib/cache", "lib/cuda", "lib/calib", "lib/eval"},
}
NOT_IN_HEADERS = {
    r"nlohmann/(?!json_fwd\.hpp).*": "a header may include nlohmann/json_fwd.hpp only",
    r"toml\+\+/.*": "toml++ stays out of headers",
    r"spdlog/.*": "spdlog stays out of headers",
}
LIBRARY_RULES = [
    (r"\bstd::c(out|err|log)\b", "library code never prints"),
    (r"(?<![\w.>])(?:std::)?(?:f|v|vf)?printf\s*\(", "library code never prints"),
    (r"(?<![\w.>])(?:std::)?(?:f?puts|f?putc|putchar|perror)\s*\(", "library code never prints"),
    (r"\bfmt::print(?:ln)?\s*\(", "library code never prints"),
    (r"(?<![\w.>])(?:std::|::)?(?:exit|_Exit|_exit|quick_exit|abort|terminate)\s*\(", "library code never ends the process"),
    (r"(?<![\w.>])assert\s*\(", "KVQ_ASSERT throws in every build type; assert ends the process"),
]
FORBIDDEN_IN_LIBRARY = r"spdlog/.*|CLI/.*|iostream|format|print"
MAX_MAIN_LINES = 80


def without_comments_and_strings(text):
    """Blanks comments and literals, keeping line breaks, so that words in them are no violations."""
    pattern = re.compile(
        r'R"([^()\s\\]{0,16})\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def includes(text):
    """(line, spelling, project?) of every #include. `project`: in quotes."""
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*(?:<([^>\n]+)>|"([^"\n]+)")', text, re.MULTILINE):
        yield text.count("\n", 0, match.start()) + 1, match.group(1) or match.group(2), match.group(2) is not None


def module_of(include):
    """Module that an include of <kvq/...> belongs to: `core` of kvq/core/error.h, `kernels/layout` of kvq/kernels/layout/x.h."""
    parts = include.split("/")
    return "/".join(parts[1:3]) if parts[1] == "kernels" else parts[1]


def folder_of(path):
    """The row of the table that a file belongs to, or None."""
    for folder in MAY_INCLUDE:
        if path == folder or path.startswith(folder + "/"):
            return folder
    return None


def check_file(path, text):
    """Violations of one file as (line, message). `path` is relative to the source folder, with '/'."""
    found = []
    header = path.endswith(".h")
    folder = folder_of(path)
    library = path.startswith(("lib/", "kernels/"))
    code = without_comments_and_strings(text)
    if library and folder is None:
        found.append((1, "this folder is not in the table of modules (DESIGN, section 4; tests/deps)"))
    for line, include, quoted in includes(text):
        if include == "torch/torch.h" or include == "torch/extension.h":
            found.append((line, f"<{include}> costs 20 s a file: include ATen/core/Tensor.h and single ATen/ops"))
        if include.startswith("kvq/") and folder is not None:
            module = module_of(include)
            own = folder.removeprefix("lib/")
            if module != own and module not in MAY_INCLUDE[folder]:
                allowed = ", ".join(sorted(MAY_INCLUDE[folder])) or "none"
                found.append((line, f"<{include}>: {folder} may include only its own headers and those of: {allowed}"))
            if "/internal/" in include and module != own:
                found.append((line, f"<{include}> is internal to {module}"))
        if library and quoted and not include.endswith("_body.h"):
            found.append((line, f'"{include}": project headers are included as <kvq/...>'))
        if library and re.fullmatch(FORBIDDEN_IN_LIBRARY, include):
            found.append((line, f"<{include}> has no place in the library"))
        if not path.startswith("tests/"):
            for pattern, places in ONLY_IN.items():
                if re.fullmatch(pattern, include) and not path.startswith(tuple(place + "/" for place in places)):
                    found.append((line, f"<{include}> belongs to {', '.join(sorted(places))} only"))
            for pattern, why in NOT_IN_HEADERS.items():
                if header and re.fullmatch(pattern, include):
                    found.append((line, f"<{include}>: {why}"))
    if library:
        for pattern, why in LIBRARY_RULES:
            for match in re.finditer(pattern, code):
                found.append((code.count("\n", 0, match.start()) + 1, f"'{match.group().strip()}': {why}"))
    # x_body.h is a piece of x.cpp that is compiled several times over (once per instruction set), not a header.
    if header and not path.endswith("_body.h") and not re.search(r"^#pragma once$", text, re.MULTILINE):
        found.append((1, "a header begins with #pragma once"))
    if re.fullmatch(r"apps/[^/]+/main\.cpp", path) and text.count("\n") >= MAX_MAIN_LINES:
        found.append((text.count("\n"), f"a main.cpp has fewer than {MAX_MAIN_LINES} lines: parse, resolve, call, print"))
    return found


def check_links(source):
    """The LINK lists of the CMakeLists give exactly what the table allows, and are all there."""
    for folder, allowed in MAY_INCLUDE.items():
        path = source / folder / "CMakeLists.txt"
        if not path.is_file():
            continue
        match = re.search(r"kvq_module\([^)]*?\bLINK\s+([^)]*?)(?:\b(?:PRIVATE|PUBLIC|FOLDER|PRECOMPILE|PRECOMPILED_BY)\b|\))", path.read_text(), re.DOTALL)
        linked = {KERNELS.get(name, name) for name in match.group(1).split()} if match else set()
        for name in sorted(linked - allowed):
            yield f"{folder}/CMakeLists.txt: links {name}, which the table of DESIGN, section 4, does not allow"


def main():
    source = pathlib.Path(sys.argv[1]).resolve()
    violations, files = list(check_links(source)), 0
    for top in ("lib", "kernels", "apps", "tests"):
        for path in sorted((source / top).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".cuh") or not path.is_file():
                continue
            files += 1
            name = path.relative_to(source).as_posix()
            violations += [f"{name}:{line}: {message}" for line, message in check_file(name, path.read_text(encoding="utf-8"))]
    print("\n".join(violations) if violations else f"{files} files keep to the rules")
    if files == 0:
        print(f"no sources under {source}")
    return 1 if violations or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
