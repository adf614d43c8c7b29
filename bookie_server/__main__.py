"""``python -m bookie_server --config FILE``: the bookie as a program."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from bookie_server.daemon_thread import end_process
from bookie_server.exit_codes import EXIT_FAILED, EXIT_MEANINGS, EXIT_OK, EXIT_REFUSED
from bookie_server.telling import end_output, say


def main(
    arguments: list[str] | None = None, at_end: Callable[[int], None] = lambda _exit_code: None
) -> int:
    """Parse the command line, run, and return the exit code. ``at_end``: see ``process.run``."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    from bookie_server.config import load
    from bookie_server.process import format_bookie, relocate_bookie, run
    from bookie_server.rack import with_rack
    from spark_ledger.errors import ConfigurationError, CorruptionError, LedgerError

    try:
        config = load(options.config)
        if options.format_only:
            print(f"formatted {format_bookie(config).bookie_id}")
            return EXIT_OK
        if options.relocate:
            print(relocate_bookie(config))
            return EXIT_OK
        config = with_rack(config)
    except (ConfigurationError, CorruptionError) as error:
        say(str(error), sys.stderr)
        return EXIT_REFUSED
    except LedgerError as error:
        say(str(error), sys.stderr)
        return EXIT_FAILED
    try:
        return run(
            config, ready_file=options.ready_file, format_if_new=options.format, at_end=at_end
        )
    finally:
        end_output()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bookie_server",
        description="A bookie: stores ledger entries durably and serves them.",
        epilog="Exit codes: "
        + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_MEANINGS.items())
        + ".",
    )
    parser.add_argument(
        "--config", type=Path, required=True, help="TOML file, see conf/bookie.toml"
    )
    parser.add_argument(
        "--format", action="store_true", help="make a new bookie first if there is none yet"
    )
    parser.add_argument(
        "--format-only", action="store_true", help="make a new bookie and exit without serving"
    )
    parser.add_argument(
        "--relocate", action="store_true", help="say that the directories were moved, and exit"
    )
    parser.add_argument(
        "--ready-file",
        type=Path,
        help="write a JSON file here once the bookie serves; an empty one if its disk is full",
    )
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"]
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(at_end=end_process))
