#!/usr/bin/env python3
"""Every source includes, itself or through headers, what declares the project's names that it uses. Sources are compiled several
to a unit by default, where one may use what another has included; this finds it without compiling them one by one.

usage: check_includes.py SOURCE_DIR      exit 0: all do; 1: one line per name on stdout
"""
import pathlib
import re
import sys

from check_sources import includes, without_comments_and_strings

# Declarations at namespace level begin in the first column (clang-format sees to that).
TYPES = re.compile(r"^(?:class|struct|enum class|enum|using)\s+(?:\[\[\w+\]\]\s+)?(\w+)(?=(?:\s+final)?\s*[:{=])", re.MULTILINE)
FUNCTIONS = re.compile(r"^(?!using|namespace|template|return|else|#|//|friend)[\w:\[\]][\w:<>,&*\[\] \n]*?[ &*>](\w+)\(", re.MULTILINE)
FORWARD = re.compile(r"^(?:class|struct|enum class|enum)\s+(\w+)(?:\s*:[^;{]*)?;", re.MULTILINE)


def declared_in(code):
    return set(TYPES.findall(code)) | set(FUNCTIONS.findall(code))


def header_of(source, including, include, quoted):
    """The project's file that an include names, or None."""
    if include.startswith("kvq/"):
        rest = include.removeprefix("kvq/")
        candidates = [source / "lib" / rest, source / rest]
    else:
        candidates = [including.parent / include, source / "apps" / include, source / "tests" / include]
    return next((path for path in candidates if path.is_file()), None)


class Tree:
    def __init__(self, source):
        self.source = source
        self.code, self.direct = {}, {}
        for top in ("lib", "kernels", "apps", "tests"):
            for path in sorted((source / top).rglob("*")):
                if path.suffix in (".h", ".cpp", ".cu", ".cuh") and path.is_file():
                    text = path.read_text(encoding="utf-8")
                    self.code[path] = without_comments_and_strings(text)
                    found = (header_of(source, path, include, quoted) for _, include, quoted in includes(text))
                    self.direct[path] = {header for header in found if header}
        self.declares = {path: declared_in(code) for path, code in self.code.items()}
        self.knows = {path: self.declares[path] | set(FORWARD.findall(code)) for path, code in self.code.items()}
        places = {}
        for path in self.code:
            public = path.is_relative_to(source / "lib") or path.is_relative_to(source / "apps")
            if public and path.suffix == ".h" and not path.name.endswith("_body.h"):
                for name in self.declares[path]:
                    places.setdefault(name, set()).add(path)
        self.only_in = {name: next(iter(paths)) for name, paths in places.items() if len(paths) == 1}

    def seen_from(self, path):
        seen, waiting = set(), [path]
        while waiting:
            for header in self.direct.get(waiting.pop(), set()) - seen:
                seen.add(header)
                waiting.append(header)
        return seen

    def missing(self):
        for path, code in self.code.items():
            if path.name.endswith("_body.h") or path.suffix not in (".cpp", ".h"):
                continue
            seen = self.seen_from(path) | {path}
            here = set().union(*(self.knows.get(header, set()) for header in seen))
            told = set()
            # Members (a.name, a->name, T::name) belong to what they are members of; kvq:: and apps:: do not hide a name.
            for match in re.finditer(r"(?<![\w.>:~])(?:(?:kvq|apps|h5|schema)::)*([A-Za-z]\w+)\b", code):
                name, home = match.group(1), self.only_in.get(match.group(1))
                if home is None or home in seen or name in here or name in told:
                    continue
                called = code[match.end():].lstrip()[:1] == "("
                if not name[0].isupper() and not called or self.is_own(name, code):
                    continue
                told.add(name)
                line = code.count("\n", 0, match.start()) + 1
                yield f"{path.relative_to(self.source)}:{line}: {name} is declared in {home.relative_to(self.source)}, which is not included"

    @staticmethod
    def is_own(name, code):
        """A local type, template parameter, enumerator, variable or function of the same name."""
        return re.search(rf"\b(?:struct|class|using|typename|enum)\s+{name}\b|^\s+{name},?$|\{{[^;{{}}]*\b{name}\s*[,}}]|"
                         rf"(?:\b(?!return|throw|else|case)\w+|[>&*\]])\s+{name}\(|::{name}\(|\),\s+{name}\(|\b{name}\s*=\s*\[|[\w>&*]\s+{name}[,)]", code, re.MULTILINE)


def main():
    tree = Tree(pathlib.Path(sys.argv[1]).resolve())
    problems = list(tree.missing())
    print("\n".join(problems) if problems else f"{len(tree.code)} files include what they use")
    return 1 if problems or not tree.code else 0


if __name__ == "__main__":
    sys.exit(main())
