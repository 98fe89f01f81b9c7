"""Three small repositories whose tests fail, and the calls with which a scripted policy mends them."""

from tests.compat.agentic.scripted import calls

TESTS = "python3 -m unittest -q"


def edit(path, old, new):
    return calls(("file_editor", {"command": "str_replace", "path": path, "old_str": old, "new_str": new}))


def view(path):
    return calls(("file_editor", {"command": "view", "path": path}))


RUN = calls(("bash_executor", {"command": TESTS}))
FINISH = calls(("finish", {"answer": "fixed"}))

OFF_BY_ONE = {
    "pages.py": "def page(items, number, size):\n    return items[number * size : (number + 1) * size - 1]\n",
    "test_pages.py": (
        "import unittest\nfrom pages import page\n\n\nclass Pages(unittest.TestCase):\n"
        "    def test_page(self):\n        self.assertEqual(page([1, 2, 3, 4], 1, 2), [3, 4])\n"
    ),
}
TWO_FILES = {
    "shop/__init__.py": "",
    "shop/money.py": "def total(prices):\n    return sum(prices) * TAX\n",
    "shop/tax.py": "TAX = 1.2\n",
    "test_shop.py": (
        "import unittest\nfrom shop.money import total\n\n\nclass Shop(unittest.TestCase):\n"
        "    def test_total(self):\n        self.assertAlmostEqual(total([10]), 11.9)\n"
    ),
}
MISSING_FILE = {
    "words.py": "from stop import STOP\n\n\ndef words(text):\n    return [w for w in text.split() if w not in STOP]\n",
    "test_words.py": (
        "import unittest\nfrom words import words\n\n\nclass Words(unittest.TestCase):\n"
        "    def test_words(self):\n        self.assertEqual(words('the Cat sat'), ['cat', 'sat'])\n"
    ),
}
REPOSITORIES = {
    "off_by_one": (OFF_BY_ONE, [RUN, view("pages.py"), edit("pages.py", " - 1]", "]"), RUN, FINISH], ["pages.py"]),
    "two_files": (
        TWO_FILES,
        [
            calls(("search", {"command": "search_text", "pattern": "TAX", "path": "."})),
            edit("shop/money.py", "def total", "from shop.tax import TAX\n\n\ndef total"),
            RUN,
            edit("shop/tax.py", "1.2", "1.19"),
            RUN,
            FINISH,
        ],
        ["shop/money.py", "shop/tax.py"],
    ),
    "missing_file": (
        MISSING_FILE,
        [
            calls(("bash_executor", {"command": "ls"}), ("file_editor", {"command": "view", "path": "words.py"})),
            calls(("file_editor", {"command": "create", "path": "stop.py", "file_text": "STOP = {'the'}\n"})),
            RUN,
            edit("words.py", "text.split()", "text.lower().split()"),
            RUN,
            FINISH,
        ],
        ["stop.py", "words.py"],
    ),
}
"""Name to files, replies, and the files that are changed."""
