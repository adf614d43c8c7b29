"""``python -m tests.scenarios``: compare every scenario; with ``--rewrite``, write what it is now.

``--list`` prints which script shows which scenario. A rewrite is reviewed like code: a difference
is a change of behaviour. ``expect`` lines stay true.
"""

from __future__ import annotations

import argparse
import sys

from tests.scenarios.index import table
from tests.scenarios.script import files, run


def main() -> int:
    """0 when all scenarios stand as written (or were rewritten)."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios")
    parser.add_argument("--rewrite", action="store_true", help="write the outputs as they are now")
    parser.add_argument("--list", action="store_true", help="print what each script shows")
    parser.add_argument("names", nargs="*", help="only these files, without .txt")
    options = parser.parse_args()
    if options.list:
        print(table())
        return 0
    changed = 0
    for path in files():
        if options.names and path.stem not in options.names:
            continue
        text = path.read_text(encoding="utf-8")
        now = run(text)
        if now != text:
            changed += 1
            print(("rewritten: " if options.rewrite else "differs: ") + path.name)
            if options.rewrite:
                path.write_text(now, encoding="utf-8")
    return 0 if options.rewrite or not changed else 1


if __name__ == "__main__":
    sys.exit(main())
