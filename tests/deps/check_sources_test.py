#!/usr/bin/env python3
"""A checker that finds nothing looks like clean sources: each rule has a small file here that breaks it."""
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from check_includes import Tree  # noqa: E402
from check_sources import check_file  # noqa: E402


def messages(path, text):
    return " | ".join(message for _, message in check_file(path, text))


class Checker(unittest.TestCase):
    def test_accepts_a_clean_file(self):
        text = '#include <kvq/quant/codebook.h>\n#include <vector>\n#include <kvq/stats/quantile.h>\n// calls abort() and printf("x")\n'
        self.assertEqual(messages("lib/quant/codebook.cpp", text), "")
        self.assertEqual(messages("lib/core/log.cpp", 'const char* text = "std::cout << exit(1)";\n'), "")
        self.assertEqual(messages("lib/core/log.cpp", "table.abort(); stream->exit (); int exit_code(int kind);\n"), "")

    def test_finds_a_module_outside_the_table(self):
        self.assertIn("may include only", messages("lib/quant/x.cpp", "#include <kvq/model/model.h>\n"))
        self.assertIn("may include only", messages("lib/core/x.cpp", "#include <kvq/stats/quantile.h>\n"))
        self.assertIn("may include only", messages("lib/text/x.cpp", "#include <kvq/kernels/layout/packed_layout.h>\n"))
        self.assertEqual(messages("lib/quant/x.cpp", "#include <kvq/kernels/layout/packed_layout.h>\n"), "")
        self.assertIn("not in the table", messages("lib/extra/x.cpp", ""))
        self.assertIn("internal to artifacts", messages("lib/fit/x.cpp", "#include <kvq/artifacts/internal/h5.h>\n"))

    def test_finds_third_party_headers_in_the_wrong_place(self):
        for include in ("spdlog/spdlog.h", "CLI/CLI.hpp", "iostream", "format"):
            self.assertIn("no place in the library", messages("lib/core/x.cpp", f"#include <{include}>\n"))
        self.assertIn("json_fwd", messages("lib/formats/x.h", "#pragma once\n#include <nlohmann/json.hpp>\n"))
        self.assertEqual(messages("lib/formats/x.h", "#pragma once\n#include <nlohmann/json_fwd.hpp>\n"), "")
        self.assertEqual(messages("lib/formats/x.cpp", "#include <nlohmann/json.hpp>\n"), "")
        self.assertIn("out of headers", messages("lib/config/x.h", "#pragma once\n#include <toml++/toml.h>\n"))
        self.assertIn("20 s", messages("tests/model/x_test.cpp", "#include <torch/torch.h>\n"))
        self.assertIn("belongs to lib/artifacts", messages("lib/fit/x.cpp", "#include <hdf5.h>\n"))
        self.assertIn("belongs to", messages("lib/quant/x.cpp", "#include <ATen/core/Tensor.h>\n"))

    def test_finds_output_and_exits_in_the_library(self):
        for call in ("std::cout << 1;", "std::cerr << 1;", 'printf("x");', 'std::fprintf(stderr, "x");', 'fmt::print("x");', "puts(x);"):
            self.assertIn("never prints", messages("lib/core/x.cpp", call + "\n"), call)
        for call in ("exit(1);", "std::exit(1);", "std::abort();", "::_exit(2);", "std::terminate();"):
            self.assertIn("never ends the process", messages("lib/core/x.cpp", call + "\n"), call)
        self.assertIn("KVQ_ASSERT", messages("lib/core/x.cpp", "assert(x > 0);\n"))
        self.assertEqual(messages("lib/core/x.cpp", "static_assert(true); KVQ_ASSERT(x);\n"), "")
        self.assertEqual(messages("apps/common/tool.cpp", "std::cout << 1; std::exit(1);\n"), "")

    def test_counts_lines_and_knows_where_they_are(self):
        self.assertIn("fewer than 80", messages("apps/kvq-fit/main.cpp", "\n" * 80))
        self.assertEqual(messages("apps/kvq-fit/main.cpp", "\n" * 79), "")
        self.assertEqual(check_file("lib/core/x.cpp", "/* a\nb */\nexit(1);\n")[0][0], 3)
        self.assertIn("#pragma once", messages("lib/core/x.h", "int x;\n"))

    def test_finds_names_whose_header_is_not_included(self):
        header = "#pragma once\nnamespace kvq {\nstruct Page {\n};\nstd::vector<int> pages_of(int token);\n}  // namespace kvq\n"
        uses = "namespace kvq {\nint f() { Page page; return pages_of(1)[0] + other.pages_of(2) + PageCount; }\n}\n"
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            files = {"lib/cache/page.h": header, "lib/cache/around.h": "#pragma once\n#include <kvq/cache/page.h>\n",
                     "lib/cache/bad.cpp": uses, "lib/cache/good.cpp": "#include <kvq/cache/around.h>\n" + uses,
                     "lib/cache/own.cpp": "struct Page {\n};\nstatic int pages_of(int x) { return x; }\n" + uses}
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            found = list(Tree(root).missing())
        self.assertEqual([problem.split(" is declared")[0] for problem in found], ["lib/cache/bad.cpp:2: Page", "lib/cache/bad.cpp:2: pages_of"])


if __name__ == "__main__":
    unittest.main()
