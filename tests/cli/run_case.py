#!/usr/bin/env python3
"""Runs one command-line test (README.md) and says what was different. Exit code 0: as expected."""
import argparse
import fnmatch
import os
import pathlib
import shutil
import subprocess
import sys


def matches(pattern, lines):
    """Do the lines match the patterns? A pattern '...' stands for any number of lines."""
    if not pattern:
        return not lines
    if pattern[0] == "...":
        return any(matches(pattern[1:], lines[start:]) for start in range(len(lines) + 1))
    return bool(lines) and fnmatch.fnmatchcase(lines[0], pattern[0].replace("[", "[[]")) and matches(pattern[1:], lines[1:])


def difference(case, stream, text):
    path = case.with_suffix(f".{stream}.glob")
    if not path.exists():
        return ""
    pattern = path.read_text(encoding="utf-8").splitlines()
    return "" if matches(pattern, text.splitlines()) else f"{stream} does not match {path.name}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", type=pathlib.Path)
    for name in ("bin", "source", "work"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--keep", action="store_true", help="leave the scratch folder")
    options = parser.parse_args()
    case, source = options.case.resolve(), options.source.resolve()
    scratch = options.work.resolve() / "scratch" / case.stem
    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / "folder").mkdir(parents=True)
    (scratch / "home").mkdir()

    environment = dict(os.environ, LC_ALL="C.UTF-8", HOME=str(scratch / "home"), XDG_CACHE_HOME=str(scratch / "home/cache"),
                       PATH=f"{options.bin.resolve()}{os.pathsep}{os.environ['PATH']}", SOURCE=str(source),
                       OUTPUTS=str(scratch), FIXTURE=str(scratch.parent / "pipeline/folder"))
    script = '. "$SOURCE/tests/cli/prelude.sh"; . "$0"'
    result = subprocess.run(["bash", "-euo", "pipefail", "-c", script, str(case)], cwd=scratch / "folder", env=environment,
                            stdin=subprocess.DEVNULL, capture_output=True, timeout=280)
    stdout, stderr = (stream.decode("utf-8", "replace") for stream in (result.stdout, result.stderr))

    exit_file = case.with_suffix(".exit")
    expected = int(exit_file.read_text()) if exit_file.exists() else 0
    problems = "" if result.returncode == expected else f"exit code {result.returncode}, not {expected}\n"
    problems += difference(case, "stdout", stdout) + difference(case, "stderr", stderr)
    print(f"--- stdout\n{stdout}--- stderr\n{stderr}--- {case.name}: {problems or 'as expected'}")
    if not problems and not options.keep:
        shutil.rmtree(scratch, ignore_errors=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
